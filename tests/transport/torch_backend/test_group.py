"""The torch backend with real processes: right, equal everywhere, and not to be stopped by dead planes."""

import socket
from typing import Any

import pytest

from weft.training.launch.ranks import Ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _run(name: str, count: int, **arguments: Any) -> list[Any]:
    return Ranks(f"tests.transport.ranks:{name}", count, arguments, backend="mrc").run()


@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_collective_is_right(count) -> None:
    _run("collectives", count)


@pytest.mark.parametrize("size", [500, 300_001])
def test_sums_are_equal_on_every_rank_and_in_every_run(size) -> None:
    found = {text for one in (_run("bits", 3, size=size), _run("bits", 3, size=size)) for rank in one for text in rank}
    assert len(found) == 1


def test_a_group_can_be_formed_again_in_the_same_process() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert _run("again", 2, port=port) == [1.0, 1.0]


def test_a_dead_peer_is_named_by_everybody() -> None:
    said = _run("widow", 4)
    assert said[1] == "dead"
    for rank in (0, 2, 3):
        assert "rank 1 is gone" in said[rank], said[rank]


def test_ddp_keeps_its_bits_when_all_planes_but_one_are_cut() -> None:
    whole = _run("ddp", 4, steps=12, cuts={})
    cut = _run("ddp", 4, steps=12, cuts={3: [0], 5: [2], 7: [3]})
    assert whole == cut
    assert len(set(map(tuple, whole))) == 1, "ranks disagree about the loss"


def test_fsdp_trains_alike_on_every_rank() -> None:
    found = _run("fsdp", 2, steps=4)
    assert found[0] == found[1]
    assert float.fromhex(found[0][-1]) < float.fromhex(found[0][0])


def test_tensor_and_pipeline_parallelism_compute_what_one_rank_does() -> None:
    assert max(_run("tensor_parallel", 2)) < 1e-5
    assert max(_run("pipeline", 2)) < 1e-5
