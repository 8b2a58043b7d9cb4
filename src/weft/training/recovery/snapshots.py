"""Snapshots of a rank's state into the memory of failure domains, taken behind the training's back.

A snapshot copies the state (the only part that training waits for), then a thread takes its digests, sends this rank's
share of the pieces to the keepers, and tells the supervisor which digests this rank votes for and what lies where. It
counts when all ranks have said so and agree.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from weft.training.recovery.copy_placement import placement
from weft.training.recovery.orders import Orders
from weft.training.recovery.piece import Piece
from weft.training.recovery.snapshot_keeper import Link
from weft.training.recovery.state_pieces import as_bytes, digest, pieces_of

Say = Callable[[str, Any], bool]


class Snapshots:
    """One rank's snapshots."""

    def __init__(self, orders: Orders, generation: int, say: Say) -> None:
        """Serve the keepers in `orders`; `say` speaks to the supervisor."""
        self._orders = orders
        self._generation = generation
        self._say = say
        self._keys: list[str] | None = None
        self._puts: list[tuple[str, int]] = []
        self._links: dict[int, Link] = {}
        self._staged: dict[str, torch.Tensor] = {}
        self._thread: threading.Thread | None = None

    @property
    def possible(self) -> bool:
        """Return whether snapshots are wanted and somebody keeps them."""
        return self._orders.every > 0 and len(self._orders.keepers) > 0

    def due(self, step: int) -> bool:
        """Return whether a snapshot is to be taken after `step` steps."""
        return self.possible and step % self._orders.every == 0

    def _divide(self, keys: list[str]) -> None:
        """Agree with the other ranks who puts what where: at first, and whenever some rank holds other pieces.

        Pieces come and go: an option that a scheduler has changed, a text that has grown.
        """
        changed = torch.tensor([keys != self._keys], dtype=torch.int32)
        dist.all_reduce(changed, op=dist.ReduceOp.MAX)
        if not changed.item():
            return
        self._keys = keys
        everybody: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, keys)
        holders: dict[str, list[int]] = {}
        for rank, held in enumerate(everybody):
            for key in held:
                holders.setdefault(key, []).append(rank)
        self._puts = placement(holders, self._orders.nodes, sorted(self._orders.keepers))[dist.get_rank()]

    def take(self, step: int, state: Mapping[str, Any]) -> None:
        """Copy `state` and let a thread do the rest; waits for the snapshot before this one."""
        pieces = pieces_of(state)
        self.wait()
        self._divide(sorted(pieces))
        self._staged = {key: memory for key, memory in self._staged.items() if key in pieces}
        for key, (_, tensor) in pieces.items():
            if key in self._staged:
                self._staged[key].copy_(tensor)
            else:
                self._staged[key] = tensor.detach().to("cpu", copy=True).contiguous()
        named = {key: piece for key, (piece, _) in pieces.items()}
        self._thread = threading.Thread(target=self._try_to_send, args=(step, named), name="snapshot", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when no snapshot is in flight."""
        if self._thread is not None:
            self._thread.join()

    def _try_to_send(self, step: int, pieces: Mapping[str, Piece]) -> None:
        try:
            self._send(step, pieces)
        except Exception as error:  # noqa: BLE001 - a thread's error is heard by nobody, and the run goes on without it
            self._say("trouble", ("snapshot", step, f"no snapshot after step {step}: {error!r}", 0.0))

    def _send(self, step: int, pieces: Mapping[str, Piece]) -> None:
        digests = {key: digest(piece, self._staged[key]) for key, piece in pieces.items()}
        stored: dict[int, list[str]] = {}
        for node in sorted({node for _, node in self._puts}):
            keys = [key for key, where in self._puts if where == node]
            if self._put(node, (self._generation, step), [(pieces[key], as_bytes(self._staged[key])) for key in keys]):
                stored[node] = keys
        self._say("snapshot", (step, digests, stored, list(pieces.values())))

    def _put(self, node: int, snapshot: tuple[int, int], content: list[tuple[Piece, memoryview]]) -> bool:
        """Send pieces to one domain; returns whether they are there. A lost domain is the supervisor's news."""
        # The second try is for a keeper that died and was replaced at its old address.
        for _ in range(2):
            try:
                if node not in self._links:
                    self._links[node] = Link(self._orders.keepers[node])
                return self._links[node].put(snapshot, content)
            except (OSError, EOFError, KeyError):
                self._links.pop(node, None)
        return False
