"""Ranks of a job at the hosts of a lab: rank r sends from host r, though its process stays where it is.

A socket belongs to the network namespace in which it was made, whoever uses it afterwards. So a rank steps into the
namespace of its host for as long as it takes to make one. Rendezvous and files stay where they were; only packets of
MRC cross the lab. It takes root, because nobody else may step into a namespace.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from typing_extensions import override

from weft.core.errors import FailedError, UsageError
from weft.fabric import srv6
from weft.transport.lab.bench import ROUND_TRIP_US, SPREAD_US
from weft.transport.lab.lab import find
from weft.transport.lab.machine import NAMESPACES
from weft.transport.lab.mrc import LabCarriers
from weft.transport.lab.record import own_records
from weft.transport.underlay import Place

_NEW_NETWORK = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def _stepped_into(path: str) -> Iterator[None]:
    """Let this thread live in the network namespace at `path` for a while."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(path, os.O_RDONLY)
    try:
        if _LIBC.setns(there, _NEW_NETWORK):
            why = os.strerror(ctypes.get_errno())
            raise FailedError(f"this process can not step into the network namespace {path}: {why}")
        try:
            yield
        finally:
            _LIBC.setns(home, _NEW_NETWORK)
    finally:
        os.close(there)
        os.close(home)


@dataclass(frozen=True)
class LabHost(LabCarriers):
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
    if lab.world.keeper is not None:
        raise UsageError(f"the lab {name} lives in a user namespace, which ranks can not step into; make it as root")
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
