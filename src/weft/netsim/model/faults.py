"""The faults of a scenario as changes of single ports at given times.

Names are resolved against the fabric once, before anything runs; a name that does not exist is reported with what does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from weft.core.errors import UsageError
from weft.fabric.graph.naming import Kind
from weft.fabric.graph.topology import Topology
from weft.specs.scenario import FaultSpec

Effect = Literal["down", "swallow", "loss", "slow"]
"""What a port suffers: down, silently losing everything, losing a share, or sending at a share of its rate."""

_KINDS: dict[str, tuple[tuple[Kind, ...], Effect]] = {
    "link-down": (("link",), "down"),
    "port-down": (("link", "nic"), "down"),
    "optic-down": (("optic",), "down"),
    "switch-down": (("switch",), "down"),
    "black-hole": (("link", "switch", "optic"), "swallow"),
    "loss": (("link", "switch", "optic", "nic"), "loss"),
    "slow": (("link", "switch", "optic", "nic"), "slow"),
    "flap": (("link", "switch", "optic", "nic"), "down"),
}
_MOST_FLAPS = 100_000
LOSS_ONE = 1 << 32
"""Shares of lost packets are whole numbers out of this."""
SLOW_ONE = 1 << 16
"""Shares of the rate are whole numbers out of this."""


@dataclass(frozen=True)
class LinkFaultChange:
    """One effect beginning or ending on some links at one time."""

    at_ps: int
    """When."""
    fault: int
    """Number of the fault that it belongs to."""
    links: tuple[int, ...]
    """The links, both directions."""
    effect: Effect
    """What they suffer."""
    begins: bool
    """Whether it begins or ends."""
    amount: int = 0
    """Share of packets lost out of `LOSS_ONE`, or of the rate left out of `SLOW_ONE`."""


class Reconvergence:
    """What routing knows of dead links: everything, but late, or nothing ever."""

    def __init__(self, late_ps: int | None, changes: Sequence[LinkFaultChange]) -> None:
        seen = () if late_ps is None else (change for change in changes if change.effect == "down")
        self._news = [((late_ps or 0) + change.at_ps, change) for change in seen]
        self._learned = 0
        self._faults: dict[int, int] = {}

    def next_ps(self) -> int | None:
        """Return when routing learns something next."""
        return self._news[self._learned][0] if self._learned < len(self._news) else None

    def dead(self, now_ps: int) -> frozenset[int] | None:
        """Return all links that routing now knows to be dead, or nothing where that is no news."""
        before = self._learned
        while self._learned < len(self._news) and self._news[self._learned][0] <= now_ps:
            change = self._news[self._learned][1]
            self._learned += 1
            for link in change.links:
                self._faults[link] = self._faults.get(link, 0) + (1 if change.begins else -1)
        return None if self._learned == before else frozenset(link for link, faults in self._faults.items() if faults)


def changes_of(faults: tuple[FaultSpec, ...], topology: Topology) -> tuple[LinkFaultChange, ...]:
    """Return every change, in order of time."""
    found: list[LinkFaultChange] = []
    for number, fault in enumerate(faults):
        links, effect = links_of(fault, topology), _KINDS[fault.kind][1]
        amount = _amount(fault, effect)
        for begins, ends in _spans(fault):
            found.append(LinkFaultChange(begins, number, links, effect, begins=True, amount=amount))
            if ends is not None:
                found.append(LinkFaultChange(ends, number, links, effect, begins=False, amount=amount))
    return tuple(sorted(found, key=lambda change: change.at_ps))


def links_of(fault: FaultSpec, topology: Topology) -> tuple[int, ...]:
    """Return the links that a fault is about."""
    kinds = _KINDS[fault.kind][0]
    found = named_links(topology, fault.target, kinds)
    nic_side = topology.links.lower[list(found)] < topology.nics
    if fault.kind == "port-down" and not bool(np.all(nic_side)):
        raise UsageError(f"{fault.target} is no port of a NIC; a port-down names a link0 or a NIC")
    return found


def named_links(topology: Topology, name: str, kinds: tuple[Kind, ...]) -> tuple[int, ...]:
    """Return the links of what is called `name`: a link itself, all of a switch, an optic or a NIC."""
    kind, dense = topology.names.find(name, kinds)
    links = topology.links
    if kind == "link":
        return (dense,)
    if kind == "optic":
        hit = (links.lower_optic == dense) | (links.upper_optic == dense)
    else:
        node = dense if kind == "nic" else topology.switch_node(dense)
        hit = (links.lower == node) | (links.upper == node)
    found = tuple(int(link) for link in np.flatnonzero(hit))
    if not found:
        raise UsageError(f"{name} carries no link; name one that does")
    return found


def _amount(fault: FaultSpec, effect: Effect) -> int:
    share = fault.amount or 0.0
    return {"loss": round(share * LOSS_ONE), "slow": max(1, round(share * SLOW_ONE))}.get(effect, 0)


def _spans(fault: FaultSpec) -> list[tuple[int, int | None]]:
    """Return when the fault begins and ends, once, or at every flap."""
    end = None if fault.lasts is None else fault.at + fault.lasts
    if fault.kind != "flap":
        return [(fault.at, end)]
    assert fault.period is not None, "the spec checks that a flap has a period"
    share = 0.5 if fault.amount is None else fault.amount
    down = max(1, round(fault.period * share))
    if end is None:
        raise UsageError(f"the flap of {fault.target} never ends; add lasts = '10 ms'")
    count = -(-(end - fault.at) // fault.period)
    if count > _MOST_FLAPS:
        raise UsageError(f"{count:,} flaps of {fault.target} are too many; at most {_MOST_FLAPS:,}")
    starts = [fault.at + n * fault.period for n in range(count)]
    return [(start, min(start + down, end)) for start in starts]
