"""One stream after the other over the same lab with the same faults: MRC, and what it is compared with.

Each stream has the lab to itself and meets the same calendar: a third of the time all is well, a third of the time the
faults are in, a third of the time they are healed. A rival runs in the plane that the first fault hits, so that it
meets it; where its one path misses the fault all the same, the result says so.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from weft.core import quantity
from weft.core.errors import UsageError
from weft.fabric.addressing import srv6
from weft.fabric.addressing.paths import links_on_path
from weft_lab.measurements.rates import binned_bps, longest_stall_s, mean_bps, reached_bps
from weft_lab.measurements.stream import ScheduledFault, TrafficStream, carry
from weft_lab.network import faults
from weft_lab.network.faults import FaultChange, Faults, Filter
from weft_lab.network.lab import Lab
from weft_lab.network.plain_routes import ev_to, plane_address
from weft_lab.network.plan import LabPlan
from weft_lab.underlay import clocks_of

Rival = Literal["tcp", "tcp-bbr"]
Step = Callable[[LabPlan, Faults, str, Filter], FaultChange]

SETTLE_S = 0.5
"""Left out of a mean after a change: what a change costs at once is seen in the stall."""
BIN_S = 0.25
MESSAGE_BYTES = 1 << 20
_CONTROLS: dict[Rival, str] = {"tcp": "cubic", "tcp-bbr": "bbr"}
_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,4})?)\s*%")


@dataclass(frozen=True)
class PlannedFault:
    """A fault to put in and to take out."""

    words: str
    """As the user wrote it: "cut link0-p0-i0"."""
    names: tuple[str, ...]
    """What it is done to."""
    step: Step


@dataclass(frozen=True)
class StreamRequest:
    """One stream that is asked for."""

    ends: tuple[int, int]
    """Host that sends and host that receives."""
    wanted: Sequence[PlannedFault]
    """What happens in its second third."""
    seconds: float
    """How long it runs."""
    watch: Callable[[TrafficStream], None] | None = None
    """Called while it runs."""


@dataclass(frozen=True)
class StreamResult:
    """What one stream did."""

    stream: TrafficStream
    hit: bool
    """Whether a fault lies on its way."""

    def _phase(self, number: int) -> tuple[float, float]:
        third = self.stream.seconds / 3
        return number * third + SETTLE_S, (number + 1) * third

    def mean(self, phase: int) -> float:
        """Return the mean rate before (0), during (1) or after (2) the faults."""
        return mean_bps(self.stream.samples, *self._phase(phase))

    def reached(self, phase: int) -> float:
        """Return the rate reached before (0), during (1) or after (2) the faults, whatever else the machine does."""
        return reached_bps(self.stream.samples, *self._phase(phase), BIN_S)

    @property
    def reached_overall(self) -> float:
        """Return the rate reached in the whole run, whatever else the machine does."""
        return reached_bps(self.stream.samples, SETTLE_S, self.stream.seconds, BIN_S)

    @property
    def overall(self) -> float:
        """Return the mean rate of the whole run."""
        return mean_bps(self.stream.samples, SETTLE_S, self.stream.seconds)

    @property
    def stall_s(self) -> float:
        """Return the longest time without a byte, from the first fault on."""
        return longest_stall_s(self.stream.samples, self.stream.seconds / 3, self.stream.seconds)

    def as_json(self) -> dict[str, Any]:
        """Return the result for programs."""
        stream = self.stream
        return {
            "transport": stream.label,
            "source": stream.source,
            "destination": stream.destination,
            "seconds": stream.seconds,
            "hit": self.hit,
            "mean_bps": {name: self.mean(number) for number, name in enumerate(("before", "during", "after"))},
            "reached_bps": {name: self.reached(number) for number, name in enumerate(("before", "during", "after"))},
            "overall_bps": self.overall,
            "longest_stall_s": self.stall_s,
            "bin_s": BIN_S,
            "rates_bps": binned_bps(stream.samples, stream.now_s, BIN_S),
            "events": [{"at_s": at_s, "what": words} for at_s, words in stream.events],
            "statistics": stream.statistics,
            "error": stream.error,
        }


def share_per_million(text: str) -> int:
    """Return the share that "1%" stands for, in parts of a million."""
    match = _SHARE.fullmatch(text.strip())
    per_million = round(float(match[1]) * 10_000) if match else -1
    if not 0 <= per_million <= faults.MILLION:
        raise UsageError(f"{text!r} is not a share of packets; write it as '1%' or '0.1%'")
    return per_million


def rate_bps(text: str) -> int:
    """Return the rate that "100Mb/s" stands for."""
    try:
        rate = quantity.RATE.parse(text)
    except quantity.QuantityError as error:
        raise UsageError(str(error)) from None
    if rate < 1:
        raise UsageError("a link without any rate is a cut one; use weft lab cut")
    return rate


def planned(lab: Lab, words: str) -> PlannedFault:
    """Return the fault that `words` ask for: cut LINK, blackhole SWITCH, loss LINK 1%, slow LINK RATE."""
    verb, *rest = words.split()
    wrong = UsageError(
        f"{words!r} is not a fault; write 'cut LINK', 'blackhole SWITCH', 'loss LINK 1%' or 'slow LINK 100Mb/s'"
    )
    step: Step
    match verb, rest:
        case "cut", [_]:
            step = _cut
        case "blackhole", [_]:
            step = faults.black_hole
        case "loss", [_, share]:
            per_million = share_per_million(share)

            def step(plan: LabPlan, now: Faults, name: str, by: Filter) -> FaultChange:
                return faults.lose(plan, now, name, per_million, into="both", by=by)

        case "slow", [_, *rate]:
            slower = rate_bps(" ".join(rate))

            def step(plan: LabPlan, now: Faults, name: str, by: Filter) -> FaultChange:
                del by
                return faults.slow(plan, now, name, slower)

        case _:
            raise wrong
    names = lab.names(rest[0], ("switch",) if verb == "blackhole" else ("link",))
    return PlannedFault(words, tuple(names), step)


def calendar(lab: Lab, wanted: Sequence[PlannedFault], seconds: float) -> list[ScheduledFault]:
    """Return when faults come and go."""

    def put_in(fault: PlannedFault) -> Callable[[], None]:
        return lambda: lab.change(fault.names, fault.step)

    def take_out(fault: PlannedFault) -> Callable[[], None]:
        return lambda: lab.change(fault.names, faults.heal)

    return [
        *(ScheduledFault(seconds / 3, fault.words, put_in(fault)) for fault in wanted),
        *(ScheduledFault(2 * seconds / 3, f"heal {' '.join(fault.names)}", take_out(fault)) for fault in wanted),
    ]


def plane_hit(lab: Lab, wanted: Sequence[PlannedFault]) -> int:
    """Return the plane that the first fault hits; the first plane where there is none."""
    topology = lab.plan.topology
    for fault in wanted:
        kind, number = topology.names.find(fault.names[0], ("link", "switch"))
        return int(topology.links.plane[number] if kind == "link" else topology.switches.plane[number])
    return 0


def links_used(lab: Lab, source: int, destination: int, plane: int) -> set[int]:
    """Return the links that a connection of one plane uses, there and back."""
    addressing = lab.plan.addressing
    there = links_on_path(addressing.shape, source, destination, ev_to(addressing, plane, destination))
    back = links_on_path(addressing.shape, destination, source, ev_to(addressing, plane, source))
    return {*there, *back}


def links_hit(lab: Lab, wanted: Sequence[PlannedFault]) -> set[int]:
    """Return the links that faults are put on."""
    topology = lab.plan.topology
    found: set[int] = set()
    for fault in wanted:
        for name in fault.names:
            kind, number = topology.names.find(name, ("link", "switch"))
            own = [number] if kind == "link" else topology.neighbours(topology.switch_node(number)).link.tolist()
            found |= {int(link) for link in own}
    return found


def run_mrc(
    lab: Lab,
    trial: StreamRequest,
    *,
    size: int = MESSAGE_BYTES,
    denied: Mapping[tuple[int, int], Sequence[int]] | None = None,
) -> StreamResult:
    """Carry large writes by MRC over all planes of the lab."""
    source, destination = trial.ends
    planes = lab.plan.addressing.shape.planes
    stream = TrafficStream("mrc", f"MRC, {planes} planes", source, destination, trial.seconds)
    documents = [
        mrc_document(lab, near, far, size=size, denied=(denied or {}).get((near, far), ()))
        for near, far in ((source, destination), (destination, source))
    ]
    carry(lab, stream, (documents[0], documents[1]), calendar(lab, trial.wanted, trial.seconds), trial.watch)
    return StreamResult(stream, hit=bool(trial.wanted))


def mrc_document(
    lab: Lab, near: int, far: int, *, size: int, denied: Sequence[int] = (), **more: Any
) -> dict[str, Any]:
    """Return what the MRC program at host `near` gets to talk to host `far`."""
    plan = lab.plan
    return {
        "mode": "stream",
        "size": size,
        "planes": plan.addressing.shape.planes,
        "carriers": [srv6.to_text(plan.addressing.carrier(near, far, ev)) for ev in range(plan.addressing.evs.count)],
        "rate_bps": plan.spec.rate_bps * plan.addressing.shape.planes,
        "payload": plan.spec.fabric.packet,
        "peer_name": plan.topology.name_of_node(far),
        "denied": list(denied),
        **clocks_of(plan.spec),
        **more,
    }


def run_tcp(lab: Lab, trial: StreamRequest, *, rival: Rival = "tcp") -> StreamResult:
    """Carry a TCP stream over one path of the lab."""
    source, destination = trial.ends
    plane, control = plane_hit(lab, trial.wanted), _CONTROLS[rival]
    stream = TrafficStream("tcp", f"TCP ({control}), plane {plane}", source, destination, trial.seconds)
    asked = ({"control": control}, {"control": control, "address": plane_address(plane, destination)})
    carry(lab, stream, asked, calendar(lab, trial.wanted, trial.seconds), trial.watch)
    return StreamResult(stream, bool(links_used(lab, source, destination, plane) & links_hit(lab, trial.wanted)))


def _cut(plan: LabPlan, now: Faults, name: str, by: Filter) -> FaultChange:
    del by
    return faults.cut(plan, now, name)
