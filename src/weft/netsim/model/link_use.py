"""What links carried over time: bytes, deepest queues, marks, trims and drops of every port between switches, by bin.

The ports of NICs are summed by T0 and plane, so that a whole fabric stays small; where a run is long, neighbouring bins
are merged. Both simulators fill the same table of counters, which is read and cleared here at the end of each bin.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.fabric.graph.shape import TWO_TIERS
from weft.netsim.model.network import Network

METERS = 5
METER_BYTES, METER_PEAK, METER_MARKED, METER_TRIMMED, METER_DROPPED = range(METERS)
"""Of a port since the last bin: bytes put on its link, its deepest data queue, packets that left it with a mark, and
packets that it trimmed and refused."""
MOST_CELLS = 8_000_000
"""Rows x bins that are held; before there are more, neighbouring bins are merged."""
_NONE = -1
_BITS_PER_BYTE, _PS_PER_SECOND, _US_PER_SECOND = 8, 10**12, 10**6
Table = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LinkUse:
    """What links carried: a table for each bin, its rows those of `place`."""

    ends_ps: tuple[int, ...]
    """Ends of the bins, which may be longer than those of the rest of a report."""
    place: Table
    """Of every row: tier of the link (0 for all NICs of a T0), plane, lower switch, its uplink and the switch above (-1
    for NICs), 1 where it leads down, how many links it stands for, and their bits per second together."""
    table: Table
    """Bins x rows x bytes, deepest queue, marked, trimmed, dropped."""

    def shares(self) -> Any:
        """Return what every row used of its rate in every bin."""
        spans_s = np.diff(np.array(self.ends_ps, np.float64), prepend=0)[:, None] / _PS_PER_SECOND
        return self.table[:, :, METER_BYTES] * _BITS_PER_BYTE / (spans_s * self.place[None, :, -1])

    def worst(self, count: int) -> list[int]:
        """Return the rows out of switches that were worst: by packets trimmed and refused, by longest wait, by use."""
        lost = self.table[:, :, METER_TRIMMED:].sum(axis=(0, 2))
        used = self.table[:, :, METER_BYTES].sum(axis=0) / self.place[:, -1]
        # What NICs send waits in the NICs, and says nothing of the fabric.
        left_out = (self.place[:, 0] == 0) & (self.place[:, 5] == 0)
        order = np.lexsort((-used, -self.waits_us(), -lost, left_out))
        return [row for row in order[:count].tolist() if not left_out[row] and used[row] > 0]

    def waits_us(self) -> Any:
        """Return for every row how long its deepest queue takes to empty."""
        each_bps = self.place[:, -1] / self.place[:, -2]
        return self.table[:, :, METER_PEAK].max(axis=0, initial=0) * _BITS_PER_BYTE * _US_PER_SECOND / each_bps

    def as_json(self, count: int) -> list[dict[str, Any]]:
        """Return the worst links as plain values (docs/json.md)."""
        shares, waits_us = self.shares(), self.waits_us()
        return [
            {
                "link": self.name(row),
                "busiest_bin": round(float(shares[:, row].max()), 4),
                "queue_peak_bytes": int(self.table[:, row, METER_PEAK].max()),
                "wait_us": round(float(waits_us[row]), 4),
                "marked": int(self.table[:, row, METER_MARKED].sum()),
                "trimmed": int(self.table[:, row, METER_TRIMMED].sum()),
                "dropped": int(self.table[:, row, METER_DROPPED].sum()),
            }
            for row in self.worst(count)
        ]

    def name(self, row: int) -> str:
        """Return a row's link, or the T0 of its NICs, as `weft fabric` calls it, and its direction."""
        tier, plane, lower, uplink, _, down, _, _ = self.place[row].tolist()
        if tier == 0:
            return f"t0-p{plane}-i{lower} {'to' if down else 'from'} its NICs"
        return f"link{tier}-p{plane}-i{lower}-u{uplink} {'down' if down else 'up'}"


class LinkMeter:
    """Adds up what a simulator's table of counters holds at the end of each bin."""

    def __init__(self, network: Network, most_cells: int = MOST_CELLS) -> None:
        self._most_cells = most_cells
        tier = np.repeat(network.topology.links.stage.astype(np.int64), 2)
        place = _places(network, tier)
        # All NICs of a T0 are one row in each direction.
        self._place, first, self._row = np.unique(place, axis=0, return_index=True, return_inverse=True)
        self._row = self._row.reshape(-1)
        rates = np.repeat(network.rate_bps, 2)
        self._rate = np.bincount(self._row, rates, len(first)).astype(np.int64)
        self._count = np.bincount(self._row, minlength=len(first))
        self._ends_ps: list[int] = []
        self._tables: list[Table] = []
        self._merged = 1
        self._open = 0

    def close(self, end_ps: int, meters: Table) -> None:
        """Take in the counters of a bin and clear them."""
        table = np.zeros((len(self._place), METERS), np.int64)
        for column in range(METERS):
            if column == METER_PEAK:
                np.maximum.at(table[:, column], self._row, meters[:, column])
            else:
                np.add.at(table[:, column], self._row, meters[:, column])
        meters[:] = 0
        if self._open:
            self._ends_ps[-1] = end_ps
            self._tables[-1] = _merge(self._tables[-1], table)
        else:
            self._ends_ps.append(end_ps)
            self._tables.append(table)
        self._open = (self._open + 1) % self._merged
        if len(self._tables) * len(self._place) > self._most_cells and len(self._tables) > 1 and not self._open:
            self._halve()

    def _halve(self) -> None:
        pairs = range(0, len(self._tables), 2)
        self._open = self._merged * (len(self._tables) % 2)
        self._ends_ps = [self._ends_ps[min(at + 1, len(self._ends_ps) - 1)] for at in pairs]
        self._tables = [
            _merge(self._tables[at], self._tables[at + 1]) if at + 1 < len(self._tables) else self._tables[at]
            for at in pairs
        ]
        self._merged *= 2

    def use(self) -> LinkUse:
        """Return what was added up."""
        place = np.concatenate((self._place, self._count[:, None], self._rate[:, None]), axis=1)
        table = np.array(self._tables, np.int64).reshape(-1, len(self._place), METERS)
        return LinkUse(tuple(self._ends_ps), place, table)


def _merge(one: Table, other: Table) -> Table:
    found = one + other
    found[:, METER_PEAK] = np.maximum(one[:, METER_PEAK], other[:, METER_PEAK])
    return found


def _places(network: Network, tier: Table) -> Table:
    """Return for every port: tier, plane, lower switch, its uplink, the switch above, and whether it leads down."""
    shape = network.shape
    link = np.arange(len(network.topology.links))
    plane = network.topology.links.plane.astype(np.int64)
    lower, uplink, upper = (np.full(len(link), _NONE, np.int64) for _ in range(3))
    for stage, grid in enumerate(shape.link_grids):
        here = network.topology.links.stage == stage
        within = link[here] - grid.first
        if stage == 0:
            lower[here] = (within % shape.hosts) // shape.down
            continue
        count, ups = (shape.t0, shape.up) if stage == 1 else (shape.t1, shape.t1_up)
        lower[here] = within // ups % count
        uplink[here] = within % ups
        if stage > 1:
            upper[here] = lower[here] % shape.pod_t1 * shape.group_t2 + uplink[here] // shape.bundle
        elif shape.tiers == TWO_TIERS:
            upper[here] = uplink[here] // shape.bundle
        else:
            upper[here] = lower[here] // shape.pod_t0 * shape.pod_t1 + uplink[here]
    down = np.tile(np.array([0, 1], np.int64), len(link))
    return np.stack((tier, *(np.repeat(each, 2) for each in (plane, lower, uplink, upper)), down), axis=1)
