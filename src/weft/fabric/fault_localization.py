"""Who loses the packets: from probes that went out and came back, or not, to the links that are to blame.

A probe crosses some links out and the same ones back. A NIC's probe to its T0 crosses one link, to a T1 two: where the
first comes back and the second does not, the link between T0 and T1 is at fault (the Clustermapper of arXiv
2605.04333). Chance is part of it: one lost probe proves nothing, so a path is bad only where its losses are too many
for a healthy network, and links are blamed by likelihood, the one that explains most first, until all is explained.
Each of them is then spared for once: where others explain it better, it is they.

Pure: the prober sends probes. Directions are not distinguished: loss here is that of a round trip.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from scipy.special import bdtrc

from weft.fabric.addressing.forwarding import usids_along
from weft.fabric.addressing.paths import links_on_path
from weft.fabric.addressing.srv6 import EvSpace, UsidPlan, pack
from weft.fabric.graph.shape import Shape
from weft.fabric.graph.topology import Topology

_FLOOR = 1e-9
"""Survival of what never comes back, so that its logarithm is a number."""
_STEPS = 60
_HALF_WIDTH = 1.92
"""Fall of the log-likelihood at the ends of a 95 % interval (chi-squared with one degree of freedom, halved)."""
_WORTH_ANOTHER = 3.0
"""Gain of log-likelihood that makes another explanation better than the first one found."""
_FEWEST_OF_A_PART = 2
"""Dead links that make a switch or a NIC the simpler explanation."""


class Health(Enum):
    """What is known of a link."""

    FINE = "fine"
    LOSSY = "lossy"
    DEAD = "dead"
    HIDDEN = "hidden"
    """Every probe that would have crossed it dies on the way to it, or none was sent."""


@dataclass(frozen=True)
class PathObservation:
    """What came of the probes of one path."""

    links: tuple[int, ...]
    """The links that each of them crosses, out and back."""
    sent: int
    """How many were sent."""
    came: int
    """How many came back."""

    @property
    def lost(self) -> int:
        """Return how many did not come back."""
        return self.sent - self.came


@dataclass(frozen=True)
class Care:
    """How sure the judge wants to be."""

    background: float = 2e-4
    """Share of round trips that a healthy path may lose."""
    false_alarm: float = 1e-4
    """Chance that a network in which nothing is wrong gets any path called bad."""


@dataclass(frozen=True)
class LinkVerdict:
    """What is said of one link."""

    link: int
    health: Health
    loss: float
    """Share of round trips over it that are lost, most likely."""
    low: float
    """Lower end of the 95 % interval of that share."""
    high: float
    """Upper end."""
    probes: int
    """Probes that the verdict rests on: those that were to cross it."""


@dataclass(frozen=True)
class ProbePath:
    """A way for probes: out to a switch and back over the same links."""

    source: int
    """The NIC that sends and receives."""
    links: tuple[int, ...]
    """The links on the way out."""
    carrier: int
    """The address that takes them there and back."""


def probe_paths(topology: Topology, plan: UsidPlan) -> list[ProbePath]:
    """Return the ways by which NICs see every link: each NIC to each switch above it and back."""
    found: list[ProbePath] = []
    for nic in range(topology.nics):
        fringe: list[tuple[int, ...]] = [()]
        while fringe:
            fringe = [way for done in fringe for way in _further(topology, nic, done)]
            for way in fringe:
                usids = usids_along(topology, plan, nic, [*way, *reversed(way)])
                found.append(ProbePath(nic, way, pack(usids, plan.block)))
    return found


def _further(topology: Topology, nic: int, done: tuple[int, ...]) -> list[tuple[int, ...]]:
    node = nic
    for link in done:
        node = topology.far_end(link, node)
    near = topology.neighbours(node)
    up = [int(link) for link in near.link if int(topology.links.lower[link]) == node]
    return [(*done, link) for link in up]


def blame(observations: Sequence[PathObservation], links: int, care: Care | None = None) -> list[LinkVerdict]:
    """Return the verdict on every link from 0 to `links` - 1."""
    return _Judge(observations, links, care or Care()).verdicts()


def parts_to_blame(topology: Topology, verdicts: Sequence[LinkVerdict]) -> list[str]:
    """Return the switches and NICs all of whose links in sight are dead: one broken part explains them better."""
    dead = {verdict.link for verdict in verdicts if verdict.health is Health.DEAD}
    hidden = {verdict.link for verdict in verdicts if verdict.health is Health.HIDDEN}
    names: list[str] = []
    for node in range(topology.nodes):
        own = {int(link) for link in topology.neighbours(node).link}
        if len(own & dead) >= _FEWEST_OF_A_PART and own <= dead | hidden:
            names.append(topology.name_of_node(node))
    return names


def denials(shape: Shape, links: Iterable[int]) -> dict[tuple[int, int], list[int]]:
    """Return the EVs that each pair of NICs had better not use: those whose path crosses one of these links."""
    bad = frozenset(links)
    evs = range(EvSpace(shape).count)
    found: dict[tuple[int, int], list[int]] = {}
    for source in range(shape.hosts if bad else 0):
        for destination in range(shape.hosts):
            if source != destination:
                denied = [ev for ev in evs if bad.intersection(links_on_path(shape, source, destination, ev))]
                if denied:
                    found[source, destination] = denied
    return found


class _Judge:
    """One case: what was seen, and who has been blamed so far with how much loss."""

    def __init__(self, observations: Sequence[PathObservation], links: int, care: Care) -> None:
        self.seen = [one for one in observations if one.sent > 0]
        self.links = links
        self.care = care
        self.alarm = care.false_alarm / max(1, len(self.seen))
        self.through: dict[int, list[PathObservation]] = {}
        for one in self.seen:
            for link in one.links:
                self.through.setdefault(link, []).append(one)
        self.loss: dict[int, float] = {}

    def verdicts(self) -> list[LinkVerdict]:
        self._explain(spared=frozenset())
        for link in sorted(self.loss):
            self._try_without(link)
        return [self._verdict(link) for link in range(self.links)]

    def _explain(self, spared: frozenset[int]) -> None:
        """Blame link after link, but none of the spared, until all is explained; then let the superfluous go."""
        # Every round blames one more link, so there are at most as many rounds as links.
        for _ in range(self.links):
            if not self._blame_one_more(spared):
                break
        self._acquit()

    def _try_without(self, link: int) -> None:
        """Look for others who explain it better than a link that was taken first, as it explained a bit of much."""
        if link not in self.loss:
            return
        before, least = dict(self.loss), self._total() + _WORTH_ANOTHER
        del self.loss[link]
        self._explain(spared=frozenset({link}))
        if self._total() <= least:
            self.loss = before

    def _blame_one_more(self, spared: frozenset[int]) -> bool:
        """Blame the link that explains most of what is not explained yet; say whether there was one."""
        open_cases = [one for one in self.seen if not self._explained(one, self.loss)]
        suspects = {link for one in open_cases for link in one.links} - set(self.loss) - spared
        best: tuple[float, int] | None = None
        for link in sorted(suspects):
            before = self._likelihood(link, 0.0)
            gain = self._likelihood(link, self._fit(link)) - before
            if best is None or gain > best[0]:
                best = (gain, link)
        if best is None or best[0] <= 0:
            return False
        self.loss[best[1]] = self._fit(best[1])
        # The others move when one is added: what they were blamed for may have been its doing.
        for link in self.loss:
            self.loss[link] = self._fit(link)
        return True

    def _acquit(self) -> None:
        """Let everybody go without whom all is explained as well."""
        for link in sorted(self.loss, key=lambda one: self.loss[one]):
            others = {one: share for one, share in self.loss.items() if one != link}
            if all(self._explained(one, others) for one in self.through[link]):
                self.loss = others

    def _total(self) -> float:
        """Return the log-likelihood of all that was seen, the blamed as they are."""
        return sum(self._log_chance(one, self.loss) for one in self.seen)

    def _explained(self, one: PathObservation, loss: Mapping[int, float]) -> bool:
        """Return whether the losses of a path are no more than chance makes of what is known."""
        # The upper tail of the binomial distribution: as many losses or more.
        return one.lost <= 0 or bdtrc(one.lost - 1, one.sent, 1 - self._survival(one, loss)) >= self.alarm

    def _survival(self, one: PathObservation, loss: Mapping[int, float]) -> float:
        share = 1 - self.care.background
        for link in one.links:
            share *= 1 - loss.get(link, 0.0)
        return share

    def _likelihood(self, link: int, share: float) -> float:
        """Return the log-likelihood of all that crossed `link` if it lost `share`, the others blamed as they are."""
        loss = {**self.loss, link: share}
        return sum(self._log_chance(one, loss) for one in self.through[link])

    def _log_chance(self, one: PathObservation, loss: Mapping[int, float]) -> float:
        """Return the log-likelihood of what came of one path."""
        survival = min(max(self._survival(one, loss), _FLOOR), 1 - _FLOOR)
        return one.came * math.log(survival) + one.lost * math.log1p(-survival)

    def _fit(self, link: int) -> float:
        """Return the loss of a link that makes what was seen most likely; the likelihood has a single peak."""
        low, high = 0.0, 1.0
        for _ in range(_STEPS):
            third = (high - low) / 3
            if self._likelihood(link, low + third) < self._likelihood(link, high - third):
                low += third
            else:
                high -= third
        return (low + high) / 2

    def _interval(self, link: int, peak: float) -> tuple[float, float]:
        wanted = self._likelihood(link, peak) - _HALF_WIDTH

        def crossing(inside: float, outside: float) -> float:
            if self._likelihood(link, outside) >= wanted:
                return outside
            for _ in range(_STEPS):
                middle = (inside + outside) / 2
                inside, outside = (middle, outside) if self._likelihood(link, middle) >= wanted else (inside, middle)
            return inside

        return crossing(peak, 0.0), crossing(peak, 1.0)

    def _verdict(self, link: int) -> LinkVerdict:
        through = self.through.get(link, [])
        probes = sum(one.sent for one in through)
        if link in self.loss:
            dead = not any(one.came for one in through)
            low, high = self._interval(link, self.loss[link])
            return LinkVerdict(link, Health.DEAD if dead else Health.LOSSY, self.loss[link], low, high, probes)
        if not any(self._reached(link, one) for one in through):
            return LinkVerdict(link, Health.HIDDEN, 0.0, 0.0, 1.0, probes)
        low, high = self._interval(link, fitted := self._fit(link))
        return LinkVerdict(link, Health.FINE, fitted, low, high, probes)

    def _reached(self, link: int, one: PathObservation) -> bool:
        """Return whether a path says anything about a link: no dead one lies on it besides."""
        dead = (other for other in one.links if other != link and other in self.loss)
        return not any(not any(seen.came for seen in self.through[other]) for other in dead)
