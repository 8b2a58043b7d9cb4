from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.records.job import JobState
from weft.engines.kubernetes.api.crds import NAME_LETTERS
from weft.engines.kubernetes.controller.gangs import Make, Remove, Step, count_pods, pod_name, steps
from weft.engines.kubernetes.controller.observed import ObservedPod, Owner, Placed

_OWNER = Owner("space", "job", "uid")
_STATES = (JobState.STARTING, JobState.RUNNING, JobState.ASKED, JobState.STOPPING, JobState.WAITING, JobState.DONE)


def _pod(name: str, node: str, rank: int, **more: object) -> ObservedPod:
    pod = ObservedPod(
        "space", name, f"u-{name}", "uid", "job", rank, 1, node, "Pending", leaving=False, code=None, reason=""
    )
    return replace(pod, **more)  # type: ignore[arg-type]


class Server:
    """Holds pods the way an API server does: a name once."""

    def __init__(self) -> None:
        self.pods: dict[str, ObservedPod] = {}

    def do(self, step: Step) -> None:
        """Carry a step out."""
        match step:
            case Make():
                assert step.pod not in self.pods, "a pod is made once"
                self.pods[step.pod] = _pod(step.pod, step.node, step.place)
            case Remove():
                assert self.pods[step.pod].uid == step.uid
                del self.pods[step.pod]


def _placed(nodes: int, attempt: int = 1) -> Placed:
    return Placed(tuple(f"n{number}" for number in range(nodes)), 8, attempt=attempt, first=attempt)


@given(
    nodes=st.integers(1, 12),
    lives=st.lists(st.tuples(st.integers(0, 8), st.sampled_from(_STATES)), max_size=12),
    last=st.sampled_from(_STATES),
)
def test_whatever_crashes_come_the_gang_ends_up_whole_or_gone_and_nothing_is_done_twice(nodes, lives, last):
    server = Server()
    placed = _placed(nodes)
    for count, state in lives:
        where = None if state in (JobState.WAITING, JobState.DONE) else placed
        # A crash after so many steps.
        for step in steps(_OWNER, state, where, server.pods.values(), frozenset())[:count]:
            server.do(step)
    where = None if last in (JobState.WAITING, JobState.DONE) else placed
    for step in steps(_OWNER, last, where, server.pods.values(), frozenset()):
        server.do(step)
    assert not steps(_OWNER, last, where, server.pods.values(), frozenset())
    counts = count_pods(_OWNER, where, server.pods.values())
    if last in (JobState.STARTING, JobState.RUNNING):
        assert counts.bound == counts.wanted == nodes
        assert {pod.node for pod in server.pods.values()} == set(placed.nodes)
    else:
        assert not server.pods


def test_a_swapped_node_takes_one_pod_away_and_makes_one():
    server = Server()
    before = _placed(4)
    for step in steps(_OWNER, JobState.STARTING, before, server.pods.values(), frozenset()):
        server.do(step)
    after = replace(before, nodes=("n0", "n1", "spare", "n3"), attempt=2, moved={2: 2})
    todo = steps(_OWNER, JobState.RUNNING, after, server.pods.values(), {"n2"})
    assert todo == [Remove("job-1-2", "u-job-1-2", at_once=True), Make(2, "job-2-2", "spare")]


def test_pods_that_have_ended_stay_for_their_logs_and_others_go():
    pods = [_pod("job-1-0", "n0", 0, phase="Succeeded"), _pod("job-1-1", "n1", 1, phase="Running")]
    assert steps(_OWNER, JobState.FAILED, None, pods, frozenset()) == [Remove("job-1-1", "u-job-1-1")]


def test_pods_of_an_older_job_of_the_same_name_are_not_ours():
    pods = [_pod("job-1-0", "n0", 0, owner="another")]
    assert steps(_OWNER, JobState.STARTING, _placed(1), pods, frozenset()) == [Remove("job-1-0", "u-job-1-0")]


def test_waves_hold_back_the_pods_that_may_not_begin_yet():
    placed = replace(_placed(4), waves=((0, 1), (1000, 3)))
    assert len(steps(_OWNER, JobState.STARTING, placed, [], frozenset())) == 1
    assert len(steps(_OWNER, JobState.STARTING, placed, [], frozenset(), elapsed_ms=1000)) == 4


@given(st.integers(1, 99_999), st.integers(0, 99_999))
def test_names_of_pods_are_host_names(attempt, place):
    assert len(pod_name("j" * NAME_LETTERS, _placed(1, attempt), place)) <= 63
