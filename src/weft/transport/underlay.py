"""The networks under an endpoint: how an entropy value becomes a socket address, and which parameters suit it.

`Loopback` needs no rights: planes are addresses on `lo`. `Srv6Underlay` is for a fabric of SRv6 switches: the address
of a packet is its path, and whoever built the fabric says which carrier belongs to an EV. Neither knows the protocol.
"""

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from typing_extensions import override

from weft.core.errors import UsageError
from weft.specs.transport import MrcSpec

Address = tuple[Any, ...]
"""A socket address as Python's sockets take it."""
Place = Mapping[str, Any]
"""What an endpoint tells its peers about where it is; JSON."""

_MPR = 8


@dataclass(frozen=True)
class Underlay(ABC):
    """What an endpoint asks of its network."""

    planes: int
    """How many planes."""
    paths: int
    """EVs of a plane; the value of an EV is plane x paths + path."""
    rate_bps: int
    """Rate of all planes together, from which congestion control starts."""
    payload: int
    """Bytes of data in a full packet."""
    window: int
    """Bytes that a queue pair may have in flight; 0 where congestion control decides alone."""
    family: int
    """Address family of its sockets."""

    @property
    def shared_plane(self) -> int:
        """Return the plane that is shared memory where both ends are on one host, or -1."""
        return -1

    @property
    @abstractmethod
    def spec(self) -> MrcSpec:
        """Return the protocol's parameters here."""

    @abstractmethod
    def bind(self, sock: socket.socket, port: int) -> None:
        """Bind a socket to `port`, or to any where it is 0."""

    @abstractmethod
    def place(self, port: int) -> dict[str, Any]:
        """Return what peers must know to reach us."""

    @abstractmethod
    def address(self, place: Place, ev: int) -> Address:
        """Return where packets on `ev` to a peer at `place` are sent."""

    def source(self, place: Place) -> Address | None:
        """Return an address of the network that packets of a peer at `place` come from, where that is known."""
        del place

    def watch_ports(self, changed: Callable[[int, bool], None]) -> Callable[[], None]:
        """Call `changed` with plane and state when a port of this host goes down or up; return what ends that.

        Here no port ever changes.
        """
        del changed
        return _nothing

    def inside(self) -> AbstractContextManager[None]:
        """Return where sockets are to be made: they belong to the network of whoever makes them; here, right here."""
        return nullcontext()


def _nothing() -> None:
    """End a watch that never was."""


class SoftwareClocks(NamedTuple):
    """Times that suit threads instead of NICs, in microseconds."""

    spread_us: int
    """How much later a transmission must have been made that proves an earlier one lost."""
    probe_us: int
    """Silence after which a path is probed."""
    rtt_us: int
    """Round trip through empty queues."""


def software_spec(
    planes: int, paths: int, clocks: SoftwareClocks, *, ack_bytes: int, fixed: bool, trims: bool = False
) -> MrcSpec:
    """Return the protocol's parameters for threads instead of NICs: the same rules, slower clocks.

    A thread that is not scheduled is silent for milliseconds on all paths at once, so that time alone proves little and
    the timer is a last resort of 268 ms. What proves a loss is a later transmission that has arrived, `spread_us`
    later, or the answer to a probe.
    """
    return MrcSpec.model_validate(
        {
            "ev": {
                "active": planes * paths,
                "backup": 0,
                "min_active": 1,
                "probe_interval": "2 ms",
                "probe_timeout": "20 ms",
            },
            "loss": {
                "spread": f"{clocks.spread_us} us",
                "spread_max": f"{16 * clocks.spread_us} us",
                "spread_decay": "100 ms",
                "probe_after": f"{clocks.probe_us} us",
                "timeout": 18,
            },
            "window": {
                "mpr": _MPR,
                "messages": 1024,
                "immediates": 1024,
                "ack_bytes": f"{ack_bytes} B",
                "ack_packet_bytes": "1024 B",
            },
            "congestion": {
                "algorithm": "fixed" if fixed else "nscc",
                "base_rtt": f"{clocks.rtt_us} us",
                # Facts, section 4.4.
                "target_delay": 0.75 if trims else 1.0,
                # A host that is busy delays packets without a mark, and is no full queue.
                "delay_cuts": False,
            },
            # A round trip is nothing for a NIC, but a fifth of a core here.
            "reverse": {"probe_interval": "1 ms", "heard_lately": "50 ms"},
            "trimming": trims,
            "port_remap_delay": "100 us",
        }
    )


@dataclass(frozen=True)
class Loopback(Underlay):
    """One machine: planes are addresses 127.0.0.1, 127.0.0.2 and so on, faults are injected by the endpoint itself.

    `lo` takes datagrams of 65,507 bytes, and every packet costs the same whatever its size. All EVs of a plane would be
    the same path here, and a single dead one is known sooner. On a busy machine sender and receiver run in turns, and
    the window is what a turn carries; an endpoint lowers it to what its receive buffer holds. IPv4, because `lo` owns
    all of 127.0.0.0/8, but a single IPv6 address. The rate is nominal.
    """

    planes: int = 4
    paths: int = 1
    rate_bps: int = 40 * 10**9
    payload: int = 60 * 1024
    window: int = 1024 * 1024
    family: int = socket.AF_INET
    shared: bool = False
    """Whether the last plane is shared memory, which then carries everything while it is whole."""

    @property
    @override
    def shared_plane(self) -> int:
        return self.planes - 1 if self.shared else -1

    @property
    @override
    def spec(self) -> MrcSpec:
        clocks = SoftwareClocks(spread_us=300, probe_us=1_000, rtt_us=40)
        return software_spec(self.planes, self.paths, clocks, ack_bytes=2 * self.payload, fixed=True)

    @override
    def bind(self, sock: socket.socket, port: int) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        sock.bind(("0.0.0.0", port))  # noqa: S104 - the device is `lo` and nothing else

    @override
    def place(self, port: int) -> dict[str, Any]:
        return {"port": port}

    @override
    def address(self, place: Place, ev: int) -> Address:
        return (f"127.0.0.{1 + ev // self.paths}", int(place["port"]))

    @override
    def source(self, place: Place) -> Address:
        return self.address(place, 0)


def _nowhere(place: Place, ev: int) -> str:
    raise UsageError(f"nobody has said which carrier leads to {place} on EV {ev}")


@dataclass(frozen=True)
class Srv6Underlay(Underlay):
    """A fabric of SRv6 switches: the destination address of a packet is its path."""

    payload: int = 4096
    window: int = 0
    family: int = socket.AF_INET6
    carrier: Callable[[Place, int], str] = _nowhere
    """From where a peer is and an EV to the address that takes a packet there on that path."""
    where: Mapping[str, Any] = field(default_factory=dict)
    """What peers must know to reach us; `carrier` of a peer is given it as it is."""
    spread_us: int = 4_000
    """How much later a transmission must have been made that proves an earlier one lost: more than paths differ by."""
    rtt_us: int = 1_000
    """Round trip through empty queues."""
    host: str = "::"
    """Address to bind to."""
    trims: bool = False
    """Whether its switches mark and trim."""

    @property
    @override
    def spec(self) -> MrcSpec:
        clocks = SoftwareClocks(self.spread_us, 2 * self.spread_us, self.rtt_us)
        return software_spec(
            self.planes, self.paths, clocks, ack_bytes=2 * self.payload, fixed=self.window > 0, trims=self.trims
        )

    @override
    def bind(self, sock: socket.socket, port: int) -> None:
        sock.bind((self.host, port))

    @override
    def place(self, port: int) -> dict[str, Any]:
        return {**self.where, "port": port}

    @override
    def address(self, place: Place, ev: int) -> Address:
        return (self.carrier(place, ev), int(place["port"]), 0, 0)
