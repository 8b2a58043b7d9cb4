"""Faults as they come and go: what is wrong with each port, and what the engine's columns say of it."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import LimitReachedError
from weft.netsim.kernel import layout
from weft.netsim.kernel.fabric_columns import MOST_SLOWED, rate_row, set_ways
from weft.netsim.model.faults import LOSS_ONE, SLOW_ONE, LinkFaultChange
from weft.netsim.model.network import QueueLimits, grants

_LIMITS = [layout.ECN_LOW, layout.ECN_HIGH, layout.DATA_LIMIT, layout.CONTROL_LIMIT]
Found = tuple[int, int, bool]
"""A NIC that sees one of its ports change: NIC, plane, whether the port is up."""


class LinkFaultState(NamedTuple):
    """What is kept of the faults of a run."""

    rates: list[int]
    """Rates that ports have had, in bit/s."""
    losses: list[int]
    """Shares of packets that ports have lost."""
    faults: dict[int, dict[int, LinkFaultChange]]
    """Port to the faults in force on it, by number."""
    full_bps: dict[int, int]
    """Port to its rate without faults."""
    slowed: list[int]
    """Grades that faults have made, each by the one that it was made from and the share of the rate left."""


class LinkFaults:
    """What is wrong with every port."""

    def __init__(self, fabric: layout.Fabric, row_of: NDArray[np.int64], rates: int, slot_ps: int) -> None:
        self._fabric, self._row_of, self._slot_ps = fabric, row_of, slot_ps
        self._rates = fabric.rates[:rates, layout.BPS].tolist()
        self._losses = [0]
        self._faults: dict[int, dict[int, LinkFaultChange]] = {}
        self._full_bps: dict[int, int] = {}
        self._full_grades = fabric.ports[:, layout.GRADE].copy()
        self._slowed: list[int] = []

    def faults_of(self, port: int) -> Iterable[int]:
        """Return the faults in force on a port."""
        return self._faults.get(port, {})

    def state(self) -> "LinkFaultState":
        """Return what is kept of a run: the columns hold the rest."""
        return LinkFaultState(self._rates, self._losses, self._faults, self._full_bps, self._slowed)

    def set_state(self, state: "LinkFaultState") -> None:
        """Take up what was kept."""
        self._rates, self._losses, self._faults, self._full_bps, self._slowed = state

    def change(self, change: LinkFaultChange, slot: int) -> list[Found]:
        """Let a fault begin or end on its links before `slot`; return the NICs that see it."""
        found: list[Found] = []
        for link in change.links:
            was_down = self.is_down(2 * link)
            for port in (2 * link, 2 * link + 1):
                self._change_port(port, change, slot)
            is_down = self.is_down(2 * link)
            nic = self._nic_of(2 * link)
            if is_down != was_down and nic is not None:
                found.append((*nic, not is_down))
        return found

    def _nic_of(self, port: int) -> tuple[int, int] | None:
        """Return the NIC and plane whose own port this is."""
        row = int(self._row_of[port])
        nodes = self._fabric.nodes
        number = int(np.searchsorted(nodes[:, layout.FIRST_PORT], row, side="right")) - 1
        node = nodes[number]
        if node[layout.TIER] != layout.AT_NICS:
            return None
        local, plane = divmod(row - int(node[layout.FIRST_PORT]), int(self._fabric.figures[layout.PLANES]))
        return int(node[layout.FIRST_NIC]) + local, plane

    def is_down(self, port: int) -> bool:
        """Return whether a link is seen to be down from one of its ports: a black hole is not."""
        return any(each.effect == "down" for each in self._faults.get(port, {}).values())

    def _change_port(self, port: int, change: LinkFaultChange, slot: int) -> None:
        faults = self._faults.setdefault(port, {})
        if change.begins:
            faults[change.fault] = change
        else:
            faults.pop(change.fault, None)
        row = self._fabric.ports[int(self._row_of[port])]
        keep, slow = LOSS_ONE, SLOW_ONE
        for each in faults.values():
            if each.effect == "loss":
                keep = keep * (LOSS_ONE - each.amount) // LOSS_ONE
            elif each.effect == "slow":
                slow = slow * each.amount // SLOW_ONE
        down = any(each.effect in ("down", "swallow") for each in faults.values())
        row[layout.LINK_FAULT] = self._number_of(layout.LINK_DOWN if down else LOSS_ONE - keep)
        full_bps = self._full_bps.setdefault(port, self._rates[int(row[layout.RATE])])
        row[layout.GRADE] = self._grade_of(int(self._full_grades[self._row_of[port]]), slow)
        self._set_rate(row, max(1, full_bps * slow // SLOW_ONE), slot)

    def _number_of(self, loss: int) -> int:
        if loss not in self._losses:
            self._losses.append(loss)
            self._check(len(self._losses), len(self._fabric.link_faults))
            self._fabric.link_faults[len(self._losses) - 1] = loss
        return self._losses.index(loss)

    def _grade_of(self, full: int, slow: int) -> int:
        """Return the grade of a port of grade `full` at a share of its rate: its queues hold as long as before."""
        if slow == SLOW_ONE:
            return full
        made_of = full * 2 * SLOW_ONE + slow
        grades = self._fabric.grades
        if made_of not in self._slowed:
            self._slowed.append(made_of)
            self._check(len(self._slowed), MOST_SLOWED)
            made = grades[len(grades) - len(self._slowed)]
            made[:] = grades[full]
            low, high, data, control = (int(grades[full, at]) for at in _LIMITS)
            frame = int(self._fabric.figures[layout.FULL])
            scaled = QueueLimits(low, high, data, control).scaled(slow, SLOW_ONE, frame)
            made[_LIMITS] = scaled.ecn_low, scaled.ecn_high, scaled.data, scaled.control
        return len(grades) - 1 - self._slowed.index(made_of)

    def _set_rate(self, row: NDArray[np.int32], rate_bps: int, slot: int) -> None:
        """Change the rate from `slot` on; what was granted before stays."""
        was_bps = self._rates[int(row[layout.RATE])]
        if rate_bps == was_bps:
            return
        credited = int(row[layout.CREDITED])
        if credited < slot - 1:
            since = grants(was_bps, self._slot_ps, slot - 1) - grants(was_bps, self._slot_ps, credited)
            row[layout.CREDIT] = min(0, int(row[layout.CREDIT]) + since)
            row[layout.CREDITED] = slot - 1
        if rate_bps not in self._rates:
            self._rates.append(rate_bps)
            self._check(len(self._rates), len(self._fabric.rates))
            self._fabric.rates[len(self._rates) - 1] = rate_row(rate_bps, self._slot_ps)
        row[layout.RATE] = self._rates.index(rate_bps)
        fabric = self._fabric
        set_ways(row, fabric.grades, fabric.rates, ordered=bool(fabric.figures[layout.ORDERED]))

    @staticmethod
    def _check(count: int, most: int) -> None:
        if count > most:
            raise LimitReachedError(f"the faults make more than {most} different rates or losses; use fewer amounts")
