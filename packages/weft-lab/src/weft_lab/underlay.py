"""The lab as an underlay of MRC: its parameters, and ranks of a job that send from its hosts.

Rank r sends from host r, though its process stays where it is. A socket belongs to the network namespace in which it
was made, whoever uses it afterwards. So a rank steps into the namespace of its host for as long as it takes to make
one. Rendezvous and files stay where they were; only packets of MRC cross the lab. It takes root, because nobody else
may step into a namespace.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from typing_extensions import override

from weft.core.errors import FailedError, UsageError
from weft.core.units import Picoseconds
from weft.fabric.addressing import srv6
from weft.specs.transport import MrcSpec
from weft.transport.underlay import Place, Srv6Underlay
from weft_lab.network.lab import find
from weft_lab.network.machine import NAMESPACES
from weft_lab.network.record import own_records

ROUND_TRIP_US = 6_000
"""Round trip that windows are made for. Empty, the lab takes a tenth of a millisecond; but threads are scheduled and
buckets filled in milliseconds, and without marks the window stands at its largest: this one keeps the links busy and
fills less than half of their queues."""
SPREAD_US = 20_000
"""By how much paths may differ: one queue is full, another one empty."""
_TIMEOUT = 18
"""Timer of a packet as a power of two of 1.024 us, so 268 ms: several times what it takes to presume a packet lost, so
that the timer speaks only where nothing else can."""
_MPR = 32
"""Receive window in units of 128 packets: what four planes of 200 Mb/s carry while a loss is made sure of, and more."""
_NEW_NETWORK = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


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
        loss = spec.loss.model_copy(update={"spread_max": Picoseconds(2 * spec.loss.spread), "timeout": _TIMEOUT})
        active = self.planes * max(1, self.paths // 2)
        ev = spec.ev.model_copy(update={"active": active, "backup": self.planes * self.paths - active})
        window = spec.window.model_copy(update={"mpr": _MPR})
        return spec.model_copy(update={"loss": loss, "ev": ev, "window": window})


@contextmanager
def _stepped_into(path: str) -> Iterator[None]:
    """Let this thread live in the network namespace at `path` for a while."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(path, os.O_RDONLY)
    try:
        if _LIBC.setns(there, _NEW_NETWORK):
            why = os.strerror(ctypes.get_errno())
            raise FailedError(f"this process cannot step into the network namespace {path}: {why}")
        try:
            yield
        finally:
            _LIBC.setns(home, _NEW_NETWORK)
    finally:
        os.close(there)
        os.close(home)


@dataclass(frozen=True)
class LabHost(LabUnderlay):
    """The lab as one of its hosts has it, for processes that live outside."""

    namespace: str = ""
    """Path of the host's network namespace."""

    @override
    def inside(self) -> AbstractContextManager[None]:
        """Return the host's network, for the thread that enters."""
        return _stepped_into(self.namespace)


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
        rtt_us=ROUND_TRIP_US,
        spread_us=SPREAD_US,
        namespace=str(NAMESPACES / lab.plan.namespaces[rank]),
    )
