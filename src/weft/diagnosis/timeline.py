"""Where a GPU's time goes: computing, communication that is hidden behind it or exposed, copies, and idling. Pure."""

import re
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

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


_MOST_HELD = 2**18
"""Kernels that are held until they are joined to intervals."""
_MOST_INTERVALS = 2**20


class BusyTime:
    """When a rank's device computed, communicated and copied: kernels go in, in any order; memory does not grow.

    Kernels that touch each other become one interval. Where there are still too many intervals, the shortest gaps are
    closed, and their length is kept so that sums stay right.
    """

    def __init__(self) -> None:
        self._fresh: dict[KernelClass, array[float]] = {kind: array("d") for kind in get_args(KernelClass)}
        self._intervals: dict[str, Floats] = {}
        self._closed: dict[str, float] = {}
        self._held = 0

    def add(self, kind: KernelClass, begin_s: float, end_s: float) -> None:
        """Take one kernel."""
        self._fresh[kind].extend((begin_s, end_s))
        self._held += 1
        if self._held >= _MOST_HELD:
            self._join()

    def _join(self) -> None:
        fresh = {kind: np.array(flat, dtype=np.float64).reshape(-1, 2) for kind, flat in self._fresh.items()}
        both = np.concatenate([fresh["compute"], fresh["communication"]])
        for name, more in (*fresh.items(), ("either", both), ("busy", np.concatenate([both, fresh["copy"]]))):
            known = np.concatenate([self._intervals.get(name, np.zeros((0, 2))), more])
            joined = union(known[:, 0], known[:, 1])
            if len(joined) > _MOST_INTERVALS:
                gaps = joined[1:, 0] - joined[:-1, 1]
                kept = gaps > np.partition(gaps, len(gaps) - _MOST_INTERVALS // 2)[len(gaps) - _MOST_INTERVALS // 2]
                self._closed[name] = self._closed.get(name, 0.0) + float(gaps[~kept].sum())
                joined = np.stack([joined[np.r_[True, kept], 0], joined[np.r_[kept, True], 1]], axis=1)
            self._intervals[name] = joined
        for flat in self._fresh.values():
            del flat[:]
        self._held = 0

    def shares(self, rank: int, name: str = "") -> "TimelineShares":
        """Return where the time went, from the first kernel to the last."""
        self._join()
        busy = self._intervals["busy"]
        span = float(busy[-1, 1] - busy[0, 0]) if len(busy) else 0.0
        if span <= 0:
            return TimelineShares(rank, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, name)
        length = {key: _length(found) - self._closed.get(key, 0.0) for key, found in self._intervals.items()}
        exposed = max(0.0, length["either"] - length["compute"])
        return TimelineShares(
            rank, span, length["compute"] / span, (length["communication"] - exposed) / span, exposed / span,
            max(0.0, length["busy"] - length["either"]) / span, max(0.0, 1 - length["busy"] / span), name,
        )  # fmt: skip


@dataclass(frozen=True)
class TimelineShares:
    """Shares of the time from the first kernel to the last; they add up to one."""

    rank: int
    """-1 where it is not known."""
    span_s: float
    compute: float
    overlapped_communication: float
    """Part of `compute` during which communication ran as well; not added up."""
    exposed_communication: float
    copy: float
    idle: float
    name: str = ""
    """What it was read from, to name it where the rank is not known."""


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
    by_rank: dict[int | str, list[TimelineShares]] = defaultdict(list)
    for one in spanned:  # of one rank, several parts of a run may have been traced
        by_rank[one.rank if one.rank >= 0 else one.name].append(one)
    if len(by_rank) < 3:  # noqa: PLR2004 - of two it cannot be said which is odd
        return []
    names = list(by_rank)
    busy = np.array([float(np.mean([one.compute * one.span_s for one in own])) for own in by_rank.values()])
    worst = int(busy.argmax())
    others = np.delete(busy, worst)
    spread = float(np.percentile(others, 90) - np.percentile(others, 10)) + 0.01 * float(np.median(others))
    ratio = float(busy[worst] / max(float(np.median(others)), 1e-12))
    if ratio < 1.05 or busy[worst] - others.max() < spread:  # noqa: PLR2004 - what is less is noise
        return []
    rank = names[worst]
    exposed = float(np.mean([one.exposed_communication for one in by_rank[rank]]))
    subject, ranks = (f"rank {rank}", (rank,)) if isinstance(rank, int) else (f"the rank of {rank}", ())
    return [DiagnosisFinding(
        "slow", "slow-rank", subject,
        f"{subject[:1].upper()}{subject[1:]} computes {ratio:.2f} x as long as the others, which wait for it in their"
        " collectives.",
        (f"its exposed communication is {exposed:.1%} of its time",),
        0.8, ratio, 1 - 1 / ratio, "persistent", None, ranks,
    )]  # fmt: skip
