"""Taking a state back: from the memory of peers, else from local disks, else from a checkpoint, else from the start.

All ranks try the same candidate together and agree whether it served. Every piece is verified against the digest that
was agreed when it was stored; a copy that does not match is replaced by the one in the other failure domain, and where
no good copy is left the next candidate is tried. What was wrong is reported. Nothing is changed in the training until
all pieces of a candidate are proved.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from weft.core.errors import FailedError
from weft.training.checkpoint.state import RestoreTarget, StoredTensor
from weft.training.checkpoint.store import CheckpointStore, HalfReadError
from weft.training.recovery.orders import START, START_OVER, Candidate, Orders, Stored
from weft.training.recovery.piece import overlap
from weft.training.recovery.snapshot_keeper import Link
from weft.training.recovery.state_pieces import digest, fill, from_bytes, missing, pieces_of

Fillable = Callable[[Mapping[str, StoredTensor]], RestoreTarget]
"""Returns the training's state made to measure for what is stored, to be filled and installed."""


@dataclass(frozen=True, slots=True)
class RestoredState:
    """What was restored."""

    tier: str
    """memory, disk, checkpoint or start."""
    step: int
    """Steps done."""
    notes: tuple[str, ...]
    """What had to be passed over, in words."""


def restore_best(orders: Orders, fillable: Fillable, store: CheckpointStore) -> RestoredState:
    """Restore the first candidate that proves good; all ranks call it together."""
    notes: list[str] = []
    for candidate in orders.candidates:
        if candidate.tier == START:
            return RestoredState(START, 0, tuple(notes))
        found, problem = _tried(candidate, orders, fillable, store)
        answers = _everybody((found, problem))
        notes += dict.fromkeys(note for found_there, _ in answers for note in found_there)
        wrong = [problem for _, problem in answers if problem is not None]
        if not wrong:
            return RestoredState(candidate.tier, candidate.step, tuple(notes))
        notes.append(f"{candidate} was passed over: {wrong[0]}")
    raise FailedError("no state is left that could be restored exactly\n  " + "\n  ".join(notes) + f"\n{START_OVER}")


def _everybody(value: object) -> list[Any]:
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, value)
    return answers


def _tried(
    candidate: Candidate, orders: Orders, fillable: Fillable, store: CheckpointStore
) -> tuple[tuple[str, ...], str | None]:
    """Try one candidate; returns notes about copies that were replaced, and why it failed where it did."""
    made: list[RestoreTarget] = []

    def tensors(stored: Mapping[str, StoredTensor]) -> dict[str, Any]:
        made.append(fillable(stored))
        return dict(made[-1].tensors)

    try:
        if candidate.tier == "checkpoint":
            store.load(tensors, candidate.step)
            made[-1].install()
            return (), None
        target = pieces_of(tensors({one.piece.name: one.piece for one in candidate.pieces.values()}))
    except HalfReadError:
        raise
    except FailedError as error:
        return (), str(error)
    wanted = _wanted(candidate.pieces, target)
    notes: list[str] = []
    lacking = missing((piece for piece, _ in target.values()), (stored.piece for stored in wanted.values()))
    if lacking is not None:
        return (), f"{lacking} is not in it"
    got: dict[str, torch.Tensor] = {}
    problem = _fetch(candidate, orders, wanted, got, notes)
    # All ranks know whether all have all of it before any of them changes a weight.
    if all(answer is None for answer in _everybody(problem)):
        fill(target, [(wanted[key].piece, tensor) for key, tensor in got.items()])
        made[-1].install()
    return tuple(notes), problem


def _wanted(stored: Mapping[str, Stored], target: Mapping[str, Any]) -> dict[str, Stored]:
    """Return the stored pieces that have something for this rank."""
    mine: dict[str, list[Any]] = {}
    for piece, _ in target.values():
        mine.setdefault(piece.name, []).append(piece)
    return {
        key: one
        for key, one in stored.items()
        if any(overlap(one.piece, piece) is not None for piece in mine.get(one.piece.name, ()))
    }


def _fetch(
    candidate: Candidate, orders: Orders, wanted: Mapping[str, Stored], got: dict[str, torch.Tensor], notes: list[str]
) -> str | None:
    """Fetch and verify pieces, the nearest copies first; returns what could not be had."""
    near = orders.nodes[dist.get_rank()]
    domains = sorted(orders.keepers, key=lambda node: (node != near, node))
    for node in domains:
        open_keys = [key for key, one in wanted.items() if key not in got and node in one.nodes]
        if not open_keys:
            continue
        try:
            link = Link(orders.keepers[node])
            answers = link.get(candidate.tier, candidate.snapshot, open_keys)
            link.close()
        except (OSError, EOFError):
            notes.append(f"node {node}'s keeper does not answer")
            continue
        for key, data in zip(open_keys, answers, strict=True):
            bad = _checked(wanted[key], data, got)
            if bad is not None:
                notes.append(f"node {node}'s copy of {wanted[key].piece.name} in {candidate} {bad}")
    lost = [wanted[key].piece.name for key in wanted if key not in got]
    return f"no good copy of {lost[0]} is left" if lost else None


def _checked(stored: Stored, data: bytearray | None, got: dict[str, torch.Tensor]) -> str | None:
    """Take a piece if it is what was agreed; returns what is wrong with it otherwise."""
    if data is None:
        return "is gone"
    try:
        tensor = from_bytes(stored.piece, data)
    except ValueError as error:
        return f"has {error}"
    if digest(stored.piece, tensor) != stored.digest:
        return "is damaged: its digest is not the agreed one"
    got[stored.piece.key] = tensor
    return None
