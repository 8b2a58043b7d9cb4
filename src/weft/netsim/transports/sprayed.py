"""Endpoints that run MRC's rules: MRC itself, and what differs from it in how it sprays and what it reacts to."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from weft.core.compile.rules import Specialisation
from weft.core.seeds import Seed
from weft.core.units import Picoseconds
from weft.mrc import columns
from weft.mrc.columns import DATA, EV_ANSWER, EV_PROBE, NACK, PORT_ANSWER, PORT_STATUS, PROBE, SACK
from weft.mrc.invariants import check_receiver, check_sender
from weft.mrc.journal import make_journal
from weft.mrc.rules import sender
from weft.mrc.rules.receiver import has_packet
from weft.mrc.rules.settings import TIMEOUT_UNIT_PS, settings, slots_mask
from weft.mrc.wire import packets
from weft.mrc.wire.overhead import frame_overhead
from weft.netsim.host import host_state, mrc_host, open_pairs
from weft.netsim.model.memory import check_memory, free_memory, planned_bytes
from weft.netsim.model.network import Frames, Network
from weft.netsim.model.queue_pairs import Pair
from weft.netsim.model.switching import PLAIN, Switching
from weft.netsim.transports.column_endpoints import ColumnEndpoints, make_packet_pool, nic_columns
from weft.netsim.transports.routing import AS_GIVEN, HASHED, places_of, routing, way_of
from weft.specs.rivals import Forwarding
from weft.specs.transport import MrcSpec

_WORD_MASK = 2**63 - 1
_BACK_WINDOW = 32
_LEAST_SLOTS = 128
"""A window's least room: twice what the bitmap of a SACK covers."""
_LONGEST_TIMEOUT = 24
_OPCODES = {
    DATA: packets.MIDDLE,
    SACK: packets.SACK,
    NACK: packets.NACK,
    PROBE: packets.PROBE,
    **dict.fromkeys((EV_PROBE, PORT_STATUS), packets.ENDPOINT_REQUEST),
    **dict.fromkeys((EV_ANSWER, PORT_ANSWER), packets.ENDPOINT_RESPONSE),
}
"""The opcode that stands for each kind: from it follow the headers, and from these the size."""
CONTROL_KINDS = tuple(kind for kind in _OPCODES if kind != DATA)
"""Every kind of control packet of these hosts."""


def frames_of(payload: int, forwarding: Forwarding) -> Frames:
    """Return how large MRC's packets are around `payload` bytes; SRv6 puts a second IPv6 header around each."""
    ipv6_headers = 2 if forwarding == "srv6" else 1
    sizes = {kind: frame_overhead(opcode, ipv6_headers=ipv6_headers) for kind, opcode in _OPCODES.items()}
    return Frames(payload, sizes[DATA], sizes)


SpecT = TypeVar("SpecT")
"""The parameters of a transport."""


def fitted(spec: MrcSpec, network: Network) -> MrcSpec:
    """Return `spec` with every time scaled from the round trip that it was written for to the network's."""
    round_trip_ps = network.round_trip_ps
    ratio = Fraction(round_trip_ps, spec.congestion.base_rtt)

    def scale(time_ps: int) -> Picoseconds:
        return Picoseconds(max(1, round(time_ps * ratio)))

    loss, ev = spec.loss, spec.ev
    timeout = loss.timeout
    wanted_ps = scale(TIMEOUT_UNIT_PS << timeout)
    while TIMEOUT_UNIT_PS << timeout < wanted_ps and timeout < _LONGEST_TIMEOUT:
        timeout += 1
    while timeout > 1 and TIMEOUT_UNIT_PS << (timeout - 1) >= wanted_ps:
        timeout -= 1
    return spec.model_copy(
        update={
            "congestion": spec.congestion.model_copy(update={"base_rtt": Picoseconds(round_trip_ps)}),
            "ev": ev.model_copy(
                update={"probe_interval": scale(ev.probe_interval), "probe_timeout": scale(ev.probe_timeout)}
            ),
            "loss": loss.model_copy(
                update={
                    "spread": scale(loss.spread),
                    "spread_max": scale(loss.spread_max),
                    "spread_decay": scale(loss.spread_decay),
                    "probe_after": scale(loss.probe_after),
                    "timeout": timeout,
                }
            ),
            "reverse": spec.reverse.model_copy(
                update={
                    "probe_interval": scale(spec.reverse.probe_interval)
                    if spec.reverse.probe_interval
                    else Picoseconds(0),
                    "heard_lately": scale(spec.reverse.heard_lately) if spec.reverse.heard_lately else Picoseconds(0),
                }
            ),
        }
    )


@dataclass(frozen=True)
class Spray:
    """How senders choose EVs."""

    kind: int
    """`TURN`, `RECYCLE`, `DRAW` or `REPS` of `weft.netsim.host.mrc_host`."""
    ring: int = 0
    """`REPS`: EVs kept that came back unmarked."""
    freeze_ps: int = 0
    """`REPS`: how long nothing new is tried after a silent loss."""
    echoes: bool = False
    """Whether answers go back on the EVs of the packets that they answer, and nobody probes the reverse path."""
    route_by: int = AS_GIVEN
    """How an EV becomes a path: `AS_GIVEN` or `HASHED` of `weft.netsim.transports.routing`."""
    route_word: int = 0
    """`HASHED`: what switches hash it with."""
    ev_paths: int | None = None
    """EVs of a plane, where they are not its paths."""
    denied: frozenset[int] = frozenset()
    """Links that no EV may cross."""
    placed: bool = False
    """Whether paths are drawn by the places of both ends."""


def hashed(spray: Spray, evs: int, network: Network, seed: Seed) -> Spray:
    """Return `spray` over `evs` entropy values that switches hash to paths."""
    each = max(1, evs // network.shape.planes)
    return replace(spray, route_by=HASHED, route_word=seed.branch("hash").word(), ev_paths=each)


@dataclass(frozen=True)
class SprayedTransport(ABC, Generic[SpecT]):
    """What transports on MRC's rules share; each says which parameters these have and how EVs are chosen."""

    spec: SpecT
    """Its parameters."""
    fit: bool = True
    """Whether its times are scaled to the fabric's round trip."""
    forwarding: Forwarding = "srv6"
    """Whether its frames are those of MRC over SRv6 or with structured EVs."""

    @property
    def queue_pairs(self) -> int:
        """Return the queue pairs of a flow: spraying needs no more than one."""
        return 1

    @property
    def trimming(self) -> bool:
        """Return whether its switches trim: where its parameters say so."""
        return bool(getattr(self.spec, "trimming", False))

    def switching(self, network: Network) -> Switching:  # noqa: ARG002  others need it
        """Return what it wants of switches: nothing more."""
        return PLAIN

    def frames(self, payload: int) -> Frames:
        """Return how large its packets are around `payload` bytes: MRC's, so that only the choice of paths differs."""
        return frames_of(payload, self.forwarding)

    @abstractmethod
    def protocol(self, network: Network) -> MrcSpec:
        """Return the parameters of MRC's rules, before they are fitted to the fabric."""

    @abstractmethod
    def spray(self, network: Network, seed: Seed) -> Spray:
        """Return how senders choose EVs."""

    def open(self, network: Network, pairs: Sequence[Pair], seed: Seed, *, fast: bool) -> "SprayedEndpoints":
        """Return the endpoints of `pairs`."""
        spec = self.protocol(network)
        spray = self.spray(network, seed)
        return SprayedEndpoints(network, pairs, fitted(spec, network) if self.fit else spec, seed, spray, fast=fast)


class SprayedEndpoints(ColumnEndpoints):
    """All NICs of a run, driven by the rules of `weft.netsim.host.mrc_host`."""

    rules = mrc_host
    swap = Specialisation("sprayed", {sender.describe_write: sender.describe_no_write})

    def __init__(
        self,
        network: Network,
        pairs: Sequence[Pair],
        spec: MrcSpec,
        seed: Seed,
        spray: Spray,
        *,
        fast: bool,
    ) -> None:
        self.network, self.pairs, self._fast = network, tuple(pairs), fast
        self._fixed = {}
        self._paths: dict[tuple[int, int, int], tuple[int, ...]] = {}
        shape = network.shape
        self.paths_of_plane = spray.ev_paths or shape.paths
        """EVs of a plane: the value of an EV is plane x stride + path."""
        params = settings(spec, planes=shape.planes, rate_bps=network.fabric.nic_rate, payload=network.frames.payload)
        # Nothing is written with an immediate here; there is room for no more messages and packets than there will be.
        most = min(int(params["messages"][0]), max((pair.posts for pair in self.pairs), default=1))
        params["messages"], params["message_mask"], params["immediates"] = most, slots_mask(most), 1
        packets = max((pair.packets for pair in self.pairs), default=1)
        params["slot_mask"] = min(int(params["slot_mask"][0]), max(slots_mask(packets), _LEAST_SLOTS - 1))
        check_memory(*planned_bytes(params, len(self.pairs)), free_memory())
        self.params = params
        self.routing = routing(self.pairs, spray.route_by, self.paths_of_plane, shape.paths, spray.route_word)
        """How EVs become paths."""
        self.host_state = _make_host_state(network, self.pairs, params, spray, self.paths_of_plane)
        self.outbox = make_packet_pool()
        self._start(seed, placed=spray.placed)
        for port in sorted(spray.denied):
            self._deny(port)

    def _start(self, seed: Seed, *, placed: bool) -> None:
        """Make every half ready, each with its own chance, which depends on nothing but its pair."""
        shape = self.network.shape
        uses = ("send", "back", "receive")
        named = (("pair", pair.source, pair.destination, pair.lane, half) for pair in self.pairs for half in uses)
        words = np.array([word & _WORD_MASK for word in seed.words(named)], np.int64).reshape(-1, len(uses))
        paths = np.array([len(pair.uplinks) or self.paths_of_plane for pair in self.pairs], np.int64)
        # Two NICs at one T0 have one path in each plane, whatever uplink an EV names.
        local = [shape.t0_of(pair.source) == shape.t0_of(pair.destination) for pair in self.pairs]
        paths[local] = 1
        scratch = np.zeros(self.paths_of_plane, np.int64)
        self._rule(open_pairs.start_pairs)(self.host_state, words, paths, self.paths_of_plane, scratch)
        if placed:
            ends = np.array([(each.source, each.destination, each.lane) for each in self.pairs], np.int64)
            ends = ends.reshape(-1, 3)
            ends[paths != self.paths_of_plane, 0] = -1
            # Whatever the fabric, in the one form that rules are compiled for.
            places = host_state.Places(*map(np.ascontiguousarray, places_of(shape, seed)))
            self._rule(open_pairs.place_pairs)(self.host_state, ends, places, shape.down, self.paths_of_plane, scratch)
        if self.host_state.spray[host_state.ECHOES]:
            self.host_state.r.qp["reverse_probe_ps"] = columns.NEVER

    def _deny(self, link: int) -> None:
        """Deny every EV whose path crosses a link."""
        deny = self._rule(open_pairs.deny)
        for i in range(len(self.pairs)):
            for half, table in ((0, self.host_state.s.evs[i]), (1, self.host_state.b.evs[i])):
                for e, value in enumerate(table["value"].tolist()):
                    if value >= 0 and any(port // 2 == link for port in self.route(i, half, value)):
                        deny(self.host_state, i, half, e)

    def route(self, pair: int, half: int, route: int) -> tuple[int, ...]:
        """Return the ports of the path that EV bits name."""
        key = (pair, half, route)
        found = self._paths.get(key)
        if found is None:
            ends = self.pairs[pair]
            source, destination = (ends.source, ends.destination) if half == 0 else (ends.destination, ends.source)
            plane, ev = divmod(route, self.paths_of_plane)
            seen_as = int(self.host_state.nics.each[2 * pair + half, host_state.SEEN_AS])
            way = int(way_of(self.routing, 2 * pair + half, seen_as, ev))
            found = self.network.path(source, destination, plane, way)
            self._paths[key] = found
        return found

    @override
    def check_pair(self, pair: int) -> None:
        """Assert the invariants of MRC's rules for both ends of a pair."""
        check_sender(self.host_state.s, pair)
        check_receiver(self.host_state.r, pair)

    @override
    def has(self, pair: int, sequence: int) -> bool:
        """Return whether packet number `sequence` of a pair has arrived, in order or not."""
        return super().has(pair, sequence) or bool(has_packet(self.host_state.r, pair, sequence))

    @override
    def counters(self) -> Mapping[str, NDArray[np.int64]]:
        """Return every counter as a column over pairs."""
        sender, receiver = self.host_state.s.qp, self.host_state.r.qp
        named = ("sent", "resent", "trims", "marks", "silent", "spurious", "timeouts", "probes", "ev_probes")
        more = ("retired", "refused", "readmitted", "reused_ev", "bad_acks", "cwnd")
        found = {name: sender[name].copy() for name in named + more}
        for name in ("accepted", "duplicates", "outside", "sacks", "nacks"):
            found[name] = receiver[name].copy()
        return found


def _make_host_state(
    network: Network, pairs: tuple[Pair, ...], params: np.ndarray, spray: Spray, per_plane: int
) -> host_state.HostState:
    count = len(pairs)
    back = params.copy()
    back["window"], back["slot_mask"], back["messages"], back["message_mask"] = _BACK_WINDOW, _BACK_WINDOW - 1, 1, 0
    ring = int(params["evs"][0]) if spray.kind == host_state.RECYCLE else max(1, spray.ring)
    b, r = columns.make_sender(back, count), columns.make_receiver(params, count)
    # Pairs are numbered by their sources: those of the destinations, where both of these are, lie anywhere.
    at_destinations = columns.together(r.qp, r.arrived, b.planes, b.qp, b.evs)
    r = r._replace(qp=at_destinations[0], arrived=at_destinations[1])
    b = b._replace(planes=at_destinations[2], qp=at_destinations[3], evs=at_destinations[4])
    return host_state.HostState(
        s=columns.make_sender(params, count),
        b=b,
        r=r,
        ring=np.full((count, ring), -1, np.int16),
        ring_at=np.zeros((count, 2), np.int16),
        frozen=np.zeros((count, 2), np.int64),
        spray=np.array([spray.kind, spray.freeze_ps, spray.echoes, per_plane], np.int64),
        nics=nic_columns(network, pairs, host_state.KINDS),
        journal=make_journal(0),
    )
