"""Failures met while running: how often, who is touched, what is lost, and how long a job stands still.

Sources: the arithmetic of arXiv 2605.04333, sections 2 and 5 (entropy values drawn at random from each plane; one flap
costs a connection about one packet); Takacs, Introduction to the Theory of Queues, 1962 (the share of time
that an infinite-server system is busy, 1 - exp(-rate x duration), for outages that start at random).
"""

import math

import numpy as np

from weft.core.units import PICOSECONDS_PER_SECOND
from weft.fabric.theory.balls import pick_subsets
from weft.fabric.theory.estimate import Estimate, mean, mean_share, share

_FIT_MINUTES = 60e9
_SECONDS_PER_MINUTE = 60.0


def flaps_per_minute(links: int, rate_fit: int) -> float:
    """Return how often a minute some link of many goes down, from the rate of one in failures per 10^9 hours."""
    return links * rate_fit / _FIT_MINUTES


def touched_share(paths: int, through: int, chosen: int) -> float:
    """Return the probability that a random choice of paths uses a part that `through` of the `paths` cross.

    With one path through the part this is chosen / paths: 32 of 128 gives the published "about a quarter".
    """
    if chosen > paths - through:
        return 1.0
    missed = sum(math.log1p(-through / (paths - taken)) for taken in range(chosen))
    return -math.expm1(missed)


def lost_in_order(feedback_packets: int, values: int) -> int:
    """Return the packets that one dead entropy value swallows before its first loss is known, in fixed order.

    `feedback_packets` is what the sender sends between the first lost packet and knowing of it. The same value comes
    round once in `values` packets, so it is the ratio, rounded up.
    """
    return -(-feedback_packets // values)


def lost_reshuffled(feedback_packets: int, values: int) -> float:
    """Return the expected packets that one dead entropy value swallows where every rotation is shuffled anew.

    The path dies at a random packet, so the first loss stands at place x of its rotation with probability
    (x + 1)/E^2 + (E - 1)/(2 E^2). Later uses fall evenly into their rotations: max(0, (F + x - E)/E) of them come too
    early. For a large set that is T/R + 7/12 from one rotation on.
    """
    place = np.arange(values)
    chance = (place + 1 + (values - 1) / 2) / values**2
    return 1 + float(np.sum(chance * np.maximum(0, feedback_packets + place - values))) / values


def stalled_share(per_minute: float, outage_ps: float) -> float:
    """Return the share of time in which at least one outage lasts: 1 - exp(-rate x duration)."""
    return -math.expm1(-per_minute / _SECONDS_PER_MINUTE * outage_ps / PICOSECONDS_PER_SECOND)


def own_sets_share(destinations: int, dead: int, spines: int) -> float:
    """Return the share of destination T0s that need a next-hop set of their own.

    Each of `spines` T1s has `dead` of its links to the `destinations` T0s down, at random: 1 - (1 - dead/T0s)^T1s.
    """
    return 1 - (1 - dead / destinations) ** spines


def still_whole(ports: int, nics: int, planes: int) -> float:
    """Return the probability that no NIC has lost two ports, with `ports` random NIC ports down.

    The birthday problem without replacement: a product of (all - i p) / (all - i).
    """
    total = nics * planes
    terms = ((total - i * planes) / (total - i) for i in range(ports))
    return math.prod(max(0.0, term) for term in terms)


def simulated_touched(
    generator: np.random.Generator, paths: int, through: int, chosen: int, connections: int
) -> Estimate:
    """Estimate the share of connections that use a part, by drawing every connection's paths."""
    picks = pick_subsets(generator, connections, chosen, paths)
    return share(int((picks < through).any(axis=1).sum()), connections)


def simulated_lost(
    generator: np.random.Generator, values: int, feedback_packets: int, trials: int, *, shuffled: bool
) -> Estimate:
    """Estimate the packets that a dead entropy value swallows, packet by packet.

    The path dies at a random packet; every later use of it is lost until `feedback_packets` after the first loss.
    """
    rotations = 3 + feedback_packets // values
    places = generator.integers(0, values, (trials, rotations))
    if not shuffled:
        places[:] = places[:, :1]
    uses = places + np.arange(rotations) * values
    dies = generator.integers(0, values, (trials, 1))
    uses = np.where(uses >= dies, uses, np.iinfo(np.int64).max)
    first = uses.min(axis=1, keepdims=True)
    return mean((uses - first < feedback_packets).sum(axis=1, where=uses < np.iinfo(np.int64).max))


def simulated_stalled(
    generator: np.random.Generator, per_minute: float, outage_s: float, hours: float, replicas: int
) -> Estimate:
    """Estimate the share of time in which an outage lasts, by laying outages on a time line."""
    span = hours * 3600.0
    shares = np.empty(replicas)
    for replica in range(replicas):
        # Starts before the span matter where their outage reaches into it.
        count = generator.poisson(per_minute / _SECONDS_PER_MINUTE * (span + outage_s))
        starts = np.sort(generator.random(count) * (span + outage_s) - outage_s)
        ends = np.append(starts[1:], span)
        covered = np.minimum(ends, starts + outage_s) - np.maximum(starts, 0.0)
        shares[replica] = np.maximum(covered, 0.0).sum() / span
    return mean_share(shares)


def simulated_own_sets(
    generator: np.random.Generator, destinations: int, dead: int, spines: int, trials: int
) -> Estimate:
    """Estimate the share of destination T0s with a dead link, by breaking links of every T1."""
    shares = np.empty(trials)
    for trial in range(trials):
        broken = pick_subsets(generator, spines, dead, destinations)
        shares[trial] = np.unique(broken).size / destinations
    return mean_share(shares)


def simulated_still_whole(generator: np.random.Generator, ports: int, nics: int, planes: int, trials: int) -> Estimate:
    """Estimate how often no NIC loses two ports, by pulling `ports` different random ports."""
    whole = 0
    for _ in range(trials):
        pulled = generator.choice(nics * planes, ports, replace=False, shuffle=False)
        whole += int(np.unique(pulled // planes).size == ports)
    return share(whole, trials)


def simulated_slowest(generator: np.random.Generator, ports: int, nics: int, planes: int, trials: int) -> Estimate:
    """Estimate the share of its ports that the worst NIC keeps, by pulling `ports` different random ports."""
    kept = np.empty(trials)
    for trial in range(trials):
        pulled = generator.choice(nics * planes, ports, replace=False, shuffle=False)
        kept[trial] = 1 - np.unique(pulled // planes, return_counts=True)[1].max() / planes
    return mean_share(kept)
