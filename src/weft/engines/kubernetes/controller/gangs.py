"""What is still to be done for a job to stand as its record says: pods to make and to remove. Pure.

This is what makes a crash harmless. Where a job runs is written down before its first pod is made; from then on every
pass compares what is written with what exists and returns the difference. A gang that was half bound when the engine
died is completed by the next one, or taken away if the record says so; what exists already is never made again.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from weft.cluster.records.job import ENDED, JobState
from weft.engines.kubernetes.controller.observed import ObservedPod, Owner, Placed

_RUNS = frozenset({JobState.STARTING, JobState.RUNNING})


@dataclass(frozen=True, slots=True)
class Make:
    """Make the pod of a place, on its node."""

    place: int
    """Its place in the gang."""
    pod: str
    """What it is called."""
    node: str
    """Where it goes."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Take a pod away."""

    pod: str
    """What it is called."""
    uid: str
    """Which one of that name."""
    at_once: bool = False
    """Whether nobody is left on its node to end it gently."""


Step = Make | Remove


def pod_name(job: str, placed: Placed, place: int) -> str:
    """Return the name of the pod of a place: the same whenever it is asked for."""
    return f"{job}-{placed.made(place)}-{place}"


def steps(
    owner: Owner, state: JobState, placed: Placed | None, pods: Iterable[ObservedPod], silent: Collection[str], *,
    elapsed_ms: int = 0,
) -> list[Step]:  # fmt: skip
    """Return what is to be done for a job `elapsed_ms` after its start.

    `pods` are all that bear its name, `silent` the nodes that are not heard.
    """
    there = {pod.name: pod for pod in pods}
    runs = state in _RUNS and placed is not None
    wanted: dict[str, int] = {}
    if runs or state is JobState.ASKED:
        assert placed is not None, "a job that holds nodes has a placement"
        wanted = {pod_name(owner.job, placed, place): place for place in range(len(placed.nodes))}
    todo: list[Step] = []
    for name, pod in there.items():
        keeps = pod.owner == owner.uid and (
            (name in wanted and (placed is None or pod.node == placed.nodes[wanted[name]]))
            or (state in ENDED and pod.over)
        )
        if keeps and not (state is JobState.ASKED and not pod.over):
            continue
        if not pod.leaving or (pod.node in silent and not pod.over):
            todo.append(Remove(name, pod.uid, at_once=pod.node in silent))
    if runs:
        assert placed is not None
        begun = placed.begun(elapsed_ms)
        # A node is given to a new pod only when the old one has left it.
        held = {pod.node for name, pod in there.items() if pod.node and not pod.over and name not in wanted}
        for name, place in wanted.items():
            if name not in there and place < begun and placed.nodes[place] not in held:
                todo.append(Make(place, name, placed.nodes[place]))
    return todo


@dataclass(frozen=True, slots=True)
class PodCounts:
    """How a gang's pods stand, counted."""

    wanted: int
    """Pods that the placement asks for."""
    bound: int
    """Of these, how many are bound."""
    running: int
    """Of these, how many run."""
    succeeded: int
    """How many have ended well."""
    failed: tuple[ObservedPod, ...]
    """Those that have ended otherwise."""
    left: int
    """Pods of any placement that may still run something."""


def count_pods(owner: Owner, placed: Placed | None, pods: Iterable[ObservedPod]) -> PodCounts:
    """Count the pods of a job."""
    names: Mapping[str, int] = (
        {} if placed is None else {pod_name(owner.job, placed, place): place for place in range(len(placed.nodes))}
    )
    bound = running = succeeded = left = 0
    failed: list[ObservedPod] = []
    for pod in pods:
        left += not pod.over
        if pod.owner != owner.uid or pod.name not in names:
            continue
        bound += bool(pod.node)
        running += pod.phase == "Running" and not pod.leaving
        succeeded += pod.phase == "Succeeded"
        if pod.phase == "Failed":
            failed.append(pod)
    return PodCounts(len(names), bound, running, succeeded, tuple(failed), left)
