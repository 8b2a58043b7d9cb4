"""Several jobs on one fabric: each takes as long alone as a scenario of its own, and longer where they share links."""

import json
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.cli.main import main
from weft.core.errors import UsageError
from weft.netsim.run import run
from weft.netsim.setup import set_up, transports_of
from weft.netsim.sharing import job_times, time_of
from weft.netsim.workload.sharers import sharer_flows
from weft.specs import ScenarioSpec, SiteSpec, load_site

SITE = "bed-64x400g"


def jobs_of(*jobs: dict[str, Any]) -> ScenarioSpec:
    return ScenarioSpec.model_validate({"name": "jobs", "site": SITE, "jobs": list(jobs)})


def narrow() -> SiteSpec:
    """Return the bed with a single uplink for eight NICs."""
    table = load_site(SITE).as_written()
    table["fabric"] |= {"oversubscription": "7:1", "radix": 8, "gpus": 28}
    return SiteSpec.model_validate(table)


A: dict[str, Any] = {"name": "a", "ranks": 4, "stride": 4, "size": "256 KiB", "steps": 2, "compute": "7 us"}
B: dict[str, Any] = {"name": "b", "first": 1, "ranks": 4, "stride": 4, "size": "512 KiB", "kind": "all-to-all"}


def test_a_step_begins_when_everybody_has_computed_and_the_one_before_is_over() -> None:
    (report,) = weft.simulate(jobs_of(A), ("mrc",), engine="reference", fast=False)
    first, second = ([flow for flow in report.flows if flow.name.startswith(f"a/{step}")] for step in (0, 1))
    assert min(flow.began_ps for flow in first) == 7_000_000
    assert min(flow.began_ps for flow in second) >= min(flow.arrived_ps for flow in first) + 7_000_000
    assert time_of(report, "a") == max(flow.arrived_ps for flow in report.flows)


@pytest.mark.parametrize("shared", [True, False])
def test_jobs_slow_each_other_down_where_they_share_uplinks_and_nowhere_else(shared: bool) -> None:
    site = narrow() if shared else load_site(SITE)
    one: dict[str, Any] = {"name": "a", "ranks": 3, "stride": 7, "size": "2 MiB"}
    scenario = jobs_of(one, {**one, "name": "b", "first": 1})
    setup = set_up(scenario, site, 1)
    (transport,) = transports_of(setup, ("mrc",))
    times = job_times(run(setup, transport), setup, site, transport)
    slower = [time.slower for time in times]
    assert all(each is not None and (each > 1.5 if shared else 0.95 < each < 1.1) for each in slower)


@pytest.mark.parametrize(
    ("jobs", "says"),
    [
        ((A, {**B, "first": 4}), "jobs 'a' and 'b' both have NIC 4"),
        ((A, {**B, "first": 60}), "job 'b' needs NIC 72, but there are 64"),
    ],
)
def test_jobs_that_cannot_be_are_refused(jobs: tuple[dict[str, Any], ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sharer_flows(jobs_of(*jobs).jobs, 64)


def test_names_are_told_apart() -> None:
    with pytest.raises(ValueError, match="two jobs are called 'a'"):
        jobs_of(A, A)


def test_the_command_says_what_jobs_cost_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text(
        f'name = "two"\nsite = "{SITE}"\n'
        '[[jobs]]\nname = "a"\nranks = 4\nstride = 2\nsize = "64 KiB"\n'
        '[[jobs]]\nname = "b"\nfirst = 1\nranks = 4\nstride = 2\nsize = "64 KiB"\n'
    )
    assert main(["simulate", str(file), "--transport", "mrc", "--engine", "reference", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [job["job"] for job in document["jobs"]] == ["a", "b"]
    assert all(job["alone_us"] > 0 for job in document["jobs"])
