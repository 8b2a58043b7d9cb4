"""What pods that failed say: of their job in words, and of their nodes where a preflight found one unfit. Pure."""

from collections.abc import Iterable, Iterator

from weft.cluster.health.tickets import REPAIRS
from weft.cluster.lifecycle import first_cause
from weft.cluster.records.node import NodeEvidence
from weft.engines.kubernetes.controller.observed import ObservedPod
from weft.engines.kubernetes.pod.preflight import read_finding


def to_blame(pods: Iterable[ObservedPod]) -> ObservedPod:
    """Return the pod that a gang has failed by: an unfit node's before all others."""
    failed = {pod.rank: pod for pod in pods}
    unfit = (pod for pod in failed.values() if pod.unfit)
    return next(unfit, None) or failed[first_cause((pod.rank, pod.code) for pod in failed.values())]


def unfit_nodes(job: str, pods: Iterable[ObservedPod], now_ms: int) -> Iterator[tuple[str, NodeEvidence]]:
    """Yield the nodes that a gang's preflight has found unfit, with what it saw."""
    for pod in pods:
        if pod.unfit:
            check, text = read_finding(pod.unfit)
            repair = check if check in REPAIRS else ""
            yield pod.node, NodeEvidence("preflight", now_ms, "fatal", text, job=job, repair=repair)


def failure_text(pod: ObservedPod, *, left: bool) -> str:
    """Return why a gang has ended, by the pod that is to blame; `left` where its own program is not."""
    if pod.unfit:
        return f"node {pod.node} failed the preflight: {read_finding(pod.unfit)[1]}"
    if left:
        return f"node {pod.node} was lost"
    how = "failed" if pod.code is None else f"ended with status {pod.code}"
    return f"rank {pod.rank} {how}"
