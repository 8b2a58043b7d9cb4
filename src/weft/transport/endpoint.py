"""An endpoint: one socket, one thread, registered memory and queue pairs to peers.

    here = Endpoint(Loopback(planes=4))
    memory = here.register(numpy_array)
    pair = here.offer("rank 1")           # pair.card goes to the peer by any means, the peer's comes back
    pair.connect(card_of_the_peer)
    pair.write(memory, 0, size, far_address, far_key, immediate=7)
    pair.wait()                           # Completion("sent", ...) or Completion("immediate", ...)

Operations are those of MRC: write, and write with an immediate that the peer is told of once everything before it has
landed. The thread runs compiled code without Python's lock and starts with the endpoint, so an endpoint is made after
any fork. Which memory a peer may write is decided by keys: it is told address and key of a region, and nothing else
can be reached. There is no flow control between programs here; `torch_backend` shows one way to build it.
"""

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np

from weft.core.errors import FailedError, LimitReachedError, UsageError
from weft.core.seeds import Seed
from weft.mrc.columns import ERROR_NAMES
from weft.mrc.rules.receiver import start_receiver
from weft.mrc.rules.sender import start_sender
from weft.mrc.rules.settings import settings
from weft.transport.memory import layout
from weft.transport.memory.arithmetic import reduce_at
from weft.transport.memory.layout import INDEX_BITS, EndpointState, make_state
from weft.transport.memory.native import crc_at
from weft.transport.messages.tables import OVERFULL, SLOT, SLOTS, TOLD, WRONG_SIZE, make_transfers
from weft.transport.packets.compiling import compiled_pump, one_at_a_time
from weft.transport.packets.pump import pump
from weft.transport.replay import PairStart, RecordedCalls
from weft.transport.sockets import held, open_socket, packed, refuse_small_mtu
from weft.transport.underlay import Loopback, Place, Underlay

LIVENESS_S = 3.0
"""Silence after which a peer that is waited for counts as gone, at least; five times what it usually takes, if more."""
_PS = 10**12
_WORD_MASK = 2**63 - 1
_ROUNDS, _WAIT_NS = 1 << 20, 100_000_000
_LINGER_S = 2.0
_QUIET_S = 0.05
_WINDOW_LEAST = 1 << 20
"""Bytes that a fixed window has where there is room, though all peers at once might then fill the receive buffer."""
_HEAR_S = 0.01
_MOST_COMPLETIONS = 65_536

ENGINE_ERRORS = {
    layout.GONE: "SILENT",
    OVERFULL: "INBOX_OVERFLOW",
    WRONG_SIZE: "WRONG_SIZE",
    TOLD: "REPORTED_GONE",
}


class PeerGoneError(FailedError):
    """A queue pair has come to its end; the text names the peer and the reason."""


def error_name(code: int) -> str:
    """Return the name of the error that a queue pair ended in."""
    return ENGINE_ERRORS.get(code) or ERROR_NAMES[code]


@dataclass(frozen=True)
class Region:
    """Memory that peers may write to, once they know its key."""

    key: int
    """What opens it."""
    address: int
    """Where it begins."""
    size: int
    """Bytes."""
    owner: Any = field(repr=False, default=None)
    """Keeps the memory alive."""


@dataclass(frozen=True)
class Completion:
    """Something that has happened on a queue pair."""

    kind: str
    """"sent" for a write that has been acknowledged, "immediate" for one that has arrived here."""
    value: int
    """The number that `write` returned, or the immediate."""


def memory_of(memory: Any) -> tuple[int, int]:
    """Return address and bytes of a numpy array or of a CPU tensor, which must lie in one piece."""
    if hasattr(memory, "data_ptr"):
        if memory.device.type != "cpu" or not memory.is_contiguous():
            raise UsageError("only contiguous CPU tensors can be registered; this is a CPU transport")
        return int(memory.data_ptr()), int(memory.numel() * memory.element_size())
    array = np.asarray(memory)
    if not array.flags.c_contiguous or array.__array_interface__["data"][1]:
        raise UsageError("only contiguous arrays that can be written to can be registered")
    return int(array.ctypes.data), int(array.nbytes)


class QueuePair:
    """One connection to a peer."""

    def __init__(self, endpoint: "Endpoint", index: int, name: str, card: dict[str, Any]) -> None:
        """Belong to `endpoint`; made by `Endpoint.offer`."""
        self.endpoint, self.index, self.name, self.card = endpoint, index, name, card
        self.failure = 0
        self._done: deque[Completion] = deque()
        self._posted = self._settled = 0
        self._news = threading.Condition(endpoint.lock)

    def connect(self, card: Mapping[str, Any]) -> None:
        """Begin to talk to the peer that gave `card`."""
        self.endpoint.start_pair(self, card)

    def write(
        self, region: Region, offset: int, length: int, far_address: int, far_key: int, *, immediate: int | None = None
    ) -> int:
        """Write bytes of a region to the peer's memory; returns a number that its completion carries.

        Waits while the queue is full, which is `messages` writes that the peer has not acknowledged.
        """
        if not 0 <= offset <= offset + length <= region.size or length <= 0:
            raise UsageError(f"bytes {offset} to {offset + length} are not in a region of {region.size} bytes")
        most = int(self.endpoint.wire.s.params[0]["messages"])
        with self._news:
            while self._posted - self._settled >= most:
                self.check()
                self._news.wait(0.1)
            self.check()
            number = self._posted
            self._posted += 1
            self.endpoint.command(
                layout.POST, self.index, region.address + offset, far_address, far_key, length,
                -1 if immediate is None else immediate, number,
            )  # fmt: skip
        return number

    def check(self) -> None:
        """Raise the error that the queue pair has ended in, if it has."""
        if self.failure:
            raise PeerGoneError(f"{self.name} is gone: {error_name(self.failure)}")

    def wait(self, timeout_s: float | None = None) -> Completion | None:
        """Return the next completion; nothing after `timeout_s`; raises where the peer is gone."""
        limit = None if timeout_s is None else time.monotonic() + timeout_s
        with self._news:
            while not self._done:
                self.check()
                left = None if limit is None else limit - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._news.wait(left)
            return self._done.popleft()

    def expect(self, *, something: bool = True) -> None:
        """Say whether something is awaited from the peer, so that its silence counts even if nothing is sent to it."""
        self.endpoint.wire.peers[self.index]["watched"] = 2 if something else 0
        self.endpoint.wake()

    def deny(self, ev: int, *, denied: bool = True) -> None:
        """Take an EV out of use, or allow it again: the controller's word."""
        self.endpoint.command(layout.DENY_EV, self.index, ev, int(denied))

    def took(self, kind: int, value: int, status: int) -> None:
        """Take in one event of the thread; the endpoint's lock is held."""
        if kind == layout.FAILED:
            self.failure = status
        elif kind == layout.SENT:
            self._settled += 1
            self._done.append(Completion("sent", value))
        else:
            self._done.append(Completion("immediate", value))
        if len(self._done) > _MOST_COMPLETIONS:
            self.failure = OVERFULL
        self._news.notify_all()


class Endpoint:
    """A socket with its thread; see the module."""

    def __init__(
        self,
        world: Underlay | None = None,
        *,
        port: int = 0,
        peers: int = 8,
        check: bool = True,
        liveness_s: float = LIVENESS_S,
        seed: int | None = None,
        journal_rows: int = 0,
        capture_rows: int = 0,
        fast: bool = True,
    ) -> None:
        """Bind to `port` (any where it is 0) with room for `peers` queue pairs.

        `check` puts an ICRC into every packet and looks at that of every other. `journal_rows` calls into the protocol
        and `capture_rows` packets are kept where they are not 0. Without `fast` nothing is compiled and everything is
        a hundred times slower.
        """
        self.world: Underlay = world or Loopback()
        self.seed = Seed(secrets.randbits(62) if seed is None else seed)
        self.lock, self._fence = threading.RLock(), threading.Lock()
        self._owner, self._closed = os.getpid(), False
        self._pairs: dict[int, QueuePair] = {}
        self._kept: dict[int, Region] = {}
        self._starts: dict[int, PairStart] = {}
        self.on_program: Callable[[int, int, int], None] | None = None
        """Called with (program, error, queue pair) when a program of the engine ends."""
        params = settings(
            self.world.spec, planes=self.world.planes, rate_bps=self.world.rate_bps, payload=self.world.payload
        )
        self._socket = open_socket(self.world, port)
        if self.world.window:
            room = held(self._socket)
            window = min(self.world.window, room, max(_WINDOW_LEAST, room // peers))
            params["window_max"] = max(int(params["mtu"][0]), window)
        self.wire: EndpointState = make_state(
            params, queue_pairs=peers, transfers=make_transfers(peers), journal_rows=journal_rows,
            capture_rows=capture_rows,
        )  # fmt: skip
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        hub = self.wire.hub[0]
        hub["socket"], hub["eventfd"] = self._socket.fileno(), self._event
        hub["base_ns"], hub["stride"], hub["check"] = time.monotonic_ns(), self.world.paths, int(check)
        hub["liveness_ps"] = round(max(liveness_s, 0.0) * _PS)
        hub["journal_on"], hub["capture_on"] = int(journal_rows > 0), int(capture_rows > 0)
        hub["shim_word"] = self.seed.branch("shim").word() & _WORD_MASK
        self._pump: Any = compiled_pump() if fast else pump
        # Compiling, or loading what is compiled, is no part of anybody's waiting for an answer.
        with one_at_a_time() if fast else nullcontext():
            self._pump(self.wire, 0, 0)
        if not fast:
            at = layout.address_of(self.wire.scratch)
            crc_at(at, 64, 0, self.wire.scratch)
            reduce_at(0, at, at, 0)
        self._thread = threading.Thread(target=self._run, name="weft-wire", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Return the UDP port."""
        return int(self._socket.getsockname()[1])

    def _run(self) -> None:
        hub = self.wire.hub[0]
        rounds = _ROUNDS
        while not hub["stop"]:
            self._pump(self.wire, rounds, _WAIT_NS)
            # Whoever holds the lock may wait for this thread to take commands: go on, and hear later.
            if hub["told"] > hub["heard_of"] and self.lock.acquire(timeout=_HEAR_S):
                try:
                    self._hear()
                finally:
                    self.lock.release()

    def _hear(self) -> None:
        """Hand on what the thread has to tell; the lock is held."""
        hub = self.wire.hub[0]
        while hub["heard_of"] < hub["told"]:
            kind, index, value, status, _ = self.wire.events[hub["heard_of"] % layout.EVENTS].tolist()
            hub["heard_of"] += 1
            if kind == layout.PROGRAM_DONE:
                if self.on_program is not None:
                    self.on_program(value, status, index)
            elif index in self._pairs:
                self._pairs[index].took(kind, value, status)

    def wake(self) -> None:
        """Wake the thread."""
        if not self._closed:
            os.eventfd_write(self._event, 1)

    def command(self, kind: int, *numbers: int) -> None:
        """Ask the thread for something."""
        with self.lock:
            self._usable()
            hub = self.wire.hub[0]
            posted = int(hub["posted"])
            if posted - hub["taken"] >= layout.COMMANDS:
                self._wait_for_room()
            self.wire.commands[posted % layout.COMMANDS, : 1 + len(numbers)] = (kind, *numbers)
            hub["posted"] = posted + 1
        # A lock taken and let go is a fence: the thread either sees the command before it sleeps or is seen asleep.
        with self._fence:
            asleep = hub["asleep"]
        if asleep:
            self.wake()

    def _wait_for_room(self) -> None:
        """Wait until the thread has taken a command."""
        hub = self.wire.hub[0]
        limit = time.monotonic() + _LINGER_S
        while hub["posted"] - hub["taken"] >= layout.COMMANDS:
            if time.monotonic() > limit:
                raise LimitReachedError("the endpoint's thread does not take commands; its queue of 1,024 is full")
            time.sleep(0.0001)

    def _usable(self) -> None:
        if self._closed:
            raise UsageError("this endpoint is closed; make a new one")
        if os.getpid() != self._owner:
            raise UsageError("an endpoint does not survive a fork; make one in the child")

    def register(self, memory: Any) -> Region:
        """Let peers that know its key write into `memory`, a numpy array or CPU tensor."""
        address, size = memory_of(memory)
        return self.register_at(address, size, memory)

    def register_at(self, address: int, size: int, owner: Any = None, *, adds: int = 0) -> Region:
        """Let peers that know its key write into `size` bytes at `address`, which `owner` keeps alive.

        Where `adds` is one more than a kind of reduction, what comes is combined with what is there.
        """
        with self.lock:
            self._usable()
            free = next((k for k in range(1, layout.REGIONS) if k not in self._kept), None)
            if free is None:
                raise LimitReachedError(f"all {layout.REGIONS - 1} regions are in use; deregister some")
            region = Region(secrets.randbits(32 - INDEX_BITS) << INDEX_BITS | free, address, size, owner)
            self._kept[free] = region
            row = self.wire.regions[free]
            row["key"], row["address"], row["size"], row["adds"] = region.key, address, size, adds
            row["open"] = 1
        return region

    def deregister(self, region: Region) -> None:
        """Take the key away; when this returns nothing writes there any more."""
        with self.lock:
            index = region.key & layout.INDEX_MASK
            if self._kept.get(index) is not region:
                return
            self.wire.regions[index]["open"] = 0
        self._settle()
        with self.lock:
            self._kept.pop(index, None)

    def release(self, region: Region) -> None:
        """Take the key away without waiting: for memory that no peer has a reason to write to any more."""
        with self.lock:
            index = region.key & layout.INDEX_MASK
            if self._kept.pop(index, None) is not None:
                self.wire.regions[index]["open"] = 0

    def _settle(self) -> None:
        """Wait until the thread has begun another turn."""
        if self._closed or threading.current_thread() is self._thread:
            return
        self.command(0)
        hub = self.wire.hub[0]
        goal, limit = int(hub["posted"]), time.monotonic() + _LINGER_S
        while hub["taken"] < goal and time.monotonic() < limit:
            time.sleep(0.0001)

    def offer(self, name: str, *, rank: int = -1, engine: bool = False) -> QueuePair:
        """Return a queue pair that is not connected yet; `name` is what errors call its peer."""
        with self.lock:
            self._usable()
            index = next((k for k in range(len(self.wire.peers)) if k not in self._pairs), None)
            if index is None:
                raise LimitReachedError(f"all {len(self.wire.peers)} queue pairs are in use; raise peers")
            number = secrets.randbits(24 - INDEX_BITS) << INDEX_BITS | index
            peer = self.wire.peers[index]
            peer["number"], peer["rank"], peer["engine"] = number, rank, int(engine)
            card: dict[str, Any] = {
                "number": number,
                "first": secrets.randbits(24),
                "planes": self.world.planes,
                "payload": self.world.payload,
                "check": int(self.wire.hub[0]["check"]),
                "place": self.world.place(self.port),
            }
            if engine:
                size = SLOTS * SLOT
                inbox = self.register_at(int(self.wire.t.at[1]) + index * size, size, self.wire.t.inbox)
                card["inbox"] = [inbox.address, inbox.key]
            self._pairs[index] = QueuePair(self, index, name, card)
            return self._pairs[index]

    def start_pair(self, pair: QueuePair, card: Mapping[str, Any]) -> None:
        """Make a queue pair ready for packets from the peer that gave `card`."""
        for key in ("planes", "payload", "check"):
            if card[key] != pair.card[key]:
                raise UsageError(f"{pair.name} has {key} = {card[key]}, this endpoint {pair.card[key]}; use the same")
        place: Place = card["place"]
        refuse_small_mtu(self.world, pair.name, self.world.address(place, 0))
        i, wire, paths = pair.index, self.wire, self.world.paths
        chance = self.seed.branch("pair", i)
        words = [chance.branch(name).word() & _WORD_MASK for name in ("send", "receive")]
        self._starts[i] = PairStart(words[0], int(pair.card["first"]), words[1], int(card["first"]))
        start_sender(wire.s, i, words[0], int(pair.card["first"]), paths, paths, np.zeros(paths, np.int64))
        start_receiver(wire.r, i, words[1], int(card["first"]))
        for e, value in enumerate(wire.s.evs[i]["value"].tolist()):
            if value >= 0:
                name = packed(self.world.family, self.world.address(place, value))
                wire.names[i, e, : len(name)] = np.frombuffer(name, np.uint8)
                wire.name_bytes[i] = len(name)
        peer = wire.peers[i]
        peer["remote"] = card["number"]
        peer["heard_ps"] = (time.monotonic_ns() - int(wire.hub[0]["base_ns"])) * 1000
        peer["deadline_ps"] = peer["heard_ps"]
        if peer["engine"]:
            peer["far_inbox"], peer["far_key"] = card["inbox"]
        peer["open"] = 1
        self.wake()

    def cut(self, plane: int, *, cut: bool = True) -> None:
        """Lose everything on a plane, in both directions and without a word, or stop doing so."""
        self._refuse_plane(plane)
        hub = self.wire.hub[0]
        hub["cut"] = hub["cut"] | 1 << plane if cut else hub["cut"] & ~(1 << plane)
        self._shim()

    def lose(self, plane: int, share: float) -> None:
        """Lose a share of the packets of a plane, in both directions."""
        self._refuse_plane(plane)
        if not 0 <= share <= 1:
            raise UsageError(f"a share of loss lies between 0 and 1, not at {share}")
        self.wire.shim[plane] = round(share * 1_000_000)
        self._shim()

    def _shim(self) -> None:
        hub = self.wire.hub[0]
        hub["shim_on"] = int(hub["cut"] != 0 or self.wire.shim.any())

    def port_changed(self, plane: int, *, up: bool) -> None:
        """Say that this host's port of a plane went up or down, as a NIC sees it."""
        self._refuse_plane(plane)
        self.command(layout.PORT, 0, plane, int(up))

    def _refuse_plane(self, plane: int) -> None:
        if not 0 <= plane < self.world.planes:
            raise UsageError(f"there is no plane {plane}; they run from 0 to {self.world.planes - 1}")

    def pairs(self) -> list[QueuePair]:
        """Return the queue pairs."""
        with self.lock:
            return list(self._pairs.values())

    def record(self) -> RecordedCalls:
        """Return the calls into the protocol that were kept, for `weft.transport.replay`."""
        hub = self.wire.hub[0]
        rows = self.wire.journal[: min(int(hub["journal_at"]), len(self.wire.journal))].copy()
        params = self.wire.s.params.copy()
        return RecordedCalls(params, self.world.paths, dict(self._starts), rows, int(hub["journal_lost"]))

    def close(self, linger_s: float = _LINGER_S) -> None:
        """Leave in order: everything that was posted is acknowledged first, for `linger_s` at most."""
        if self._closed or os.getpid() != self._owner:
            return
        for pair in self.pairs():
            if self.wire.peers[pair.index]["open"]:
                self.command(layout.CLOSE, pair.index)
        limit = time.monotonic() + linger_s
        while time.monotonic() < limit and not self._quiet():
            time.sleep(0.001)
        self._closed = True
        self.wire.hub[0]["stop"] = 1
        os.eventfd_write(self._event, 1)
        self._thread.join()
        self._socket.close()
        os.close(self._event)

    def _quiet(self) -> bool:
        """Return whether every peer has everything, and those of an engine have said goodbye or are gone."""
        hub = self.wire.hub[0]
        if hub["taken"] < hub["posted"]:
            return False
        now_ps = (time.monotonic_ns() - int(hub["base_ns"])) * 1000
        for peer, sender in zip(self.wire.peers, self.wire.s.qp, strict=True):
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
