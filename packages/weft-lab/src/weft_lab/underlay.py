"""The lab as an underlay of MRC: its parameters, and ranks of a job that send from its hosts.

Rank r sends from host r, though its process stays where it is. A socket belongs to the network namespace in which it
was made, whoever uses it afterwards. So a rank steps into the namespace of its host for as long as it takes to make
one. Rendezvous and files stay where they were; only packets of MRC cross the lab. It takes root, because nobody else
may step into a namespace.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from weft.core.errors import UsageError
from weft.core.units import Picoseconds
from weft.fabric.addressing import srv6
from weft.specs.transport import MrcSpec
from weft.transport.underlay import Place, Srv6Underlay
from weft_lab.network.lab import find
from weft_lab.network.machine import NAMESPACES
from weft_lab.network.plan import LabSpec
from weft_lab.network.port_watch import PortWatch, follow
from weft_lab.network.record import own_records
from weft_lab.network.stepping import stepped_into

ROUND_TRIP_US = 6_000
"""Round trip that windows are made for. Empty, the lab takes a tenth of a millisecond; but threads are scheduled and
buckets filled in milliseconds, and without marks the window stands at its largest: this one keeps the links busy and
fills less than half of their queues."""
SPREAD_US = 20_000
"""By how much paths may differ: one queue is full, another one empty."""
TRIMMING_ROUND_TRIP_US, TRIMMING_SPREAD_US = 2_000, 2_000
"""The same where switches mark and trim: marks hold queues down, no queue loses a packet, and so a packet that others
have passed by a round trip is lost. Standing queues are added to that by the rules."""
_SPREAD_GROWS = 8
_TIMEOUT = 18
"""Timer of a packet as a power of two of 1.024 us, so 268 ms: several times what it takes to presume a packet lost, so
that the timer speaks only where nothing else can."""
_MPR = 32
"""Receive window in units of 128 packets: what four planes of 200 Mb/s carry while a loss is made sure of, and more."""


@dataclass(frozen=True)
class LabUnderlay(Srv6Underlay):
    """Carriers through few spines and Linux queues.

    Half of the paths of a plane carry packets and the others stand by: where one fails, another of its plane takes its
    place and the planes stay equally loaded. Paths differ by as much as a queue holds, so patience grows only once.
    """

    @property
    @override
    def spec(self) -> MrcSpec:
        """Return the protocol's parameters here."""
        spec = super().spec
        loss = spec.loss.model_copy(
            update={
                "spread_max": Picoseconds((_SPREAD_GROWS if self.trims else 2) * spec.loss.spread),
                "timeout": _TIMEOUT,
            }
        )
        active = self.planes * max(1, self.paths // 2)
        ev = spec.ev.model_copy(update={"active": active, "backup": self.planes * self.paths - active})
        window = spec.window.model_copy(update={"mpr": _MPR})
        return spec.model_copy(update={"loss": loss, "ev": ev, "window": window})

    @override
    def watch_ports(self, changed: Callable[[int, bool], None]) -> Callable[[], None]:
        """Listen to the kernel for the host's own links, as a NIC would."""
        with self.inside():
            watch = PortWatch()
        return follow(watch, changed)


@dataclass(frozen=True)
class LabHost(LabUnderlay):
    """The lab as one of its hosts has it, for processes that live outside."""

    namespace: str = ""
    """Path of the host's network namespace."""

    @override
    def inside(self) -> AbstractContextManager[None]:
        """Return the host's network, for the thread that enters."""
        return stepped_into(self.namespace)


def clocks_of(spec: LabSpec) -> dict[str, Any]:
    """Return the times that suit the queues of a lab, and whether they mark and trim."""
    if spec.trims:
        return {"rtt_us": TRIMMING_ROUND_TRIP_US, "spread_us": TRIMMING_SPREAD_US, "trims": True}
    return {"rtt_us": ROUND_TRIP_US, "spread_us": SPREAD_US, "trims": False}


def rank_underlay(name: str, rank: int, ranks: int) -> LabHost:
    """Return where rank `rank` of `ranks` sends from in the lab called `name`."""
    lab = find(own_records(), name)
    addressing, hosts = lab.plan.addressing, lab.plan.topology.nics
    if lab.machine.keeper is not None:
        raise UsageError(f"the lab {name} lives in a user namespace, which ranks cannot step into; make it as root")
    if ranks > hosts:
        raise UsageError(
            f"the lab {name} has {hosts} hosts, and the job has {ranks} ranks; make one with --hosts {ranks}"
        )

    def carrier(place: Place, ev: int) -> str:
        return srv6.to_text(addressing.carrier(rank, int(place["nic"]), ev))

    return LabHost(
        planes=addressing.shape.planes,
        paths=addressing.evs.count // addressing.shape.planes,
        rate_bps=lab.plan.spec.rate_bps * addressing.shape.planes,
        carrier=carrier,
        where={"nic": rank},
        payload=lab.plan.spec.fabric.packet,
        **clocks_of(lab.plan.spec),
        namespace=str(NAMESPACES / lab.plan.namespaces[rank]),
    )
