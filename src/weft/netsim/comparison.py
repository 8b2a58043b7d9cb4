"""The same collective by several transports on one fabric: time, bus bandwidth, and each one's ratio to MRC.

A ring is made of rounds that are all alike: every rank sends one part to the next. Where all of them would be more than
a simulator should take on, the first few are run and the others taken as equal; a row says how many, and how far the
time can be off where none of the others is quicker or slower than all that were run. An all-to-all is run whole.
"""

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from weft.collectives.registry import named, schedule_named
from weft.core.errors import UsageError
from weft.core.units import Bytes
from weft.fabric.graph.shape import Shape, shape_of
from weft.netsim.report import SimulationReport
from weft.netsim.run import Observers, run
from weft.netsim.setup import set_up, transports_of
from weft.netsim.workload.posting import NCCL_RINGS, NCCL_SENDS
from weft.specs.rivals import PostingSpec, TransportsSpec
from weft.specs.scenario import FlowSpec, ScenarioSpec, TrafficSpec
from weft.specs.site import SiteSpec

Posting = Literal["whole", "nccl"]
"""How sends are handed to queue pairs: each as one message that all of them share, or as NCCL and RCCL do."""
MOST_PACKETS = 2_000_000
"""Data packets of one run; longer rings are cut."""
_FEWEST_RANKS, _MOST_RANKS = 2, 512
_FEWEST_ROUNDS = 2
_LEAST_ROUNDS = {"all-reduce": 2}
_BITS = 8 * 10**12
_log = logging.getLogger("weft.netsim")


@dataclass(frozen=True, eq=False)
class Row:
    """One transport at one size."""

    transport: str
    """Its name."""
    size: int
    """Bytes of the whole buffer."""
    time_ps: int
    """Time of the collective; -1 where it did not complete."""
    bus_bps: float
    """What a rank's link carries for it: the usual measure of nccl-tests."""
    rounds: int
    """Rounds that were run."""
    of_rounds: int
    """Rounds that there are."""
    off_by: float
    """Share by which the time can be off where rounds that were not run take no less and no more than the others."""
    report: SimulationReport
    """The run itself."""

    def as_json(self, base_bps: float) -> dict[str, Any]:
        """Return the row as plain values (docs/json.md); `base_bps` is MRC's bus bandwidth at this size, or 0."""
        return {
            "transport": self.transport,
            "size_bytes": self.size,
            "time_us": round(self.time_ps / 10**6, 3) if self.time_ps >= 0 else None,
            "bus_bps": round(self.bus_bps),
            "ratio_to_mrc": round(self.bus_bps / base_bps, 4) if base_bps else None,
            "rounds": self.rounds,
            "of_rounds": self.of_rounds,
            "off_by": round(self.off_by, 5),
            "report": self.report.as_json(),
        }


@dataclass(frozen=True)
class CompareOptions:
    """How collectives are compared."""

    seed: int = 0
    """Root of everything random."""
    posting: Posting = "whole"
    """How sends are handed to queue pairs."""
    most_packets: int = MOST_PACKETS
    """Data packets of one run; longer rings are cut."""
    watch: Callable[[str, int, int], None] | None = None
    """Called with progress."""


DEFAULTS = CompareOptions()


class _Asked(NamedTuple):
    """One collective over some NICs."""

    collective: str
    size: int
    places: Sequence[int]
    posting: PostingSpec


def compare(
    collective: str,
    sizes: Sequence[int],
    ranks: int,
    site: SiteSpec,
    transports: Sequence[str],
    options: CompareOptions = DEFAULTS,
) -> tuple[Row, ...]:
    """Return a row for every size and transport, the best transport first."""
    shape = shape_of(site.fabric)
    if not _FEWEST_RANKS <= ranks <= min(_MOST_RANKS, shape.hosts):
        most = min(_MOST_RANKS, shape.hosts)
        raise UsageError(f"{ranks} ranks are not possible on {site.name}; ask for {_FEWEST_RANKS} to {most}")
    places = across(shape, ranks)
    posted = PostingSpec() if options.posting == "whole" else NCCL_SENDS if collective == "all-to-all" else NCCL_RINGS
    found: list[Row] = []
    for size in sizes:
        asked = _Asked(collective, size, places, posted)
        rows = [_run(asked, site, name, options) for name in transports]
        found += sorted(rows, key=lambda row: -row.bus_bps)
    return tuple(found)


def across(shape: Shape, ranks: int) -> list[int]:
    """Return the NIC of every rank, so that neighbours in a ring hang on different T0s where there are several."""
    groups: list[list[int]] = [[] for _ in range(shape.t0)]
    per_group = -(-ranks // shape.t0)
    for nic in range(shape.hosts):
        group = groups[shape.t0_of(nic)]
        if len(group) < per_group:
            group.append(nic)
    found = [group[turn] for turn in range(per_group) for group in groups if turn < len(group)]
    return found[:ranks]


def _run(asked: _Asked, site: SiteSpec, name: str, options: CompareOptions) -> Row:
    collective, size, places, posting = asked
    ranks, chosen = len(places), named(collective)
    schedule = schedule_named(chosen.kind, chosen.algorithm, ranks)
    by_rounds = chosen.rounds_alike or chosen.kind == "all-to-all"
    part = -(-size // ranks)
    of_rounds = len(schedule) // ranks if by_rounds else 1
    packets = -(-part // site.fabric.packet) * ranks
    # The sends of an all-to-all differ from round to round, so that none can stand for another.
    fit = max(_FEWEST_ROUNDS, options.most_packets // packets)
    rounds = min(of_rounds, fit) if chosen.rounds_alike else of_rounds
    sends = rounds * ranks if by_rounds else len(schedule)
    sizes = [part] * sends if by_rounds else schedule.sent_bytes(size).tolist()
    flows = tuple(
        FlowSpec.model_construct(
            name=str(send), source=places[int(schedule.source[send])], destination=places[int(schedule.target[send])],
            size=Bytes(sizes[send]), after=tuple(str(before) for before in schedule.before_of(send)),
        )
        for send in range(sends)
    )  # fmt: skip
    traffic = TrafficSpec.model_construct(pattern="flows", flows=flows)
    scenario = ScenarioSpec.model_construct(
        name=f"{collective} over {ranks}", site=site.name, traffic=traffic, transport=TransportsSpec(posting=posting)
    )
    setup = set_up(scenario, site, options.seed)
    (transport,) = transports_of(setup, (name,))
    _log.info("%s by %s", scenario.name, transport.name)
    report = run(setup, transport, observers=Observers(watch=options.watch))
    ends = [flow.arrived_ps for flow in report.flows]
    if min(ends) < 0:
        return Row(report.transport, size, -1, 0.0, rounds, of_rounds, 0.0, report)
    took_ps = max(ends)
    # Each rank's link carries one part in a round; the others count as nccl-tests does, by what the kind must move.
    carried = rounds * part if by_rounds else _LEAST_ROUNDS.get(chosen.kind, 1) * (ranks - 1) * part
    bus_bps = carried * _BITS / took_ps
    time_ps = took_ps * of_rounds // rounds
    off_by = 0.0 if rounds == of_rounds else _off_by(_round_ends(ends, ranks), of_rounds, time_ps)
    return Row(report.transport, size, time_ps, bus_bps, rounds, of_rounds, off_by, report)


def _round_ends(ends_ps: Sequence[int], ranks: int) -> list[int]:
    """Return when each round of a ring was over everywhere."""
    return [max(ends_ps[at : at + ranks]) for at in range(0, len(ends_ps), ranks)]


def _off_by(round_ends_ps: Sequence[int], of_rounds: int, time_ps: int) -> float:
    """Return by which share a time can be off that stands for rounds which were not run."""
    times_ps = [end - before for before, end in itertools.pairwise((0, *round_ends_ps))]
    missing = of_rounds - len(times_ps)
    ends = (round_ends_ps[-1] + missing * each for each in (min(times_ps), max(times_ps)))
    return max(abs(end / time_ps - 1) for end in ends)
