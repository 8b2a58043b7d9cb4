"""The memory of a failure domain: a process that keeps pieces of snapshots and gives them back, one for each node.

It knows nothing of tensors: bytes under keys, by (generation, step). It takes pieces only of the generation that its
owner has named last, so that a rank which is already given up cannot change what the others rely on. It lives as long
as its owner: when the owner's end of the pipe closes, it goes. Bytes are not checked here; their taker does that.
What comes in by its address is JSON and bytes, never a pickle: whoever can connect could run code otherwise. Ranks of
this machine reach it through a socket in the file system, those of others over TCP, where they prove that they are of
this run.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from weft.training.launch.authenticated_channel import AuthenticatedChannel
from weft.training.launch.wire_values import WireValues
from weft.training.recovery.piece import Piece, piece_from

Snapshot = tuple[int, int]
"""(generation, step): which snapshot of a run."""
_SUFFIX = ".pieces"
_LONGEST_WORD = 2**28
_FAR, _FIRST_WORD = "tcp://", b"keeper"
_NO_RECORDS = WireValues(())


class Keeper:
    """What one keeper holds."""

    def __init__(self, disk: Path | None = None) -> None:
        """Begin with nothing in memory; spill to the folder `disk`, where there is one."""
        self.generation = 0
        self._memory: dict[Snapshot, dict[str, tuple[Piece, bytearray]]] = {}
        self._disk = disk
        self._lock = threading.Lock()

    def put(self, snapshot: Snapshot, content: Sequence[tuple[Piece, bytearray]]) -> bool:
        """Take pieces; returns whether they were of the generation that counts."""
        with self._lock:
            if snapshot[0] != self.generation:
                return False
            self._memory.setdefault(snapshot, {}).update({piece.key: (piece, data) for piece, data in content})
            return True

    def get(self, tier: str, snapshot: Snapshot, keys: Iterable[str]) -> list[bytearray | None]:
        """Return the bytes of pieces from memory or disk, nothing for those that are not there."""
        held = self._memory.get(snapshot, {}) if tier == "memory" else self._read(snapshot)
        return [held[key][1] if key in held else None for key in keys]

    def keep(self, snapshots: Iterable[Snapshot]) -> None:
        """Forget all but `snapshots` and what is newer than all of them."""
        kept = set(snapshots)
        with self._lock:
            newest = max(kept, default=(-1, -1))
            self._memory = {one: held for one, held in self._memory.items() if one in kept or one > newest}

    def fence(self, generation: int) -> None:
        """Take pieces of `generation` only."""
        self.generation = generation

    def use(self, disk: str) -> None:
        """Take the folder `disk` as the domain's local disk."""
        self._disk = Path(disk)

    def spill(self, snapshot: Snapshot) -> bool:
        """Put a snapshot on the local disk, whole or not at all, and remove older ones there."""
        held = self._memory.get(snapshot)
        if not held or self._disk is None:
            return False
        self._disk.mkdir(parents=True, exist_ok=True)
        path = self._disk / f"{snapshot[0]}-{snapshot[1]}{_SUFFIX}"
        part = path.with_suffix(".part")
        head = [{**piece.as_json(), "bytes": len(data)} for piece, data in held.values()]
        with part.open("wb") as stream:
            stream.write(json.dumps(head).encode() + b"\n")
            for _, data in held.values():
                stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
        for other in self._disk.glob(f"*{_SUFFIX}"):
            if other != path:
                other.unlink()
        return True

    def _read(self, snapshot: Snapshot) -> dict[str, tuple[Piece, bytearray]]:
        if self._disk is None:
            return {}
        path = self._disk / f"{snapshot[0]}-{snapshot[1]}{_SUFFIX}"
        held: dict[str, tuple[Piece, bytearray]] = {}
        with contextlib.suppress(OSError, ValueError), path.open("rb") as stream:
            for entry in json.loads(stream.readline()):
                size = entry.pop("bytes")
                piece = piece_from(entry)
                held[piece.key] = (piece, bytearray(stream.read(size)))
        return held

    def damage(self, snapshot: Snapshot, key: str, bit: int) -> bool:
        """Flip a bit of a piece: what faulty memory would do. Returns whether the piece is here."""
        held = self._memory.get(snapshot, {}).get(key)
        if held is None:
            return False
        held[1][bit // 8 % len(held[1])] ^= 1 << bit % 8
        return True


def far_address(host: str, port: int, key: bytes) -> str:
    """Return the address of a keeper on another machine, with the key that opens it: for ranks of this run alone."""
    return f"{_FAR}{key.hex()}@{host}:{port}"


def keeper_main(address: str, owner: Connection, key: bytes | None = None) -> None:
    """Be a keeper at `address` until `owner` closes its end of the pipe; with a `key` also for other machines."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    keeper = Keeper()
    with Listener(address, "AF_UNIX", backlog=64) as listener:
        threading.Thread(target=_accept, args=(listener, keeper), daemon=True).start()
        owner.send(0 if key is None else _listen(keeper, key))
        _obey(keeper, owner)
    # Threads that still serve a rank must not hold the process.
    os._exit(0)


def _obey(keeper: Keeper, owner: Connection) -> None:
    """Carry out what the owner says until it goes."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            word, arguments = owner.recv()
            try:
                answer = getattr(keeper, word)(*arguments)
            except OSError as error:
                answer = str(error.strerror)
            if word in ("spill", "damage", "fence"):
                owner.send(answer)


def _accept(listener: Listener, keeper: Keeper) -> None:
    while True:
        with contextlib.suppress(OSError, EOFError):
            connection = listener.accept()
            threading.Thread(target=_serve, args=(connection, keeper), daemon=True).start()


def _listen(keeper: Keeper, key: bytes) -> int:
    """Serve ranks of other machines too; returns at which port."""
    listener = socket.create_server(("", 0), backlog=64)

    def greet(connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            channel = AuthenticatedChannel.welcome(connection, key, _NO_RECORDS)
            if channel.recv_bytes(len(_FIRST_WORD)) == _FIRST_WORD:
                channel.trust()
                # A rank may be quiet for as long as it computes.
                connection.settimeout(None)
                _serve(channel, keeper)
            channel.close()

    def accept() -> None:
        while True:
            with contextlib.suppress(OSError):
                threading.Thread(target=greet, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def _serve(connection: Any, keeper: Keeper) -> None:
    """Serve one rank until it goes; half a message of a killed rank is nothing at all."""
    wrong = (EOFError, OSError, ValueError, TypeError, KeyError)
    with contextlib.closing(connection), contextlib.suppress(*wrong):
        while True:
            word, (generation, step), arguments = _heard(connection)
            snapshot = (int(generation), int(step))
            if word == "put":
                content = [(piece_from(piece), bytearray(connection.recv_bytes())) for piece in arguments]
                _say(connection, keeper.put(snapshot, content))
            else:
                tier, keys = arguments
                for data in keeper.get(tier, snapshot, keys):
                    _say(connection, data is not None)
                    if data is not None:
                        connection.send_bytes(data)


def _say(connection: Any, value: Any) -> None:
    connection.send_bytes(json.dumps(value).encode())


def _heard(connection: Any) -> Any:
    return json.loads(connection.recv_bytes(_LONGEST_WORD))


class Link:
    """A rank's way to one keeper."""

    def __init__(self, address: str) -> None:
        """Connect to the keeper at `address`; raises `OSError` where it has gone."""
        self._connection: Any = _reached(address) if address.startswith(_FAR) else Client(address, "AF_UNIX")

    def put(self, snapshot: Snapshot, content: Sequence[tuple[Piece, memoryview]]) -> bool:
        """Send pieces; returns when the keeper has them, and whether it took them."""
        _say(self._connection, ("put", snapshot, [piece.as_json() for piece, _ in content]))
        for _, data in content:
            self._connection.send_bytes(data)
        return bool(_heard(self._connection))

    def get(self, tier: str, snapshot: Snapshot, keys: Sequence[str]) -> list[bytearray | None]:
        """Return the bytes of pieces, nothing for those that are not there."""
        _say(self._connection, ("get", snapshot, (tier, list(keys))))
        return [bytearray(self._connection.recv_bytes()) if _heard(self._connection) else None for _ in keys]

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def _reached(address: str) -> AuthenticatedChannel:
    key, _, where = address.removeprefix(_FAR).partition("@")
    host, _, port = where.rpartition(":")
    channel = AuthenticatedChannel.dial((host, int(port)), bytes.fromhex(key), _NO_RECORDS)
    channel.trust()
    channel.send_bytes(_FIRST_WORD)
    return channel


def forget_disk(disk: Path) -> None:
    """Remove a domain's local disk: a lost node loses that too."""
    shutil.rmtree(disk, ignore_errors=True)
