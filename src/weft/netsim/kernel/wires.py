"""Packets on wires: lists of chunks by the slot and the node of their arrival, and by the part that sent them.

Every part writes to lists of its own, so that parts run side by side; a node reads the lists of all parts in any order,
because what arrives is ordered by its key. A list's first chunk is the one that is being filled.
"""

from typing import Any

from weft.core.compile.rules import rule
from weft.netsim.kernel.layout import CHUNK, CHUNK_SHIFT, FAULTY, LOW32, NO_CHUNK

OUT_OF_CHUNKS, OUT_OF_ROWS, OUT_OF_LOG = 1, 2, 3
"""What can end a part: its wires, its queues or its notes hold no more."""


@rule
def take_chunk(w: Any, d: Any, part: int) -> int:
    """Take a free chunk of a part."""
    found = w.free[part, 0]
    if found >= 0:
        w.free[part, 0] = w.after[found]
        w.free[part, 3] -= 1
        return found
    found = w.free[part, 1]
    if found >= w.free[part, 2]:
        d.count[FAULTY] = OUT_OF_CHUNKS
        return found - 1
    w.free[part, 1] = found + 1
    return found


@rule
def place_on_wire(w: Any, d: Any, part: int, node: int, slot: int) -> int:
    """Return the row in which a packet stands that arrives at `node` in `slot`."""
    ring = slot & (w.heads.shape[1] - 1)
    head = w.heads[part, ring, node]
    at = head & (CHUNK - 1)
    if at == 0:
        fresh = take_chunk(w, d, part)
        w.after[fresh] = head >> CHUNK_SHIFT
        w.waiting[part, ring] += 1
        head = (fresh << CHUNK_SHIFT) | (head & LOW32)
    w.heads[part, ring, node] = head + 1
    return (head >> CHUNK_SHIFT) * CHUNK + at


@rule
def clear_list(w: Any, part: int, source: int, ring: int, node: int) -> None:
    """Give the chunks of a list that has been read to part `part`."""
    chunk = w.heads[source, ring, node] >> CHUNK_SHIFT
    while chunk >= 0:
        following = w.after[chunk]
        w.after[chunk] = w.free[part, 0]
        w.free[part, 0] = chunk
        w.free[part, 3] += 1
        chunk = following
    w.heads[source, ring, node] = NO_CHUNK


@rule
def arriving(w: Any, node: int, slot: int) -> int:
    """Return how many packets arrive at a node in a slot."""
    ring = slot & (w.heads.shape[1] - 1)
    found = 0
    for source in range(w.heads.shape[0]):
        found += w.heads[source, ring, node] & LOW32
    return found


@rule
def move_chunks(w: Any, giver: int, taker: int, count: int) -> None:
    """Move free chunks from one part to another."""
    for _ in range(count):
        chunk = w.free[giver, 0]
        if chunk < 0:
            return
        w.free[giver, 0] = w.after[chunk]
        w.free[giver, 3] -= 1
        w.after[chunk] = w.free[taker, 0]
        w.free[taker, 0] = chunk
        w.free[taker, 3] += 1
