"""Metrics are what the pages show; dashboards and alert rules speak of no metric that does not exist."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from tests.web.console.conftest import incident, line, write_run

from weft.web.console.exposition import METRICS

ROOT = Path(__file__).parents[3]
SPEAKING = sorted([*(ROOT / "deploy" / "grafana").glob("*.json"), *(ROOT / "deploy" / "prometheus").glob("*.yml")])


def test_a_run_is_exposed(runs: Path, client: TestClient):
    run = write_run(runs, 'odd"name\n1', 2)
    run.append("metrics.jsonl", line(3, rank_seconds=[1.0, 1.0, 2.5], planes_out=[0, 3, 0]))
    run.append("incidents.jsonl", incident(1, 1), incident(2, 2, kind="plane"), incident(3, 2, kind="plane"))
    text = client.get("/metrics").text
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    name = ("run", 'odd"name\n1')
    assert found["weft_run_step", (name,)] == 3
    assert found["weft_run_slowest_rank_ratio", (name,)] == 2.5
    assert found["weft_run_ranks_with_lost_planes", (name,)] == 1
    assert found["weft_run_incidents_total", (("kind", "plane"), name)] == 2
    assert found["weft_run_state", (name, ("state", "interrupted"))] == 1
    assert found["weft_cluster_up", ()] == 0
    assert {key[0] for key in found} <= set(METRICS)


@pytest.mark.parametrize("path", SPEAKING, ids=lambda path: path.name)
def test_dashboards_and_alerts_name_metrics_that_exist(path: Path):
    named = set(re.findall(r"\bweft_[a-z_]+\b", path.read_text()))
    assert named <= set(METRICS), named - set(METRICS)


def test_every_metric_is_on_a_dashboard_or_in_the_documentation():
    page = (ROOT / "docs" / "console.md").read_text()
    assert [name for name in METRICS if f"`{name}`" not in page] == []
