"""What a coordinator knows goes to the next one whole, and an agent takes orders of one alone."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.recovery.events import Cause, RankSlot
from weft.core.clock import ManualClock
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds
from weft.engines.supervisor.chaos import Chaos
from weft.engines.supervisor.hosts.agent import Agent
from weft.engines.supervisor.hosts.coordinator import GangTask, _newest
from weft.engines.supervisor.hosts.host_words import WIRE, Ending, HostAnswer, HostCall, Welcome
from weft.engines.supervisor.incidents import IncidentLog
from weft.engines.supervisor.snapshots import Commit, SnapshotIndex
from weft.specs.faults import FaultsSpec, resolved
from weft.training.recovery.orders import Stored
from weft.training.recovery.piece import Piece

SECOND = PICOSECONDS_PER_SECOND


def through_the_wire(value: Any) -> Any:
    return WIRE.decode(WIRE.encode(value))


def task(field: Any, folder: Path, place: int = 0) -> GangTask:
    return GangTask(field.job(), folder, 2, place, "127.0.0.1", 1)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_the_time_of_a_run_sums_to_its_wall_time_over_two_coordinators(before: int, between: int, after: int):
    clock = ManualClock()
    first = IncidentLog(clock)
    clock.advance(Picoseconds(before * SECOND))
    slot = RankSlot(1, 0)
    first.begin(Cause("killed", 1, "rank 1 died", slot=slot, detected_ps=clock.now(), phase_since_ps=clock.now()), 4)
    first.trouble(2, "checkpoint", 3, "the disk is full")
    kept = through_the_wire(first.kept())
    clock.advance(Picoseconds(between * SECOND))
    second = IncidentLog(clock)
    second.go_on(kept)
    clock.advance(Picoseconds(after * SECOND))
    assert sum(second.goodput()["seconds"].values()) == pytest.approx(before + between + after)
    assert second.goodput()["seconds"].get("detect", 0.0) == pytest.approx(between + after)
    assert second.incidents == first.incidents
    assert second.open == first.open
    assert second.begin(Cause("coordinator", None, "it died", detected_ps=clock.now()), 4).number == 3
    assert second.incidents[-1]["outcome"] == "overtaken by another failure"


@given(st.sets(st.integers(0, 3)), st.integers(0, 9))
def test_faults_that_have_come_true_do_not_come_again(fired: set[int], step: int):
    spec = FaultsSpec.model_validate(
        {"faults": [{"kind": "kill", "rank": 0, "step": 2, "count": 3}, {"kind": "return", "step": 4}]}
    )
    faults = resolved(spec, ranks=2, nodes=2, steps=9)
    first, second = Chaos(faults), Chaos(faults)
    for number in fired:
        first.fired(number)
    first.due(step, Picoseconds(SECOND))
    second.go_on(through_the_wire(first.kept()))
    assert second.of_rank(0) == first.of_rank(0)
    assert second.due(9, Picoseconds(2 * SECOND)) == first.due(9, Picoseconds(2 * SECOND))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2**64 - 1)), min_size=1, max_size=4), st.integers(0, 1))
def test_snapshots_are_known_to_the_next_coordinator_and_lost_with_their_hosts(found: list[tuple[int, int]], node: int):
    pieces = {
        f"w{number}": Piece(f"w{number}", (0,), (size,), (size,), "float32") for number, (size, _) in enumerate(found)
    }
    stored = {
        piece.key: Stored(piece, digest, (0, 1)) for piece, (_, digest) in zip(pieces.values(), found, strict=True)
    }
    first = SnapshotIndex(commits=[Commit((3, 8), {"w0": "a"}, stored)], agreed={4: {"w0": "b"}})
    first.refused.add(("memory", (2, 4), 4))
    second = SnapshotIndex()
    second.go_on(through_the_wire(first.kept()))
    assert second.commits == first.commits
    assert (second.agreed, second.refused, second.on_disk) == (first.agreed, first.refused, None)
    second.lose_node(node)
    assert all(one.nodes == (1 - node,) for one in second.commits[0].pieces.values())


def test_the_newest_of_what_was_kept_counts_and_what_is_damaged_does_not():
    texts = [WIRE.encode({"order": order, "attempt": 1}) for order in ((1, 9), (2, 1), (2, 0))]
    newest = _newest(*texts, None, b"", b"cut of", b'["d", "order"')
    assert newest is not None
    assert newest["order"] == (2, 1)
    assert _newest(None, b"{}", b"nonsense") is None


class _Line:
    """A channel that notes what is said."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def send(self, word: object) -> None:
        self.said.append(word)


class _Host:
    """A host that is not there."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.memory = self

    def signal(self, rank: int, number: int) -> None:
        self.done.append((rank, number))

    def spill(self, snapshot: tuple[int, int]) -> list[int]:
        self.done.append(snapshot)
        return [0]

    def close(self) -> None:
        raise AssertionError("no coordinator closes a host")


@pytest.fixture
def agent(field: Any, tmp_path: Path) -> Agent:
    one = Agent(task(field, tmp_path / "gang"))
    one._host = _Host()  # type: ignore[assignment]
    return one


@pytest.mark.parametrize(
    "name",
    [
        "close",
        "get_ready",
        "_listen",
        "memory.close",
        "memory._ask",
        "program",
        "memory.start.__call__",
        "os.system",
        "",
    ],
)
def test_a_coordinator_can_call_what_it_needs_and_nothing_else(agent: Agent, name: str):
    line: Any = _Line()
    agent._obey(line, HostCall("signal", (1, 9), answered=False))
    agent._obey(line, HostCall("memory.spill", ((3, 8),), answered=True))
    assert line.said == [HostAnswer([0])]
    with pytest.raises(ValueError, match="a coordinator has no use of"):
        agent._obey(line, HostCall(name, (), answered=True))
    host: Any = agent._host
    assert host.done == [(1, 9), (3, 8)]


@pytest.mark.parametrize("welcome", [Welcome(1, (0,)), Welcome(3, (0,)), Ending("finished"), "come in", None])
def test_an_agent_takes_orders_of_the_epoch_that_it_has_called_alone(agent: Agent, welcome: object):
    with pytest.raises(OSError, match="another epoch"):
        agent._accept(welcome, 2)
    agent._accept(Welcome(2, (0,)), 2)


def test_a_gang_that_was_asked_to_stop_before_it_began_starts_no_coordinator(field: Any, tmp_path: Path):
    one = Agent(task(field, tmp_path / "gang"))
    one.ask()
    assert one._met() == Ending("stopped")
