"""What skipping marked paths does to spraying: many senders, their path sets, and the queues of one plane's uplinks.

Packet by packet, in slots of one frame time. In each slot every sender sends one packet on the next path of its own
rotation, and every link forwards a little more than its even share. A packet that joins a queue may be marked, with a
probability that rises between two thresholds; the sender knows it one round trip later and skips that path once (arXiv
2605.04333, section 4; a skipped path that comes round is good again, and this packet moves on). One stage of one plane,
no congestion window, no loss: enough to see balance, nothing more.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.fabric.theory.balls import pick_subsets
from weft.fabric.theory.estimate import Estimate, mean

_LOOK_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Plane:
    """The uplinks of one T0 and the senders below it."""

    links: int
    """Uplinks."""
    paths: int
    """Paths to another T0, equally many on each uplink."""
    senders: int
    """NICs below the T0, all sending to other T0s at full rate."""
    chosen: int
    """Entropy values of each sender in this plane."""
    load: float
    """Share of the uplinks' rate that the senders ask for; below 1, or no queue would ever drain."""
    round_trip: int
    """Slots from sending a packet to knowing its mark."""
    mark_from: float
    """Queue, in frames, above which packets begin to be marked."""
    mark_all: float
    """Queue, in frames, above which every packet is marked."""


@dataclass(frozen=True, slots=True)
class Balance:
    """How evenly the links were used in the second half of a run."""

    load: Estimate
    """Load of the fullest link over that of a mean one."""
    queue: Estimate
    """Mean over time of the longest queue, in frames."""


def simulated(generator: np.random.Generator, plane: Plane, *, slots: int, trials: int, skip: bool) -> Balance:
    """Run `trials` planes for `slots` frame times, with or without the skipping of marked paths."""
    runs = np.array([_run(generator, plane, slots, skip=skip) for _ in range(trials)])
    return Balance(mean(runs[:, 0]), mean(runs[:, 1]))


def _run(generator: np.random.Generator, plane: Plane, slots: int, *, skip: bool) -> tuple[float, float]:
    everyone = np.arange(plane.senders)
    chosen = pick_subsets(generator, plane.senders, plane.chosen, plane.paths)
    picks = generator.permuted(chosen * plane.links // plane.paths, axis=1)
    skipped = np.zeros(picks.shape, dtype=np.bool_)
    cursor = generator.integers(0, plane.chosen, plane.senders)
    heard: list[tuple[NDArray[np.int64], NDArray[np.int64]] | None] = [None] * plane.round_trip
    queue, carried = np.zeros(plane.links), np.zeros(plane.links)
    chances = generator.random((slots, plane.senders), dtype=np.float32)
    mean_load = plane.senders / plane.links
    service, warm, longest = mean_load / plane.load, slots // 2, 0.0
    for slot in range(slots):
        if (news := heard[slot % plane.round_trip]) is not None:
            skipped[news] = True
        cursor = _next_good(cursor, skipped, everyone)
        joined = picks[everyone, cursor]
        arrivals = np.bincount(joined, minlength=plane.links)
        queue += arrivals
        depth = (queue[joined] - plane.mark_from) / (plane.mark_all - plane.mark_from)
        marked = np.flatnonzero(chances[slot] < depth)
        heard[slot % plane.round_trip] = (everyone[marked], cursor[marked]) if skip else None
        queue = np.maximum(queue - service, 0.0)
        cursor = (cursor + 1) % plane.chosen
        if slot >= warm:
            carried += arrivals
            longest += float(queue.max())
    rounds = slots - warm
    return float(carried.max() / (rounds * mean_load)), longest / rounds


def _next_good(cursor: NDArray[np.int64], skipped: NDArray[np.bool_], everyone: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each sender's next path; the first that is skipped turns good again, those after it stay skipped."""
    met = skipped[everyone, cursor]
    skipped[everyone[met], cursor[met]] = False
    for _ in range(_LOOK_AHEAD):
        if not met.any():
            break
        cursor = np.where(met, (cursor + 1) % skipped.shape[1], cursor)
        met &= skipped[everyone, cursor]
    return cursor
