"""A gang's preflight tests exactly its nodes before it starts: an unfit one goes out, and the gang is placed anew."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.kubernetes.fake_cluster import SPACE, FakeCluster, play, until

from weft.cluster.records.exit_status import UNFIT
from weft.core.errors import UsageError
from weft.engines.kubernetes.api.resources import GPU, HEALTH, PODS, SICK_TAINT
from weft.engines.kubernetes.pod.pod_main import run
from weft.engines.kubernetes.pod.preflight import CONTAINER, asked, read_finding


@pytest.mark.parametrize("unfit", [(0,), (1,), (0, 2)])
def test_an_unfit_node_goes_out_and_the_gang_starts_on_others(unfit: tuple[int, ...]) -> None:
    async def life() -> None:
        cluster = FakeCluster(6, start_s=30.0)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("gang", 3, preflight={"expect": {"memory.gb_per_s": 100}}, restarts=0)
            await until(lambda: len(cluster.pods("gang")) == 3)
            first = [pod["spec"]["initContainers"][0] for pod in cluster.pods("gang")]
            assert {one["name"] for one in first} == {CONTAINER}
            assert all(one["resources"]["limits"][GPU] == "8" for one in first)
            nodes = cluster.on("gang")
            said = {"exitCode": UNFIT, "message": "memory: gb_per_s is 3, 3% of the expected 100"}
            async with cluster.server.client("kubelets") as client:
                for rank in unfit:
                    pod = next(one for one in cluster.pods("gang") if one["spec"]["nodeName"] == nodes[rank])
                    ended = [{"name": CONTAINER, "state": {"terminated": said}}]
                    body = {"status": {"phase": "Failed", "initContainerStatuses": ended}}
                    await client.patch(PODS, pod["metadata"]["name"], body, SPACE, part="status")
            lost = {nodes[rank] for rank in unfit}
            await until(lambda: cluster.state("gang") == "running" and not lost & set(cluster.on("gang")), 300)
            for name in lost:
                assert SICK_TAINT in [one["key"] for one in cluster.node(name)["spec"].get("taints") or ()]
                assert "3% of the expected" in str(cluster.server.store.objects(HEALTH)[name]["status"])

    play(life)


@pytest.mark.parametrize(("least", "status"), [(1e-9, 0), (1e9, UNFIT)])
def test_the_container_says_what_it_found_where_the_controller_reads_it(
    tmp_path: Path, least: float, status: int
) -> None:
    log = tmp_path / "log"
    variables = {
        "WEFT_PREFLIGHT": asked(("memory",), {"memory.gb_per_s": least}, 0.01),
        "WEFT_TERMINATION_LOG": str(log),
    }
    assert run((), variables) == status
    assert log.exists() == (status == UNFIT)
    if status:
        check, text = read_finding(log.read_text())
        assert check == "memory"
        assert "of the expected" in text


@pytest.mark.parametrize("wanted", ["", "{}", "[]", json.dumps({"checks": ["no-such"], "expect": {}, "seconds": 1})])
def test_a_preflight_that_cannot_be_read_is_refused_in_a_sentence(wanted: str) -> None:
    with pytest.raises(UsageError):
        run((), {"WEFT_PREFLIGHT": wanted})


@given(st.text(max_size=100))
def test_last_words_of_any_form_are_read(message: str) -> None:
    check, text = read_finding(message)
    assert " " not in check
    assert text in message
