"""RoCEv2 as it is usually run: one hashed path for a queue pair, PFC, DCQCN, go-back-N.

Every queue pair is hashed to one plane and one path of it (ECMP), as its UDP source port is; several queue pairs for a
flow are several hashes. The hash is taken over the paths that routing holds to be alive. Sources beside each default in
`weft.specs.rivals.RoceSpec`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from weft.core.compile.rules import Specialisation
from weft.core.seeds import Seed, mix
from weft.mrc.columns import NACK, SACK
from weft.mrc.wire.headers import Bth
from weft.mrc.wire.icrc import ICRC_BYTES
from weft.mrc.wire.overhead import ETHERNET_BYTES, UDP_BYTES
from weft.netsim.host import mrc_host, prefetch, roce_host
from weft.netsim.model.network import Frames, Network, pause_lags
from weft.netsim.model.queue_pairs import Pair
from weft.netsim.model.switching import MARK_ONE, Marking, Pause, Switching
from weft.netsim.transports.base import Endpoints
from weft.netsim.transports.column_endpoints import ColumnEndpoints, make_packet_pool, nic_columns
from weft.netsim.transports.routing import AS_GIVEN, routing
from weft.specs.rivals import PfcSpec, RoceSpec

_HASH_BITS = 32
_IPV4_BYTES = 20
_AROUND = ETHERNET_BYTES + _IPV4_BYTES + UDP_BYTES + Bth.size() + ICRC_BYTES
_CONTROL = {SACK: _AROUND + 4, NACK: _AROUND + 4, roce_host.CNP: _AROUND + 16}
"""AETH in acknowledgements; 16 reserved bytes in a CNP (InfiniBand annex A17.9.3)."""
_TIMEOUT_UNIT_PS = 4_096_000
_MESSAGES = 64
_ZEROS = ("trims", "marks", "retired", "refused", "readmitted", "silent", "spurious", "probes")


@dataclass(frozen=True)
class Roce:
    """RoCEv2."""

    spec: RoceSpec
    """Its parameters."""
    queue_pairs: int = 1
    """Queue pairs of a flow, each on its own path."""
    trimming: bool = False
    """Whether its switches trim: it would not know what to do with it."""
    ecn_last_hop: bool = True
    """Whether the last hop marks: everywhere."""

    @property
    def name(self) -> str:
        """Return its name."""
        return f"roce:{self.queue_pairs}"

    def frames(self, payload: int) -> Frames:
        """Return how large its packets are around `payload` bytes."""
        return Frames(payload, _AROUND, _CONTROL)

    def switching(self, network: Network) -> Switching:
        """Return PFC, the marks that DCQCN wants, and routing."""
        spec = self.spec
        low, high = (scaled(limit, spec, network) for limit in (spec.dcqcn.ecn_low, spec.dcqcn.ecn_high))
        marking = Marking(low, high, round(spec.dcqcn.ecn_most * MARK_ONE))
        return Switching(
            pause=pause_of(spec.pfc, network),
            marking=marking if spec.dcqcn.on else None,
            ordered=True,
            reconvergence_ps=spec.reconvergence,
        )

    def open(self, network: Network, pairs: Sequence[Pair], seed: Seed, *, fast: bool) -> Endpoints:
        """Return the endpoints of `pairs`."""
        return RoceEndpoints(network, pairs, self.spec, seed, fast=fast)


def pause_of(spec: PfcSpec, network: Network) -> Pause:
    """Return PFC's thresholds on a fabric; the headroom is what its longest link can bring after a pause is due."""
    bdp, slot_ps = network.plane_bdp, network.slot_ps
    pause = Pause(round(spec.xoff * bdp), round(spec.xon * bdp), 0, spec.reaction)
    # A frame for every slot until the port stops, and for every slot that one takes to get here and be forwarded; one
    # that has just begun, and one for the slot that a credit may be ahead.
    late = max(
        lag + -(-int(delay_ps) // slot_ps)
        for lag, delay_ps, into_nic in zip(pause_lags(network, pause), network.delay_ps, network.last_hop, strict=True)
        if not into_nic
    )
    return replace(pause, headroom=(late + 2) * network.frames.full)


def scaled(amount: int, spec: RoceSpec, network: Network) -> int:
    """Return what was chosen for DCQCN's line rate as it is at the rate of the fabric's ports."""
    return amount * network.fabric.port_rate // spec.dcqcn.line_rate


class RoceEndpoints(ColumnEndpoints):
    """All NICs of a run, driven by the rules of `weft.netsim.host.roce_host`."""

    rules = roce_host
    swap = Specialisation(
        "roce",
        {
            mrc_host.take_one: roce_host.take_one,
            mrc_host.send_control: roce_host.send_control,
            mrc_host.send_data: roce_host.send_data,
            prefetch.prefetch_reply: prefetch.no_reply,
            prefetch.prefetch_path: prefetch.no_reply,
            prefetch.prefetch_acked: prefetch.none_acked,
            prefetch.prefetch_nic: prefetch.no_nic,
            prefetch.prefetch_windows: prefetch.no_nic,
            prefetch.prefetch_data: prefetch.no_nic,
        },
    )

    def __init__(self, network: Network, pairs: Sequence[Pair], spec: RoceSpec, seed: Seed, *, fast: bool) -> None:
        """Start every queue pair on the path that it is hashed to."""
        self.network, self.pairs, self._fast = network, tuple(pairs), fast
        self._fixed = {}
        self._paths: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self._stride = network.shape.paths
        self.host_state = make_host_state(network, self.pairs, spec)
        self.params = self.host_state.s.params
        free = [Pair(pair.source, pair.destination, pair.lane) for pair in self.pairs]
        self.routing = routing(free, AS_GIVEN, self._stride, network.shape.paths)
        self.outbox = make_packet_pool()
        words = seed.words(("pair", pair.source, pair.destination, pair.lane) for pair in self.pairs)
        self._hashes = [tuple(mix(word, n) >> _HASH_BITS for n in range(3)) for word in words]
        start = self._rule(roce_host.start_pair)
        for i in range(len(self.pairs)):
            start(self.host_state, i, *self._routes(i, frozenset()))

    def _routes(self, i: int, dead: frozenset[int]) -> tuple[int, int, int]:
        """Return plane, path there and path back that a queue pair is hashed to, given what routing holds for dead."""
        pair, shape = self.pairs[i], self.network.shape
        plane, there, back = self._hashes[i]
        plane = plane * shape.planes >> _HASH_BITS
        ways = self._alive(pair, plane, dead)
        routes = [plane * self._stride + ways[value * len(ways) >> _HASH_BITS] for value in (there, back)]
        return plane, routes[0], routes[1]

    def _alive(self, pair: Pair, plane: int, dead: frozenset[int]) -> Sequence[int]:
        """Return the paths of a plane that cross no dead link; all where there is none."""
        ways: Sequence[int] = pair.uplinks or range(self.network.shape.paths)
        if not dead or self.network.shape.t0_of(pair.source) == self.network.shape.t0_of(pair.destination):
            return ways
        alive = [
            way
            for way in ways
            if not any(port // 2 in dead for port in self.network.path(pair.source, pair.destination, plane, way)[1:-1])
        ]
        return alive or ways

    @override
    def reconverge(self, dead: frozenset[int]) -> None:
        """Hash every queue pair again over the paths that are left."""
        for i in range(len(self.pairs)):
            _, self.host_state.s.qp[i]["route"], self.host_state.s.qp[i]["back_route"] = self._routes(i, dead)

    def route(self, pair: int, half: int, route: int) -> tuple[int, ...]:
        """Return the ports of the path that a packet's route names."""
        key = (pair, half, route)
        found = self._paths.get(key)
        if found is None:
            ends = self.pairs[pair]
            source, destination = (ends.source, ends.destination) if half == 0 else (ends.destination, ends.source)
            found = self._paths[key] = self.network.path(source, destination, *divmod(route, self._stride))
        return found

    @override
    def counters(self) -> Mapping[str, NDArray[np.int64]]:
        """Return every counter as a column over pairs; what RoCE has not is 0."""
        sender, receiver = self.host_state.s.qp, self.host_state.r.qp
        found = {name: sender[name].copy() for name in ("sent", "resent", "timeouts", "cnps", "rate_bps")}
        found |= {name: receiver[name].copy() for name in ("accepted", "duplicates", "outside", "acks", "naks")}
        return found | {name: np.zeros(len(self.pairs), np.int64) for name in _ZEROS}


def make_host_state(network: Network, pairs: Sequence[Pair], spec: RoceSpec) -> roce_host.RoceHostState:
    """Return the columns of `pairs`."""
    params = params_of(network, spec)
    return roce_host.RoceHostState(
        s=roce_host.Side(params, np.zeros(len(pairs), roce_host.SENDER)),
        r=roce_host.Side(params, np.zeros(len(pairs), roce_host.RECEIVER)),
        messages=np.zeros((len(pairs), _MESSAGES), roce_host.MESSAGE),
        nics=nic_columns(network, pairs, roce_host.KINDS),
    )


def params_of(network: Network, spec: RoceSpec) -> np.ndarray:
    """Return the parameters as one row."""
    control = spec.dcqcn
    figures = {
        "payload": network.frames.payload,
        "slot_ps": network.slot_ps,
        "timeout_ps": _TIMEOUT_UNIT_PS << spec.timeout,
        "retries": spec.retries,
        "ack_every": spec.ack_every,
        "window": spec.window,
        "message_mask": _MESSAGES - 1,
        "dcqcn": int(control.on),
        "line_bps": network.fabric.port_rate,
        "least_bps": control.least_rate,
        "ai_bps": scaled(control.additive, spec, network),
        "hai_bps": scaled(control.hyper, spec, network),
        "gain": round(control.gain * roce_host.ALPHA_ONE),
        "cnp_ps": control.cnp_interval,
        "alpha_ps": control.alpha_timer,
        "rise_ps": control.rise_timer,
        "rise_bytes": control.rise_bytes,
        "fast": control.fast_rounds,
        "first_alpha": round(control.first_alpha * roce_host.ALPHA_ONE),
        "burst_bytes": control.burst,
        "window_max": 2 * network.plane_bdp,
    }
    row = np.zeros(1, roce_host.PARAMS)
    for name, value in figures.items():
        row[name] = int(value)
    return row
