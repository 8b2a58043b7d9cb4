"""The fabric as a simulator sees it: ports in one direction, each with a rate, a delay and queue limits.

A link has two ports: number 2 x link sends upwards, 2 x link + 1 downwards. A path is the tuple of ports that a packet
crosses, by the arithmetic of `fabric.addressing.paths`, which is what the static SRv6 tables do where nothing has
failed; a packet that meets a failure is lost there. Nothing here moves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds, transfer_ps
from weft.fabric.addressing.paths import links_on_path
from weft.fabric.graph.shape import Shape
from weft.fabric.graph.topology import Topology, build
from weft.fabric.limits import PICOSECONDS_PER_MILLIMETRE
from weft.mrc.columns import SACK
from weft.netsim.model.switching import MARK_ONE, PAUSE_FRAME, PLAIN, Pause, Switching
from weft.specs.fabric import FabricSpec
from weft.specs.scenario import NetworkSpec

_BITS_PER_BYTE = 8
_NO_LIMIT = 2**62
_TRIM_LAST_HOP = 1.5
_MOST_AHEAD = 32
Column = NDArray[Any]


@dataclass(frozen=True)
class Frames:
    """How large a transport's packets are on the wire."""

    payload: int
    """Bytes of data in a full packet."""
    header: int
    """Bytes around them, preamble and gap included; also what is left of a trimmed packet."""
    control: Mapping[int, int]
    """Bytes of every kind of control packet."""

    @property
    def acknowledgement(self) -> int:
        """Return the bytes of an acknowledgement."""
        return self.control[SACK]

    @property
    def full(self) -> int:
        """Return the bytes of the largest frame."""
        return self.payload + self.header


@dataclass(frozen=True)
class QueueLimits:
    """Where the queues of one port act, in bytes."""

    ecn_low: int
    """Marks begin; -1 where the port never marks."""
    ecn_high: int
    """Every packet is marked."""
    data: int
    """Most that the data queue holds."""
    control: int
    """Most that the control queue holds."""
    ecn_most: int = MARK_ONE
    """Share of packets marked just below `ecn_high`, out of `MARK_ONE`."""

    def scaled(self, share: int, one: int, full: int) -> "QueueLimits":
        """Return the limits of a port at `share` out of `one` of its rate; a queue always holds one `full` frame."""

        def hold(limit: int) -> int:
            return limit if limit >= _NO_LIMIT else max(min(limit, full), limit * share // one)

        def mark(limit: int) -> int:
            return limit if limit < 0 else limit * share // one

        return QueueLimits(mark(self.ecn_low), mark(self.ecn_high), hold(self.data), hold(self.control), self.ecn_most)


@dataclass(frozen=True)
class Timing:
    """Rates and delays by stage, where they are not those of the fabric's own parts."""

    rate_bps: tuple[int, ...]
    """Rate of the links of every stage: NIC-T0, T0-T1, T1-T2."""
    link_ps: tuple[int, ...]
    """Delay of those links."""
    switch_ps: tuple[int, ...]
    """Latency of the switches of every tier."""


@dataclass(frozen=True, eq=False)
class Network:
    """A fabric, ready for packets of one transport."""

    topology: Topology
    """What is wired to what."""
    fabric: FabricSpec
    """What it was built from."""
    spec: NetworkSpec
    """Delays and queue limits."""
    frames: Frames
    """Sizes on the wire."""
    trimming: bool
    """Whether full queues trim."""
    ecn_last_hop: bool
    """Whether the last hop to a NIC marks."""
    timing: Timing | None = None
    """Rates and delays by stage; the fabric's own where absent."""
    switching: Switching = PLAIN
    """What else switches do."""

    @cached_property
    def rate_bps(self) -> Column:
        """Return the rate of every link."""
        links = self.topology.links
        return links.rate_bps if self.timing is None else np.array(self.timing.rate_bps, np.int64)[links.stage]

    @cached_property
    def shape(self) -> Shape:
        """Return the arithmetic of the wiring."""
        shape = self.topology.shape
        assert shape is not None, "simulated fabrics are built, not imported"
        return shape

    @cached_property
    def ports(self) -> int:
        """Return the number of ports, two for each link."""
        return 2 * len(self.topology.links)

    @cached_property
    def slot_ps(self) -> Picoseconds:
        """Return the length of a slot: the time of the largest frame on the fastest link."""
        return transfer_ps(self.frames.full, int(self.rate_bps.max()))

    @cached_property
    def delay_ps(self) -> Column:
        """Return, for every port, the time from a packet's last bit leaving to the node at the far end acting on it."""
        links = self.topology.links
        if self.timing is not None:
            cable = np.array(self.timing.link_ps, np.int64)[links.stage]
            switch = np.array(self.timing.switch_ps, np.int64)
            below = np.where(links.stage == 0, self.spec.host_delay, switch[np.maximum(links.stage, 1) - 1])
            return _both(cable + switch[links.stage], cable + below)
        lengths, which = np.unique(links.length_mm, return_inverse=True)
        cable = np.array([round(length * PICOSECONDS_PER_MILLIMETRE) for length in lengths.tolist()], np.int64)[which]
        into_switch = self.fabric.parts.switch.latency
        below = np.where(links.lower < self.topology.nics, self.spec.host_delay, into_switch)
        return _both(cable + into_switch, cable + below)

    @cached_property
    def ahead_slots(self) -> tuple[int, int]:
        """Return for how many slots NICs, and switches, can be looked at alone: nothing sent meanwhile gets there."""
        into_nic, delay_ps, slot_ps = self.last_hop, self.delay_ps, int(self.slot_ps)
        nics, switches = (max(1, int(delay_ps[ends].min()) // slot_ps) for ends in (into_nic, ~into_nic))
        return min(nics, _MOST_AHEAD), min(nics, switches, _MOST_AHEAD)

    @cached_property
    def cable_ps(self) -> tuple[int, ...]:
        """Return, for every port, the time of a bit on its cable."""
        lengths = self.topology.links.length_mm.tolist()
        return tuple(round(length * PICOSECONDS_PER_MILLIMETRE) for length in lengths for _ in range(2))

    def port_name(self, port: int) -> str:
        """Return what a port is called: the node that it belongs to, and the one that it leads to."""
        topology = self.topology
        ends = (int(topology.links.lower[port // 2]), int(topology.links.upper[port // 2]))
        names = [
            topology.names.of("nic", node)
            if node < topology.nics
            else topology.names.of("switch", node - topology.nics)
            for node in (ends if port % 2 == 0 else reversed(ends))
        ]
        return " to ".join(names)

    @cached_property
    def last_hop(self) -> Column:
        """Return, for every port, whether it leads to a NIC."""
        at_nic = self.topology.links.lower < self.topology.nics
        return _both(np.zeros_like(at_nic), at_nic)

    @cached_property
    def first_hop(self) -> Column:
        """Return, for every port, whether it is a NIC's own."""
        at_nic = self.topology.links.lower < self.topology.nics
        return _both(at_nic, np.zeros_like(at_nic))

    @cached_property
    def stage(self) -> Column:
        """Return, for every port, its place on the longest way: 0 out of a NIC, the highest into one."""
        stage = self.topology.links.stage.astype(np.int64)
        return _both(stage, 2 * self.shape.tiers - 1 - stage)

    @cached_property
    def plane_bdp(self) -> int:
        """Return the bytes that one plane holds in a round trip."""
        return int(self.rate_bps[0]) * self.round_trip_ps // (_BITS_PER_BYTE * PICOSECONDS_PER_SECOND)

    def limits(self, port: int) -> QueueLimits:
        """Return where the queues of a port act; a NIC's own port neither marks nor trims."""
        queues = self.spec.queues
        # What a port holds is a time: a link of another rate than the NICs' has limits of its own.
        bdp = self.plane_bdp * int(self.rate_bps[port // 2]) // int(self.rate_bps[0])
        last = self.last_hop[port]
        if self.first_hop[port]:
            return QueueLimits(-1, -1, _NO_LIMIT, _NO_LIMIT)
        marks = self.ecn_last_hop or not last
        own, control = self.switching.marking, round(queues.control * bdp)
        if self.switching.pause is not None:
            # Nothing is dropped for want of room in a queue; what came over a port is limited instead.
            low, high, most = (own.low, own.high, own.most) if own is not None and marks else (-1, -1, MARK_ONE)
            return QueueLimits(low, high, _NO_LIMIT, _NO_LIMIT, most)
        usual = queues.trim if self.ecn_last_hop else _TRIM_LAST_HOP
        last_hop = usual if queues.trim_last_hop is None else queues.trim_last_hop
        holds = queues.drop if not self.trimming else last_hop if last else queues.trim
        return QueueLimits(
            round(queues.ecn_low * bdp) if marks else -1,
            round(queues.ecn_high * bdp) if marks else -1,
            round(holds * bdp),
            control,
        )

    def path(self, source: int, destination: int, plane: int, way: int) -> tuple[int, ...]:
        """Return the ports from NIC to NIC on path number `way` of `plane`."""
        links = links_on_path(self.shape, source, destination, plane * self.shape.paths + way)
        half = len(links) // 2
        return tuple(2 * link if place < half else 2 * link + 1 for place, link in enumerate(links))

    def one_way_ps(self, path: tuple[int, ...], size: int) -> int:
        """Return the time of one packet of `size` bytes over an empty path, to the NIC acting on it."""
        rates = self.rate_bps
        return sum(int(self.delay_ps[port]) + transfer_ps(size, int(rates[port // 2])) for port in path)

    @cached_property
    def round_trip_ps(self) -> int:
        """Return the time of a full packet and its acknowledgement over the longest empty path."""
        path = self.path(0, self.topology.nics - 1, 0, 0)
        return self.one_way_ps(path, self.frames.full) + self.one_way_ps(path, self.frames.acknowledgement)

    def ideal_ps(self, source: int, destination: int, size: int) -> int:
        """Return the least time from the first bit of a flow to its last acknowledgement with the network to itself."""
        path = self.path(source, destination, 0, 0)
        return self.arrival_ps(source, destination, size) + self.one_way_ps(path, self.frames.acknowledgement)

    def arrival_ps(self, source: int, destination: int, size: int) -> int:
        """Return the least time from the first bit of a flow to the arrival of its last one."""
        path = self.path(source, destination, 0, 0)
        packets = -(-size // self.frames.payload)
        wire_bytes = size + packets * self.frames.header
        nic_bps = self.fabric.planes * int(self.rate_bps[0])
        last = min(size, self.frames.payload) + self.frames.header
        # The last packet of each plane leaves when all bytes have been spread evenly over the planes.
        leave_ps = max(0, int(transfer_ps(wire_bytes, nic_bps)) - int(transfer_ps(last, int(self.rate_bps[0]))))
        return leave_ps + self.one_way_ps(path, last)


def _both(up: Column, down: Column) -> Column:
    """Return one column over ports from those of the links' two directions."""
    return np.stack((up, down), axis=1).reshape(-1)


def network(fabric: FabricSpec, spec: NetworkSpec, frames: Frames, *, trimming: bool, ecn_last_hop: bool) -> Network:
    """Return the fabric of `fabric` for packets of these frames."""
    return Network(build(fabric), fabric, spec, frames, trimming, ecn_last_hop)


def pause_lags(network: Network, pause: Pause) -> list[int]:
    """Return, for every port, the slots from the decision to pause it to the pause being in force.

    The frame waits for a full one that is on the wire, travels back over the same link, and the port needs a moment.
    """
    slot_ps, full = int(network.slot_ps), network.frames.full
    rates = network.topology.links.rate_bps.tolist()
    return [
        1 + (int(transfer_ps(full + PAUSE_FRAME, rates[port // 2])) + cable_ps + pause.reaction_ps) // slot_ps
        for port, cable_ps in enumerate(network.cable_ps)
    ]


def grants(rate_bps: int, slot_ps: int, slot: int) -> int:
    """Return the whole bytes that a port of `rate_bps` has been granted up to the end of slot number `slot`."""
    return rate_bps * slot_ps * (slot + 1) // (_BITS_PER_BYTE * PICOSECONDS_PER_SECOND)


def order_keys(word: int, slot: int, uids: "np.ndarray") -> "np.ndarray":
    """Return the keys that order what arrives in one slot: `weft.core.seeds.mix` of the slot and each packet's number.

    For one slot the mixing is one to one, so that two packets never have the same key.
    """
    with np.errstate(over="ignore"):
        counter = uids + np.uint64((slot << 44) & (2**64 - 1)) + np.uint64(1)
        z = np.uint64(word) + np.uint64(0x9E3779B97F4A7C15) * counter
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
