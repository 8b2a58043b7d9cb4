"""Flows cut into messages and laid on queue pairs, before any transport sees them.

A flow is one message over one queue pair, unless its transport has several for it (`roce:8`) or the scenario says that
it is posted in pieces (`transport.posting`), as collective libraries do. Parts are flows of their own that wait for
each other; a report puts them together again.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import NamedTuple

from weft.core.errors import UsageError
from weft.netsim.model.flow import Flow
from weft.specs.rivals import PostingSpec

MOST_PARTS = 4_000_000
"""Parts of all flows of a run; each is an object of its own."""
NCCL_SENDS = PostingSpec.model_validate({"piece": "128 KiB", "under_way": 8, "turns": True})
"""How NCCL and RCCL post sends and receives, and so an all-to-all, unless set otherwise."""
NCCL_RINGS = PostingSpec.model_validate({"piece": "1 MiB", "under_way": 4, "turns": True})
"""The same for rings: two of eight steps of their buffer of 4 MiB in a message."""


class _Part(NamedTuple):
    """One part of a flow."""

    size: int
    """Bytes."""
    lane: int
    """Which of the flow's queue pairs carries it."""
    waits_for: range
    """Parts of the same flow, by their place, that must be acknowledged before it is posted."""


def post(flows: Sequence[Flow], queue_pairs: int, spec: PostingSpec) -> tuple[Flow, ...]:
    """Return every flow cut over `queue_pairs`, and into pieces where `spec` says so.

    Parts of a flow stand together and in order; all of them wait for all parts of what it waits for.
    """
    if queue_pairs == 1 and spec.piece is None:
        return tuple(flows)
    first = first_parts(flows, queue_pairs, spec)
    if first[-1] > MOST_PARTS:
        raise UsageError(
            f"the flows would be cut into {first[-1]:,} messages, more than {MOST_PARTS:,}; "
            "raise transport.posting.piece, or send less"
        )
    return tuple(_posted(flows, first, queue_pairs, spec))


def first_parts(flows: Sequence[Flow], queue_pairs: int, spec: PostingSpec) -> tuple[int, ...]:
    """Return where the parts of every flow begin among all parts; one more entry than flows."""
    each = 1 if spec.turns else queue_pairs
    counts = (each * _pieces(flow.size, spec) for flow in flows)
    return tuple(accumulate(counts, initial=0))


def _pieces(size: int, spec: PostingSpec) -> int:
    """Return how many messages a flow of `size` bytes is; one that only stands for time is one too."""
    return 1 if spec.piece is None else max(1, -(-size // spec.piece))


def _posted(flows: Sequence[Flow], first: Sequence[int], queue_pairs: int, spec: PostingSpec) -> Iterator[Flow]:
    """Return all parts as flows."""
    turns: Counter[tuple[int, int, int, tuple[int, ...]]] = Counter()
    for flow, begin in zip(flows, first, strict=False):
        ends = (flow.source, flow.destination, flow.lane, flow.uplinks)
        after, after_sent = (_all_parts(before, first) for before in (flow.after, flow.after_sent))
        for place, part in enumerate(_parts(flow.size, queue_pairs, spec, turns[ends])):
            lane, name = flow.lane * queue_pairs + part.lane, f"{flow.name}.{place}"
            if part.waits_for:
                # What it waits for began when the flow did.
                waits = tuple(begin + before for before in part.waits_for)
                yield replace(flow, name=name, size=part.size, at_ps=0, after=(), after_sent=waits, lane=lane)
            else:
                yield replace(flow, name=name, size=part.size, after=after, after_sent=after_sent, lane=lane)
        turns[ends] += _pieces(flow.size, spec)


def _parts(size: int, queue_pairs: int, spec: PostingSpec, turn: int) -> Iterator[_Part]:
    """Return the parts of a flow of `size` bytes whose connection has posted `turn` before."""
    piece = spec.piece or size
    lanes = 1 if spec.turns else queue_pairs
    for number in range(_pieces(size, spec)):
        length = min(piece, size - number * piece)
        # The message whose buffer it takes, by its parts.
        earlier = number - spec.under_way
        waits_for = range(earlier * lanes, (earlier + 1) * lanes) if earlier >= 0 else range(0)
        if spec.turns:
            yield _Part(length, (turn + number) % queue_pairs, waits_for)
            continue
        for lane in range(lanes):
            # A message with fewer bytes than parts has one byte in each all the same, so that all have as many.
            part = min(length, max(1, length // lanes + (1 if lane < length % lanes else 0)))
            yield _Part(part, lane, waits_for)


def _all_parts(flows: tuple[int, ...], first: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers that all parts of `flows` have."""
    return tuple(chain.from_iterable(range(first[flow], first[flow + 1]) for flow in flows))
