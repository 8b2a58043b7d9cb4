"""An endpoint: one socket, one thread, registered memory and queue pairs to peers.

    here = Endpoint(Loopback(planes=4))
    memory = here.register(numpy_array)
    pair = here.offer("rank 1")           # pair.card goes to the peer by any means, the peer's comes back
    pair.connect(card_of_the_peer)
    pair.write(memory, 0, size, far_address, far_key, immediate=7)
    pair.wait()                           # Completion("sent", ...) or Completion("immediate", ...)

Operations are those of MRC: write, and write with an immediate that the peer sees once everything before it has
landed. The thread runs compiled code without Python's lock and starts with the endpoint, so an endpoint is made after
any fork. Which memory a peer may write is decided by keys: it gets address and key of a region, and nothing else
can be reached. There is no flow control between programs here; `torch_backend` shows one way to build it.
"""

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from weft.core.errors import FailedError, LimitReachedError, UsageError
from weft.core.seeds import Seed
from weft.mrc import journal
from weft.mrc.invariants import check_receiver, check_sender
from weft.mrc.rules.evs import Paths
from weft.mrc.rules.receiver import start_receiver
from weft.mrc.rules.sender import start_sender
from weft.mrc.rules.settings import settings as mrc_settings
from weft.mrc.wire.tags import SECRET_BYTES, expanded
from weft.transport.memory import layout
from weft.transport.memory.arithmetic import reduce_at
from weft.transport.memory.keyed_hash import sip_at, sums_at
from weft.transport.memory.layout import INDEX_BITS, EndpointState, make_state
from weft.transport.memory.native import crc_at, load_word, store_word
from weft.transport.memory.tables import SLOT, SLOTS, make_transfers
from weft.transport.packets.authentication import INBOUND, OUTBOUND
from weft.transport.packets.compiling import Pump, compiled_pump, one_at_a_time
from weft.transport.packets.pump import pump
from weft.transport.queue_pair import BROKEN, QueuePair
from weft.transport.regions import Region, RegionTable, address_and_size
from weft.transport.replay import PairStart, RecordedCalls
from weft.transport.shared_memory import SharedRings, card_of, slot_bytes
from weft.transport.sockets import (
    admit,
    class_message,
    control_message,
    held,
    open_socket,
    packed,
    refuse_small_mtu,
    source_of,
)
from weft.transport.underlay import Loopback, Place, Underlay

LIVENESS_S = 3.0
"""Silence after which a peer that is waited for counts as gone, at least; five times what it usually takes, if more."""
_PS = 10**12
_LOG = logging.getLogger(__name__)
_WORD_MASK = 2**63 - 1
_ROUNDS, _WAIT_NS = 1 << 20, 100_000_000
_LINGER_S = 2.0
_QUIET_S = 0.05
_WINDOW_LEAST = 1 << 20
"""Bytes that a fixed window has where there is room, though all peers at once might then fill the receive buffer."""
_HEAR_S = 0.01
_CHECK_EVERY_NS = 1_000_000_000
"""How often one queue pair is held to the invariants: that takes a millisecond, so a thousandth of the thread."""


@dataclass(frozen=True)
class EndpointSettings:
    """How an endpoint runs, whatever its network."""

    authenticate: bool = True
    """Whether every packet carries tags that only the peer can make (`weft.mrc.wire.tags`), and all are looked at.

    Without, whoever can send to the port can end a connection; for networks on which nobody else is."""
    check: bool = True
    """Whether a packet without tags carries an ICRC, and that of every packet is looked at."""
    liveness_s: float = LIVENESS_S
    """Silence after which a peer that is waited for counts as gone, at least."""
    seed: int | None = None
    """Where its random numbers start; somewhere else each time where it is None."""
    journal_rows: int = 0
    """Calls into the protocol that are kept."""
    capture_rows: int = 0
    """Packets that are kept."""
    fast: bool = True
    """Whether the thread is compiled; without, everything is a hundred times slower."""


class Endpoint:
    """A socket with its thread; see the module."""

    def __init__(
        self,
        underlay: Underlay | None = None,
        settings: EndpointSettings | None = None,
        *,
        port: int = 0,
        peers: int = 8,
    ) -> None:
        """Bind to `port` (any where it is 0) with room for `peers` queue pairs."""
        self.underlay: Underlay = underlay or Loopback()
        self.settings = settings or EndpointSettings()
        self.seed = Seed(secrets.randbits(62) if self.settings.seed is None else self.settings.seed)
        self.lock, self._fence = threading.RLock(), threading.Lock()
        self._owner, self._closed, self._broken = os.getpid(), False, ""
        self._pairs: dict[int, QueuePair] = {}
        self._ports_down: set[int] = set()
        self._starts: dict[int, PairStart] = {}
        self.on_program: Callable[[int, int, int], None] | None = None
        """Called with (program, error, queue pair) when a collective program ends."""
        params = mrc_settings(
            self.underlay.spec,
            planes=self.underlay.planes,
            rate_bps=self.underlay.rate_bps,
            payload=self.underlay.payload,
        )
        self._socket = open_socket(self.underlay, port)
        self._admitted: list[int] = []
        if self.underlay.window:
            room = held(self._socket)
            window = min(self.underlay.window, room, max(_WINDOW_LEAST, room // peers))
            params["window_max"] = max(int(params["mtu"][0]), window)
        self.state: EndpointState = make_state(
            params, queue_pairs=peers, transfers=make_transfers(peers), journal_rows=self.settings.journal_rows,
            capture_rows=self.settings.capture_rows,
        )  # fmt: skip
        self._regions = RegionTable(self.state.regions)
        # A pipe, not an eventfd: a peer on this host can open its end by name and ring.
        self._heard, self._bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._rings = SharedRings(self.underlay.payload, self._bell)
        self._set_up_hub()
        self._pump: Pump = compiled_pump() if self.settings.fast else pump
        # Compiling, or loading what is compiled, is no part of anybody's waiting for an answer.
        with one_at_a_time() if self.settings.fast else nullcontext():
            self._pump(self.state, 0, 0)
        if not self.settings.fast:
            at = layout.address_of(self.state.scratch)
            crc_at(at, 64, 0, self.state.scratch)
            sip_at(at, at, 0)
            sums_at(at, at, 0, at, at)
            store_word(at, load_word(at))
            reduce_at(0, at, at, 0)
        self._thread = threading.Thread(target=self._run, name="weft-wire", daemon=True)
        self._thread.start()
        self._unwatch = self.underlay.watch_ports(lambda plane, up: self.port_changed(plane, up=up))

    def _set_up_hub(self) -> None:
        hub, settings = self.state.hub[0], self.settings
        hub["socket"], hub["bell"] = self._socket.fileno(), self._heard
        hub["shared_plane"], hub["ring_slot_bytes"] = self.underlay.shared_plane, slot_bytes(self.underlay.payload)
        hub["base_ns"], hub["stride"], hub["check"] = time.monotonic_ns(), self.underlay.paths, int(settings.check)
        hub["authenticate"] = int(settings.authenticate)
        hub["liveness_ps"] = round(max(settings.liveness_s, 0.0) * _PS)
        hub["capture_on"] = int(settings.capture_rows > 0)
        hub["class_message"] = class_message(self.underlay.family)
        self.state.tx_control[:] = control_message(self.underlay.family)
        hub["shim_word"] = self.seed.branch("shim").word() & _WORD_MASK

    @property
    def port(self) -> int:
        """Return the UDP port."""
        return int(self._socket.getsockname()[1])

    def _run(self) -> None:
        hub = self.state.hub[0]
        turn, check_ns = 0, time.monotonic_ns() + _CHECK_EVERY_NS
        while not hub["stop"]:
            self._pump(self.state, _ROUNDS, _WAIT_NS)
            # Between two calls nothing moves, so the columns can be looked at.
            if time.monotonic_ns() >= check_ns:
                turn, check_ns = turn + 1, time.monotonic_ns() + _CHECK_EVERY_NS
                if not self._check_one(turn):
                    return
            # Whoever holds the lock may wait for this thread to take commands: go on, and hear later.
            if hub["events_head"] > hub["events_tail"] and self.lock.acquire(timeout=_HEAR_S):
                try:
                    self._hear()
                finally:
                    self.lock.release()

    def _check_one(self, turn: int) -> bool:
        """Hold one queue pair to the protocol's invariants; end the endpoint and return False where one is broken."""
        with self.lock:
            pairs = [pair for pair in self._pairs.values() if self.state.peers[pair.index]["open"] == 1]
        if not pairs:
            return True
        pair = pairs[turn % len(pairs)]
        try:
            check_sender(self.state.sender, pair.index)
            check_receiver(self.state.receiver, pair.index)
        except AssertionError as broken:
            # What the columns say can no longer be trusted: better no answer than a wrong one.
            with self.lock:
                self._broken = f"broken invariant of the queue pair to {pair.name}: {broken}"
                for each in self._pairs.values():
                    each.took(layout.FAILED, 0, BROKEN)
                if self.on_program is not None:
                    for number in np.flatnonzero(self.state.transfers.programs["state"]).tolist():
                        self.on_program(number, BROKEN, pair.index)
            _LOG.error("the endpoint at UDP port %d has ended: %s", self.port, self._broken)
            return False
        return True

    def _hear(self) -> None:
        """Hand on the events of the thread; the lock is held."""
        hub = self.state.hub[0]
        while hub["events_tail"] < hub["events_head"]:
            kind, index, value, status, _ = self.state.events[hub["events_tail"] % layout.EVENTS].tolist()
            hub["events_tail"] += 1
            if kind == layout.PROGRAM_DONE:
                if self.on_program is not None:
                    self.on_program(value, status, index)
            elif index in self._pairs:
                self._pairs[index].took(kind, value, status)

    def wake(self) -> None:
        """Wake the thread."""
        if not self._closed:
            self._ring()

    def command(self, kind: int, *numbers: int) -> None:
        """Ask the thread for something."""
        with self.lock:
            self._usable()
            hub = self.state.hub[0]
            posted = int(hub["posted"])
            if posted - hub["taken"] >= layout.COMMANDS:
                self._wait_for_room()
            self.state.commands[posted % layout.COMMANDS, : 1 + len(numbers)] = (kind, *numbers)
            hub["posted"] = posted + 1
        # A lock taken and let go is a fence: the thread either sees the command before it sleeps or is seen asleep.
        with self._fence:
            asleep = hub["asleep"]
        if asleep:
            self.wake()

    def _wait_for_room(self) -> None:
        """Wait until the thread has taken a command."""
        hub = self.state.hub[0]
        limit = time.monotonic() + _LINGER_S
        while hub["posted"] - hub["taken"] >= layout.COMMANDS:
            if time.monotonic() > limit:
                raise LimitReachedError("the endpoint's thread does not take commands; its queue of 1,024 is full")
            time.sleep(0.0001)

    def _usable(self) -> None:
        if self._broken:
            raise FailedError(f"this endpoint has ended: {self._broken}")
        if self._closed:
            raise UsageError("this endpoint is closed; make a new one")
        if os.getpid() != self._owner:
            raise UsageError("an endpoint does not survive a fork; make one in the child")

    def register(self, memory: object) -> Region:
        """Let peers that know its key write into `memory`, a numpy array or CPU tensor."""
        address, size = address_and_size(memory)
        return self.register_at(address, size, memory)

    def register_at(self, address: int, size: int, owner: object = None, *, adds: int = 0) -> Region:
        """Let peers that know its key write into `size` bytes at `address`, which `owner` keeps alive.

        Where `adds` is one more than a kind of reduction, what comes is combined with what is there.
        """
        with self.lock:
            self._usable()
            return self._regions.add(address, size, owner, adds)

    def deregister(self, region: Region) -> None:
        """Take the key away; when this returns nothing writes there any more."""
        with self.lock:
            if not self._regions.close(region):
                return
        self._settle()
        with self.lock:
            self._regions.forget(region)

    def release(self, region: Region) -> None:
        """Take the key away without waiting: for memory that no peer has a reason to write to any more."""
        with self.lock:
            if self._regions.close(region):
                self._regions.forget(region)

    def _settle(self) -> None:
        """Wait until the thread has begun another turn."""
        if self._closed or self._broken or threading.current_thread() is self._thread:
            return
        self.command(0)
        hub = self.state.hub[0]
        goal, limit = int(hub["posted"]), time.monotonic() + _LINGER_S
        while hub["taken"] < goal and time.monotonic() < limit:
            time.sleep(0.0001)

    def offer(self, name: str, *, rank: int = -1, engine: bool = False) -> QueuePair:
        """Return a queue pair that is not connected yet; `name` is what errors call its peer."""
        with self.lock:
            self._usable()
            index = next((row for row in range(len(self.state.peers)) if row not in self._pairs), None)
            if index is None:
                raise LimitReachedError(f"all {len(self.state.peers)} queue pairs are in use; raise peers")
            number = secrets.randbits(24 - INDEX_BITS) << INDEX_BITS | index
            peer = self.state.peers[index]
            peer["number"], peer["rank"], peer["engine"] = number, rank, int(engine)
            card: dict[str, Any] = {
                "number": number,
                "first": secrets.randbits(24),
                "planes": self.underlay.planes,
                "payload": self.underlay.payload,
                "check": int(self.state.hub[0]["check"]),
                "authenticate": int(self.settings.authenticate),
                "place": self.underlay.place(self.port),
            }
            if self.settings.authenticate:
                # Whoever is given the card, and nobody else, can speak on this queue pair.
                secret = secrets.token_bytes(SECRET_BYTES)
                card["secret"] = secret.hex()
                self.state.keys[index, INBOUND] = np.frombuffer(expanded(secret), np.int64)
            if self.underlay.shared_plane >= 0:
                peer["ring_in"], card["shared"] = self._rings.offer()
                self.state.hub[0]["rings"] += 1
            if engine:
                size = SLOTS * SLOT
                inbox = self.register_at(
                    int(self.state.transfers.at[1]) + index * size, size, self.state.transfers.inbox
                )
                card["inbox"] = [inbox.address, inbox.key]
            self._pairs[index] = QueuePair(self, index, name, card)
            return self._pairs[index]

    def start_pair(self, pair: QueuePair, card: Mapping[str, Any]) -> None:
        """Make a queue pair ready for packets from the peer that gave `card`."""
        for key in ("planes", "payload", "check", "authenticate"):
            if card.get(key) != pair.card[key]:
                found = card.get(key, "nothing")
                raise UsageError(f"{pair.name} has {key} = {found}, this endpoint {pair.card[key]}; use the same")
        place: Place = card["place"]
        refuse_small_mtu(self.underlay, pair.name, self.underlay.address(place, 0))
        index, state, paths = pair.index, self.state, self.underlay.paths
        random = self.seed.branch("pair", index)
        words = [random.branch(name).word() & _WORD_MASK for name in ("send", "receive")]
        self._starts[index] = PairStart(words[0], int(pair.card["first"]), words[1], int(card["first"]))
        start_sender(
            state.sender, index, words[0], int(pair.card["first"]), Paths(paths, paths, np.zeros(paths, np.int64))
        )
        start_receiver(state.receiver, index, words[1], int(card["first"]))
        for path, value in enumerate(state.sender.evs[index]["value"].tolist()):
            if value >= 0:
                name = packed(self.underlay.family, self.underlay.address(place, value))
                state.names[index, path, : len(name)] = np.frombuffer(name, np.uint8)
                state.name_bytes[index] = len(name)
        peer = state.peers[index]
        peer["remote"] = card["number"]
        port = int(place["port"])
        peer["source"], peer["source_mask"] = source_of(self.underlay.family, self.underlay.source(place), port)
        if self.settings.authenticate:
            state.keys[index, OUTBOUND] = np.frombuffer(expanded(bytes.fromhex(card["secret"])), np.int64)
        self._share(index, card.get("shared"))
        self._admitted.append(port)
        admit(self._socket, self._admitted)
        peer["heard_ps"] = (time.monotonic_ns() - int(state.hub[0]["base_ns"])) * 1000
        peer["deadline_ps"] = peer["heard_ps"]
        if peer["engine"]:
            peer["far_inbox"], peer["far_key"] = card["inbox"]
        # Last: from here on the thread takes packets for it.
        peer["open"] = 1
        self.wake()
        for plane in sorted(self._ports_down):
            self.command(layout.PORT, 0, plane, 0)

    def _share(self, index: int, known: object) -> None:
        """Send to a peer through its ring, where it has one and is a process of this host and user."""
        ring = card_of(known)
        opened = self._rings.accept(ring) if ring and self.underlay.shared_plane >= 0 else None
        if opened is not None:
            peer = self.state.peers[index]
            evs = self.state.sender.evs[index]
            peer["shared_ev"] = int(np.flatnonzero(evs["plane"] == self.underlay.shared_plane)[0])
            peer["bell"] = opened[1]
            peer["ring_out"] = opened[0]

    def cut(self, plane: int, *, cut: bool = True) -> None:
        """Lose everything on a plane, in both directions and silently, or stop doing so."""
        self._refuse_plane(plane)
        hub = self.state.hub[0]
        hub["cut"] = hub["cut"] | 1 << plane if cut else hub["cut"] & ~(1 << plane)
        self._shim()

    def lose(self, plane: int, share: float) -> None:
        """Lose a share of the packets of a plane, in both directions."""
        self._refuse_plane(plane)
        if not 0 <= share <= 1:
            raise UsageError(f"a share of loss lies between 0 and 1, not at {share}")
        self.state.shim[plane] = round(share * 1_000_000)
        self._shim()

    def _shim(self) -> None:
        hub = self.state.hub[0]
        hub["shim_on"] = int(hub["cut"] != 0 or self.state.shim.any())

    def port_changed(self, plane: int, *, up: bool) -> None:
        """Say that this host's port of a plane went up or down, as a NIC sees it."""
        self._refuse_plane(plane)
        (self._ports_down.discard if up else self._ports_down.add)(plane)
        self.command(layout.PORT, 0, plane, int(up))

    def _refuse_plane(self, plane: int) -> None:
        if not 0 <= plane < self.underlay.planes:
            raise UsageError(f"there is no plane {plane}; they run from 0 to {self.underlay.planes - 1}")

    def pairs(self) -> list[QueuePair]:
        """Return the queue pairs."""
        with self.lock:
            return list(self._pairs.values())

    def record(self) -> RecordedCalls:
        """Return the calls into the protocol that were kept, for `weft.transport.replay`."""
        rows, params = journal.written(self.state.journal).copy(), self.state.sender.params.copy()
        return RecordedCalls(params, self.underlay.paths, dict(self._starts), rows, journal.lost(self.state.journal))

    def close(self, linger_s: float = _LINGER_S) -> None:
        """Leave in order: everything that was posted is acknowledged first, for `linger_s` at most."""
        if self._closed or os.getpid() != self._owner:
            return
        self._unwatch()
        for pair in self.pairs() if not self._broken else ():
            if self.state.peers[pair.index]["open"]:
                self.command(layout.CLOSE, pair.index)
        limit = time.monotonic() + linger_s
        while time.monotonic() < limit and not self._broken and not self._quiet():
            time.sleep(0.001)
        self._closed = True
        self.state.hub[0]["stop"] = 1
        self._ring()
        self._thread.join()
        self._socket.close()
        self._rings.close()
        os.close(self._heard)
        os.close(self._bell)

    def _ring(self) -> None:
        # A full pipe has rung already.
        with suppress(BlockingIOError):
            os.write(self._bell, b"\0")

    def _quiet(self) -> bool:
        """Return whether every peer has everything, and those of an engine have said goodbye or are gone."""
        hub = self.state.hub[0]
        if hub["taken"] < hub["posted"]:
            return False
        now_ps = (time.monotonic_ns() - int(hub["base_ns"])) * 1000
        for peer, sender in zip(self.state.peers, self.state.sender.qp, strict=True):
            if not peer["open"] or peer["failed"]:
                continue
            # A peer may still ask for what it has: an acknowledgement can be lost.
            quiet = bool(peer["bye"]) if peer["engine"] else now_ps - peer["heard_ps"] > _QUIET_S * _PS
            if sender["una"] != sender["end"] or not quiet:
                return False
        return True

    def __enter__(self) -> "Endpoint":
        """Return the endpoint."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave in order."""
        self.close()
