"""Where a GPU's time goes: computing, communication that is hidden behind it or exposed, copies, and idling. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from weft.diagnosis.finding import Diagnosis, DiagnosisFinding
from weft.diagnosis.operations import Floats

KernelClass = Literal["compute", "communication", "copy"]

_COMMUNICATION = re.compile(
    r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|alltoall|sendrecv|nvshmem|deep_?ep|"
    r"::ep::|internode|intranode|dispatch<|combine<|broadcast_kernel|c10d|gloo|mscclpp|oneccl",
    re.IGNORECASE,
)
_NO_COMMUNICATION = re.compile(r"layout|layer_norm|reduce_kernel", re.IGNORECASE)
_COPY = re.compile(r"memcpy|memset", re.IGNORECASE)
_MUCH_IDLE, _MUCH_EXPOSED = 0.1, 0.15


def kernel_class(name: str, category: str = "kernel") -> KernelClass:
    """Return what a kernel does, by its name and its category in the trace."""
    if _COPY.search(category) or _COPY.match(name):
        return "copy"
    if _COMMUNICATION.search(name) and not _NO_COMMUNICATION.search(name):
        return "communication"
    return "compute"


@dataclass(frozen=True)
class Kernels:
    """What ran on one rank's device: intervals in seconds, in any order."""

    rank: int
    begin_s: Floats
    end_s: Floats
    kind: Sequence[KernelClass]
    device: str = ""
    world: int | None = None
    """Ranks of the whole job, where the trace says so."""


@dataclass(frozen=True)
class TimelineShares:
    """Shares of the time from the first kernel to the last; they add up to one."""

    rank: int
    span_s: float
    compute: float
    overlapped_communication: float
    """Part of `compute` during which communication ran as well; not added up."""
    exposed_communication: float
    copy: float
    idle: float


def shares(kernels: Kernels) -> TimelineShares:
    """Return where the time of one rank went."""
    if not len(kernels.begin_s):
        return TimelineShares(kernels.rank, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    kinds = np.array(kernels.kind)
    compute = union(kernels.begin_s[kinds == "compute"], kernels.end_s[kinds == "compute"])
    communication = union(kernels.begin_s[kinds == "communication"], kernels.end_s[kinds == "communication"])
    busy = union(kernels.begin_s, kernels.end_s)
    either = _length(union(np.r_[compute[:, 0], communication[:, 0]], np.r_[compute[:, 1], communication[:, 1]]))
    span = float(kernels.end_s.max() - kernels.begin_s.min())
    exposed = either - _length(compute)
    return TimelineShares(
        kernels.rank, span, _length(compute) / span, (_length(communication) - exposed) / span, exposed / span,
        (_length(busy) - either) / span, 1 - _length(busy) / span,
    )  # fmt: skip


def union(begin: Floats, end: Floats) -> Floats:
    """Return the union of intervals as rows of (begin, end), disjoint and sorted."""
    if not len(begin):
        return np.zeros((0, 2))
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    fresh = np.r_[True, begin[1:] > end[:-1]]
    first = np.flatnonzero(fresh)
    return np.stack([begin[first], end[np.r_[first[1:] - 1, len(end) - 1]]], axis=1)


def _length(intervals: Floats) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def examine_timelines(found: Sequence[TimelineShares]) -> Diagnosis:
    """Return the shares of a job's ranks in the mean, and what is large among them."""
    spanned = [one for one in found if one.span_s > 0]
    if not spanned:
        return Diagnosis()
    names = ("compute", "overlapped_communication", "exposed_communication", "copy", "idle")
    mean = {name: float(np.mean([getattr(one, name) for one in spanned])) for name in names}
    result = Diagnosis(
        figures={"ranks": len(spanned), "span_s": float(np.mean([one.span_s for one in spanned])), **mean}
    )
    total = mean["exposed_communication"] + mean["overlapped_communication"]
    if mean["exposed_communication"] > _MUCH_EXPOSED:
        hidden = mean["overlapped_communication"] / total
        result.findings.append(DiagnosisFinding(
            "slow", "exposed-communication", "communication",
            f"{mean['exposed_communication']:.0%} of the time is exposed communication; {hidden:.0%} of all"
            " communication is hidden behind computing.",
            (), 0.9, _slowdown(mean["exposed_communication"]), mean["exposed_communication"], "property of the work",
        ))  # fmt: skip
    if mean["idle"] > _MUCH_IDLE:
        result.findings.append(DiagnosisFinding(
            "slow", "idle-device", "the host",
            f"The devices idle {mean['idle']:.0%} of the time: kernels are launched too slowly, or the input or another"
            " rank is waited for without a kernel.",
            (), 0.8, _slowdown(mean["idle"]), mean["idle"], "property of the work",
        ))  # fmt: skip
    result.findings += _odd_ranks(spanned)
    return result


def _slowdown(share: float) -> float | None:
    """Return what a step takes over what it would without a part of it; nothing where there is no other part."""
    return 1 / (1 - share) if share < 1 else None


def _odd_ranks(spanned: Sequence[TimelineShares]) -> list[DiagnosisFinding]:
    """Return the rank that computes longest while the others wait for it in communication."""
    if len(spanned) < 3:  # noqa: PLR2004 - of two it cannot be said which is odd
        return []
    busy = np.array([one.compute * one.span_s for one in spanned])
    worst = int(busy.argmax())
    others = np.delete(busy, worst)
    spread = float(np.percentile(others, 90) - np.percentile(others, 10)) + 0.01 * float(np.median(others))
    ratio = float(busy[worst] / max(float(np.median(others)), 1e-12))
    if ratio < 1.05 or busy[worst] - others.max() < spread:  # noqa: PLR2004 - what is less is noise
        return []
    rank = spanned[worst].rank
    return [DiagnosisFinding(
        "slow", "slow-rank", f"rank {rank}",
        f"Rank {rank} computes {ratio:.2f} x as long as the others, which wait for it in their collectives.",
        (f"its exposed communication is {spanned[worst].exposed_communication:.1%} of its time",),
        0.8, ratio, 1 - 1 / ratio, "persistent", None, (rank,),
    )]  # fmt: skip
