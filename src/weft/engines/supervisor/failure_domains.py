"""The failure domains of one machine: a keeper process for each emulated node, with the node's local disk.

Losing a node kills its keeper, so its memory is really gone. Nothing here decides anything.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from weft.core.errors import FailedError
from weft.training.launch.child_process import ChildProcess
from weft.training.launch.ranks import fork_server
from weft.training.recovery.snapshot_keeper import Snapshot, far_address, forget_disk, keeper_main

_START_S = 60.0
_ANSWER_S = 30.0
_MOST_REVIVALS = 100


class Domains:
    """The keepers of a run."""

    def __init__(self, nodes: Sequence[int], key: bytes | None = None) -> None:
        """Start a keeper for each of `nodes`, which other machines reach too where there is a `key`."""
        self._key = key
        self._ports: dict[int, int] = {}
        self._room = Path(tempfile.mkdtemp(prefix="weft-"))
        self._disks: Path | None = None
        self._keepers: dict[int, tuple[ChildProcess, Any, str]] = {}
        self._revivals: dict[int, int] = {}
        self._starts = 0
        self._generation = 0
        for node in nodes:
            self.start(node)

    def start(self, node: int) -> None:
        """Start the keeper of `node`, with nothing in its memory."""
        if node in self._keepers:
            return
        self._starts += 1
        self._start_at(node, str(self._room / f"{node}-{self._starts}"))

    def _start_at(self, node: int, address: str) -> None:
        context = fork_server()
        ours, theirs = context.Pipe()
        started = context.Process(target=keeper_main, args=(address, theirs, self._key), daemon=True)
        started.start()
        theirs.close()
        process = ChildProcess(started)
        if not ours.poll(_START_S):
            process.kill()
            raise FailedError(f"the keeper of node {node} did not start within {_START_S:.0f} s")
        with contextlib.suppress(EOFError, OSError):
            self._ports[node] = ours.recv()
        self._keepers[node] = (process, ours, address)
        self._ask(node, "fence", self._generation)
        if self._disks is not None:
            ours.send(("use", (str(self._disks / f"node-{node}"),)))

    def revive(self, node: int) -> bool:
        """Start a keeper that has died by itself anew, empty, at its old address; returns whether there is one again.

        The node is not lost: its ranks run and its disk is there. One that dies again and again is left dead.
        """
        process, pipe, address = self._keepers.pop(node)
        process.kill()
        process.join()
        pipe.close()
        self._revivals[node] = self._revivals.get(node, 0) + 1
        if self._revivals[node] > _MOST_REVIVALS:
            return False
        Path(address).unlink(missing_ok=True)
        self._start_at(node, address)
        return True

    def use(self, disks: Path) -> None:
        """Take folders below `disks` as the nodes' local disks."""
        self._disks = disks
        for node, (_, pipe, _) in self._keepers.items():
            with contextlib.suppress(OSError):
                pipe.send(("use", (str(disks / f"node-{node}"),)))

    def forget(self) -> None:
        """Clear all local disks: a run that is finished needs them no more."""
        if self._disks is not None:
            forget_disk(self._disks)

    def addresses(self) -> dict[int, str]:
        """Return where the living keepers are reached."""
        return {node: address for node, (process, _, address) in self._keepers.items() if process.is_alive()}

    def far_addresses(self, host: str) -> dict[int, str]:
        """Return where ranks on other machines reach the living keepers of this one, which they know as `host`."""
        key = self._key or b""
        return {node: far_address(host, self._ports[node], key) for node in self.addresses()}

    def sentinels(self) -> dict[int, int]:
        """Return what becomes ready when a keeper dies, with its node."""
        return {process.sentinel: node for node, (process, _, _) in self._keepers.items()}

    def lose(self, node: int) -> None:
        """Lose a node: its memory and its disk."""
        if node in self._keepers:
            process, pipe, _ = self._keepers.pop(node)
            process.kill()
            process.join()
            pipe.close()
        if self._disks is not None:
            forget_disk(self._disks / f"node-{node}")

    def fence(self, generation: int) -> None:
        """Let no other generation put anything from now on."""
        self._generation = generation
        for node in list(self._keepers):
            self._ask(node, "fence", generation)

    def keep(self, snapshots: Iterable[Snapshot]) -> None:
        """Forget older snapshots everywhere."""
        for _, pipe, _ in self._keepers.values():
            with contextlib.suppress(OSError):
                pipe.send(("keep", (list(snapshots),)))

    def spill(self, snapshot: Snapshot) -> list[int]:
        """Put a snapshot on the local disks; returns the nodes where that went well."""
        return [node for node in list(self._keepers) if self._ask(node, "spill", snapshot) is True]

    def damage(self, node: int, snapshot: Snapshot, key: str, bit: int) -> bool:
        """Flip a bit in a node's memory; returns whether the piece was there."""
        return self._ask(node, "damage", snapshot, key, bit) is True

    def _ask(self, node: int, word: str, *arguments: Any) -> Any:
        """Return a keeper's answer, or nothing where it has gone."""
        if node not in self._keepers:
            return None
        _, pipe, _ = self._keepers[node]
        with contextlib.suppress(OSError, EOFError):
            pipe.send((word, arguments))
            if pipe.poll(_ANSWER_S):
                return pipe.recv()
        return None

    def close(self) -> None:
        """End all keepers; what they hold goes with them."""
        for process, pipe, _ in self._keepers.values():
            pipe.close()
            process.kill()
            process.join()
        self._keepers.clear()
        shutil.rmtree(self._room, ignore_errors=True)
