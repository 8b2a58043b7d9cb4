"""Endpoints that run MRC's rules: MRC itself, and what differs from it in how it sprays and what it reacts to."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from weft.core.seeds import Seed
from weft.core.units import Picoseconds
from weft.mrc import columns
from weft.mrc.sender import POSTED
from weft.mrc.settings import TIMEOUT_UNIT_PS, settings, slots_mask
from weft.netsim import hosts
from weft.netsim.compiling import Fixed
from weft.netsim.memory import check_memory, free_memory, planned_bytes
from weft.netsim.network import Network
from weft.netsim.transports.base import Arrival, Event, Outcome, Pair
from weft.netsim.transports.routing import AS_GIVEN, routing, way_of
from weft.specs.transport import MrcSpec

_WORD_MASK = 2**63 - 1
_BACK_WINDOW = 32
_EV_QUARTER = 4
_LEAST_POOL = 4096
_LONGEST_TIMEOUT = 24


def fitted(spec: MrcSpec, round_trip_ps: int) -> MrcSpec:
    """Return `spec` with every time scaled from the round trip that it was written for to this one."""
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
        }
    )


class SprayedEndpoints:
    """All NICs of a run, driven by the rules of `weft.netsim.hosts`."""

    def __init__(
        self,
        network: Network,
        pairs: Sequence[Pair],
        spec: MrcSpec,
        seed: Seed,
        *,
        spray: int,
        route_by: int = AS_GIVEN,
        route_word: int = 0,
        ev_paths: int | None = None,
        denied: frozenset[int] = frozenset(),
        fast: bool,
    ) -> None:
        """Start every pair; `ev_paths` is how many EVs a plane has where they are not paths."""
        self.network, self.pairs, self._fast = network, tuple(pairs), fast
        self._fixed: dict[Callable[..., Any], Fixed] = {}
        self._paths: dict[tuple[int, int, int], tuple[int, ...]] = {}
        shape = network.shape
        self._stride = ev_paths or shape.paths
        """EVs of a plane: the value of an EV is plane x stride + path."""
        spec = _with_floor(spec, self._stride, shape.planes)
        params = settings(spec, planes=shape.planes, rate_bps=network.fabric.nic_rate, payload=network.frames.payload)
        # Nothing is written with an immediate here, and rings hold no more messages than there will be.
        most = min(int(params["messages"][0]), max((pair.posts for pair in self.pairs), default=1))
        params["messages"], params["message_mask"], params["immediates"] = most, slots_mask(most), 1
        check_memory(*planned_bytes(params, len(self.pairs)), free_memory())
        self.params = params
        self.routing = routing(self.pairs, route_by, self._stride, shape.paths, route_word)
        """How EVs become paths."""
        self.halves = _make_halves(network, self.pairs, params, spray)
        self.sheet = _make_sheet(network, len(self.pairs))
        self._start(seed)
        self._posted = self._rule(hosts.post_message)
        for port in sorted(denied):
            self._deny(port)

    def warm_up(self) -> None:
        """Ask both questions once, with nothing to answer, so that compiling is no part of what a run takes."""
        shape = self.network.shape
        self._rule(hosts.take_in)(self.halves, self.sheet, np.zeros((1, 5), np.int64), 0)
        nothing = np.zeros((shape.hosts, shape.planes), np.int64)
        self._rule(hosts.send_out)(self.halves, self.sheet, 0, nothing[:, 0].copy(), nothing)

    def _rule(self, function: Callable[..., Any]) -> Any:
        if not self._fast:
            return function
        if function not in self._fixed:
            self._fixed[function] = Fixed(function)
        return self._fixed[function]

    def _start(self, seed: Seed) -> None:
        """Make every half ready, each with its own chance, which depends on nothing but its pair."""
        shape = self.network.shape
        words = np.empty((len(self.pairs), 3), np.int64)
        paths = np.empty(len(self.pairs), np.int64)
        for i, pair in enumerate(self.pairs):
            branch = seed.branch("pair", pair.source, pair.destination, pair.lane)
            words[i] = [branch.branch(name).word() & _WORD_MASK for name in ("send", "back", "receive")]
            # Two NICs at one T0 have one path in each plane, whatever uplink an EV names.
            local = shape.t0_of(pair.source) == shape.t0_of(pair.destination)
            paths[i] = 1 if local else len(pair.uplinks) or self._stride
        scratch = np.zeros(self._stride, np.int64)
        self._rule(hosts.start_pairs)(self.halves, words, paths, self._stride, scratch)

    def _deny(self, link: int) -> None:
        """Deny every EV whose path crosses a link."""
        deny = self._rule(hosts.deny)
        for i in range(len(self.pairs)):
            for half, table in ((0, self.halves.s.evs[i]), (1, self.halves.b.evs[i])):
                for e, value in enumerate(table["value"].tolist()):
                    if value >= 0 and any(port // 2 == link for port in self.route(i, half, value)):
                        deny(self.halves, i, half, e)

    def take_in(self, arrivals: Sequence[Arrival]) -> Outcome:
        """Take in what arrived in one slot, in order."""
        count = len(arrivals)
        if count == 0:
            return Outcome((), ())
        table = np.zeros((count, 5), np.int64)
        table[:, :4] = arrivals
        self._make_room(8 * count + 64)
        self.sheet.count[:] = 0
        self._rule(hosts.take_in)(self.halves, self.sheet, table, count)
        return self._outcome(table[:, 4].tolist())

    def send_out(self, start_ps: int, phase: Any, room: Any) -> Outcome:
        """Send what may go in the slot that begins at `start_ps`."""
        self._make_room(int(np.maximum(room, 0).sum()) // self.network.frames.header + 4 * len(self.halves.deadline))
        self.sheet.count[:] = 0
        self._rule(hosts.send_out)(self.halves, self.sheet, start_ps, phase, room)
        return self._outcome(())

    def _outcome(self, fresh: Sequence[int]) -> Outcome:
        sent, events = self.sheet.count.tolist()
        return Outcome(
            self.sheet.out[:sent].tolist(),
            [Event(*row) for row in self.sheet.events[:events].tolist()],
            fresh,
        )

    def _make_room(self, rows: int) -> None:
        """See to it that a call can send `rows` packets."""
        sheet = self.sheet
        if len(sheet.out) < rows:
            sheet = sheet._replace(
                out=np.zeros((2 * rows, hosts.OUT_COLUMNS), np.int64), events=np.zeros((2 * rows, 3), np.int64)
            )
        if sheet.free[0] < rows:
            held = len(sheet.pool)
            more = max(held, 2 * rows)
            free = np.zeros(held + more + 1, np.int64)
            free[: sheet.free[0] + 1] = sheet.free[: sheet.free[0] + 1]
            free[sheet.free[0] + 1 : sheet.free[0] + 1 + more] = np.arange(held, held + more)
            free[0] = sheet.free[0] + more
            sheet = sheet._replace(pool=np.concatenate((sheet.pool, np.zeros(more, hosts.HEADER))), free=free)
        self.sheet = sheet

    def post(self, pair: int, length: int) -> bool:
        """Give a pair a message; return whether it had room for it."""
        return bool(self._posted(self.halves, pair, length) == POSTED)

    def set_goals(self, pair: int, arrived: int, acknowledged: int) -> None:
        """Say after how many packets an `ARRIVED` and an `ACKNOWLEDGED` are wanted; -1 for none."""
        self.halves.goal[pair] = [columns.NEVER if goal < 0 else goal for goal in (arrived, acknowledged)]

    def reached(self, pair: int) -> tuple[int, int]:
        """Return how many packets have arrived without a gap, and for how many the sender knows it."""
        return int(self.halves.r.qp[pair]["expected"]), int(self.halves.s.qp[pair]["una"])

    def route(self, pair: int, half: int, route: int) -> tuple[int, ...]:
        """Return the ports of the path that EV bits name."""
        key = (pair, half, route)
        found = self._paths.get(key)
        if found is None:
            ends = self.pairs[pair]
            source, destination = (ends.source, ends.destination) if half == 0 else (ends.destination, ends.source)
            plane, ev = divmod(route, self._stride)
            found = self.network.path(source, destination, plane, int(way_of(self.routing, 2 * pair + half, ev)))
            self._paths[key] = found
        return found

    def drop(self, row: int) -> None:
        """Forget a packet that was lost on the way."""
        hosts.give_row(self.sheet, row)

    def change_port(self, nic: int, plane: int, *, up: bool, now_ps: int) -> None:
        """Tell a NIC that one of its ports went up or down."""
        self._rule(hosts.change_port)(self.halves, nic, plane, int(up), now_ps)

    def deadline_ps(self) -> int:
        """Return when any half has something to do by itself."""
        return int(self.halves.deadline.min())

    def sequence(self, row: int) -> int:
        """Return the packet number in its pair that a data packet carries."""
        return int(self.sheet.pool[row]["seq"])

    def received(self) -> Any:
        """Return the bytes that each pair has received so far."""
        return self.halves.r.qp["received_bytes"].copy()

    def failure(self, pair: int) -> str:
        """Return the name of the error that a pair ended in, or nothing."""
        code = int(self.halves.s.qp[pair]["error"])
        return columns.ERROR_NAMES[code] if code else ""

    def counters(self) -> Mapping[str, Any]:
        """Return every counter as a column over pairs."""
        sender, receiver = self.halves.s.qp, self.halves.r.qp
        named = ("sent", "resent", "trims", "marks", "silent", "spurious", "timeouts", "probes", "ev_probes")
        more = ("retired", "refused", "readmitted", "reused_ev", "bad_acks", "cwnd")
        found = {name: sender[name].copy() for name in named + more}
        for name in ("accepted", "duplicates", "outside", "sacks", "nacks"):
            found[name] = receiver[name].copy()
        return found


def _with_floor(spec: MrcSpec, paths: int, planes: int) -> MrcSpec:
    """Return `spec` with a minimum active set of at most a quarter of the EVs that there are paths for."""
    there = planes * min(max(1, spec.ev.active // planes), paths)
    floor = min(spec.ev.min_active, max(1, there // _EV_QUARTER))
    return spec.model_copy(update={"ev": spec.ev.model_copy(update={"min_active": floor})})


def _make_halves(network: Network, pairs: tuple[Pair, ...], params: np.ndarray, spray: int) -> hosts.Halves:
    count = len(pairs)
    back = params.copy()
    back["window"], back["slot_mask"], back["messages"], back["message_mask"] = _BACK_WINDOW, _BACK_WINDOW - 1, 1, 0
    nic = np.array([end for pair in pairs for end in (pair.source, pair.destination)], np.int64)
    order = np.argsort(nic, kind="stable")
    first = np.searchsorted(nic[order], np.arange(network.shape.hosts + 1))
    place = np.empty(2 * count, np.int64)
    place[order] = np.arange(2 * count) - first[nic[order]]
    words = np.concatenate(([0], np.cumsum(-(-np.diff(first) // hosts.WORD_BITS))))
    sizes = np.zeros(hosts.KINDS, np.int64)
    sizes[columns.DATA] = network.frames.header
    for kind, size in network.frames.control.items():
        sizes[kind] = size
    ring = int(params["evs"][0]) if spray == hosts.RECYCLE else 1
    return hosts.Halves(
        columns.make_sender(params, count),
        columns.make_sender(back, count),
        columns.make_receiver(params, count),
        nic,
        np.full(2 * count, columns.NEVER, np.int64),
        np.full((count, 2), columns.NEVER, np.int64),
        first.astype(np.int64),
        order.astype(np.int64),
        np.zeros(network.shape.hosts, np.int64),
        place,
        np.zeros(int(words[-1]), np.int64),
        words.astype(np.int64),
        np.zeros(network.shape.hosts, np.int8),
        np.full(network.shape.hosts, columns.NEVER, np.int64),
        np.full((count, ring), -1, np.int16),
        np.zeros((count, 2), np.int16),
        sizes,
        np.array([spray], np.int64),
    )


def _make_sheet(network: Network, pairs: int) -> hosts.Sheet:
    rows = max(_LEAST_POOL, 64 * pairs)
    free = np.zeros(rows + 1, np.int64)
    free[0] = rows
    free[1:] = np.arange(rows)
    out = max(_LEAST_POOL, 8 * network.shape.hosts * network.shape.planes)
    return hosts.Sheet(
        np.zeros(rows, hosts.HEADER),
        free,
        np.zeros((out, hosts.OUT_COLUMNS), np.int64),
        np.zeros((out, 3), np.int64),
        np.zeros(2, np.int64),
    )
