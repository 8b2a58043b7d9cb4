"""What a campaign's fleet is made of: units that go out together, the parts in them, and how often each kind fails.

A unit is what a gang uses or loses as a whole: a node, or a scale-up domain where the scenario's ladder says "rack".
Rates come from the site; what the scenario writes wins. The counts are those of `planning.run.goodput`, so that closed
forms and campaigns speak of the same parts. Pure.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from weft.cluster.from_site import RACKS_PER_FEEDER, nodes_of
from weft.cluster.records.node import Location, Node
from weft.core.errors import UsageError
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.fabric.bill import cables_of
from weft.fabric.graph.shape import Shape, shape_of
from weft.specs.campaign import CampaignSpec, ComponentSpec
from weft.specs.site import SiteSpec

Numbers = npt.NDArray[np.int64]
FIT_HOURS = 1e9
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
_PS_PER_MS = PICOSECONDS_PER_SECOND // 1000
MEMORY_SHARE = 72 / 268
"""Share of GPU failures that are its memory's: HBM3 72 of 148 + 72 + 19 + 17 + 6 + 6 (arXiv 2407.21783, table 5)."""
RACKS_PER_ROW = 8
"""Racks behind one cooling unit; class only."""
STOPS, SLOWS, COOLS = "stops", "slows", "cools"
"""What a failure does to work on it: ends it, takes a part of its bandwidth, or throttles it."""


def ms(duration_ps: int) -> int:
    """Return a duration of a file in milliseconds."""
    return duration_ps // _PS_PER_MS


@dataclass(frozen=True, slots=True)
class PartClass:
    """One kind of part in a fleet."""

    name: str
    """Its name in scenarios and reports."""
    count: int
    """Parts of it."""
    groups: int
    """Groups that they stand in evenly: units, racks, switches, rows."""
    fit: float
    """Failures of one part in 10^9 hours."""
    effect: str
    check: str
    """The health check that reports it, which decides about its repair (`cluster.health.tickets`)."""
    spec: ComponentSpec

    @property
    def per_hour(self) -> float:
        """Return failures of all of them in an hour."""
        return self.fit * self.count / FIT_HOURS


class Fleet:
    """The units of a site that take part in a campaign."""

    def __init__(self, site: SiteSpec, spec: CampaignSpec) -> None:
        """Lay out the fleet, or raise where the site has not what the scenario asks for."""
        self.site, self.spec = site, spec
        node_gpus = site.node.gpus
        whole = site.fabric.gpus // node_gpus
        nodes = whole if spec.nodes is None else spec.nodes
        if nodes > whole:
            raise UsageError(f"the scenario has {nodes:,} nodes; site {site.name} has {whole:,}")
        self.trays = max(1, site.scale_up.gpus // node_gpus) if spec.ladder.unit == "rack" else 1
        """Nodes of a unit."""
        self.units = nodes // self.trays
        if not self.units:
            raise UsageError(f"the scenario has {nodes:,} nodes; a unit of {self.trays} is not whole")
        self.needed = spec.ladder.needed or self.trays
        if self.needed > self.trays:
            raise UsageError(f"ladder.needed = {self.needed}; a unit of site {site.name} has {self.trays} trays")
        self.node_gpus = node_gpus
        self.unit_gpus = self.needed * node_gpus
        """GPUs of a unit that a job uses."""
        self.whole_gpus = self.trays * node_gpus
        """All GPUs of a unit."""
        self.gpus = self.units * self.whole_gpus
        self.records: tuple[Node, ...] = self._records(nodes)
        places = [record.place for record in self.records]
        self.rack: Numbers = np.array([place.rack for place in places], dtype=np.int64)
        self.t0: Numbers = np.array([place.t0 for place in places], dtype=np.int64)
        self.feeder: Numbers = np.array([place.feeder for place in places], dtype=np.int64)
        self.row: Numbers = self.rack // RACKS_PER_ROW
        self.planes = spec.network.planes or site.fabric.planes

    @cached_property
    def shape(self) -> Shape:
        """Return the shape of the site's fabric."""
        return shape_of(self.site.fabric)

    @property
    def share(self) -> float:
        """Return the share of the site's GPUs that take part."""
        return self.gpus / self.site.fabric.gpus

    def _records(self, nodes: int) -> tuple[Node, ...]:
        records = nodes_of(self.site, nodes)
        if self.trays == 1:
            return records
        found: list[Node] = []
        for number in range(self.units):
            first = records[number * self.trays].place
            place = Location(number, number, first.t0, first.pod, number // RACKS_PER_FEEDER)
            found.append(Node(number, f"domain-{number:05d}", self.unit_gpus, place))
        return tuple(found)

    def groups_of(self, name: str) -> Numbers:
        """Return the group of each unit among those of a class of parts or of the scope of a burst."""
        columns = {"rack": self.rack, "shelf": self.rack, "switch": self.t0, "cooling": self.row, "feeder": self.feeder}
        found = columns.get(name)
        return np.arange(self.units, dtype=np.int64) if found is None else found

    @cached_property
    def classes(self) -> dict[str, PartClass]:
        """Return every kind of part, by name."""
        site, parts, spec = self.site, self.site.fabric.parts, self.spec.components
        copper = cables_of(site.fabric)[0].medium != "optical"
        racks = int(self.rack.max()) + 1
        per_plane = int(self.t0.max()) + 1
        nodes = self.units * self.trays
        link = STOPS if self.planes == 1 else SLOWS
        rows = (
            ("gpu", self.gpus, self.units, site.failures.gpu * (1 - MEMORY_SHARE), STOPS, "xid"),
            ("hbm", self.gpus, self.units, site.failures.gpu * MEMORY_SHARE, STOPS, "ecc"),
            ("host", nodes, self.units, site.failures.host, STOPS, "silent"),
            ("nic", self.gpus, self.units, parts.nic.failure_rate, STOPS, "link"),
            ("optic", 2 * self.gpus, self.units, parts.optic.failure_rate, link, "link"),
            ("cable", self.gpus, self.units, (parts.copper if copper else parts.fibre).failure_rate, link, "link"),
            ("switch", per_plane * self.planes, per_plane, parts.switch.failure_rate, link, "link"),
            ("rack", racks, racks, 0, STOPS, "silent"),
            ("shelf", racks, racks, 0, STOPS, "silent"),
            ("cooling", int(self.row.max()) + 1, int(self.row.max()) + 1, 0, COOLS, "throttling"),
        )
        found: dict[str, PartClass] = {}
        for name, count, groups, fit, effect, check in rows:
            own: ComponentSpec = getattr(spec, name)
            found[name] = PartClass(
                name, count, groups, float(fit if own.rate is None else own.rate), effect, check, own
            )
        return found

    def gang_mttf_h(self, gpus: int, *, software_fit: float) -> float:
        """Return the mean time between failures that stop a gang of `gpus` GPUs, in hours; infinite for none."""
        share = gpus / self.gpus
        stops = [each for each in self.classes.values() if each.effect == STOPS]
        per_hour = sum(each.per_hour for each in stops) * share + software_fit / FIT_HOURS
        return 1 / per_hour if per_hour else float("inf")
