from dataclasses import astuple, replace

from hypothesis import given
from hypothesis import strategies as st

from weft.netsim.host.host_state import ACKNOWLEDGED, ARRIVED, FAILED
from weft.netsim.model.flow import Flow
from weft.netsim.model.flow_board import FlowBoard, largest_message
from weft.netsim.model.independent_flows import IndependentFlows, flow_board

_PAYLOAD = 4096
_MOST = 2**31


class _Endpoints:
    """Takes every message, has got everything, and fails where it is told to."""

    def __init__(self) -> None:
        self.broken: set[int] = set()
        self.posted: list[tuple[int, int]] = []
        self.goals: dict[int, tuple[int, ...]] = {}

    def post(self, pair, length):
        return self.post_many([pair], [length])[0]

    def post_many(self, pairs, lengths):
        self.posted += zip(map(int, pairs), map(int, lengths), strict=True)
        return [True] * len(pairs)

    def set_goals(self, pairs, arrived, acknowledged):
        for pair, *goals in zip(map(int, pairs), map(int, arrived), map(int, acknowledged), strict=True):
            self.goals[pair] = tuple(goals)

    def reached(self, pairs):
        return [_MOST] * len(pairs), [_MOST] * len(pairs)

    def failed(self, pairs):
        return {int(pair): "TIMEOUT" for pair in pairs if int(pair) in self.broken}


_flows = st.lists(
    st.tuples(st.integers(1, 20_000), st.sampled_from([0, 0, 5, 70]), st.booleans()), min_size=1, max_size=12
).map(
    lambda rows: [Flow(str(i), i, i + 1, size, at_ps, counted=counted) for i, (size, at_ps, counted) in enumerate(rows)]
)
_steps = st.lists(
    st.tuples(
        st.integers(0, 100), st.lists(st.tuples(st.integers(0, 11), st.sampled_from([ARRIVED, ACKNOWLEDGED, FAILED])))
    ),
    max_size=6,
)


def _play(board: FlowBoard, steps) -> tuple[object, ...]:
    """Return all that can be seen of a board that is told the same things, each once."""
    ends = _Endpoints()
    told: set[tuple[int, int]] = set()
    now_ps, seen = 0, []
    for passed_ps, events in steps:
        seen.append((board.next_start_ps(), board.start(now_ps, ends), board.open))
        rows = []
        for place, (pair, kind) in enumerate(events):
            begun = pair < len(board.pairs) and board.progress[board.pair_of.index(pair)].began_ps >= 0
            if begun and (pair, kind) not in told and (pair, FAILED) not in told:
                told.add((pair, kind))
                rows.append((now_ps + place, pair, kind))
                ends.broken |= {pair} if kind == FAILED else set()
        board.on_events(rows, ends)
        seen.append((board.open, [astuple(replace(one, unsent=0)) for one in board.progress]))
        now_ps += passed_ps
    board.fail_all("END")
    return seen, board.open, [one.failure for one in board.progress], ends.posted, ends.goals


@given(_flows, _steps)
def test_flows_that_have_nothing_to_do_with_each_other_go_the_same_way_in_columns(flows, steps):
    assert _play(IndependentFlows(flows, _PAYLOAD), steps) == _play(FlowBoard(flows, _PAYLOAD), steps)


@given(_flows, st.integers(0, 11))
def test_a_pair_that_has_failed_before_its_flow_begins_is_given_nothing(flows, broken):
    for board in (IndependentFlows(flows, _PAYLOAD), FlowBoard(flows, _PAYLOAD)):
        ends = _Endpoints()
        ends.broken = {broken}
        board.start(100, ends)
        assert sorted(pair for pair, _ in ends.posted) == [i for i in range(len(flows)) if i != broken]
        assert [i for i, one in enumerate(board.progress) if one.failure] == [broken][: broken < len(flows)]


def test_columns_are_for_flows_that_are_alone_short_and_waited_for_by_nobody():
    one, two = Flow("a", 0, 1, 100, 0), Flow("b", 1, 2, 100, 0)
    assert type(flow_board((one, two), _PAYLOAD)) is IndependentFlows
    for other in (
        replace(two, source=0, destination=1),
        replace(two, after=(0,)),
        replace(two, after_sent=(0,)),
        replace(two, size=0),
        replace(two, size=largest_message(_PAYLOAD) + 1),
    ):
        assert type(flow_board((one, other), _PAYLOAD)) is FlowBoard
