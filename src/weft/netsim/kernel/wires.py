"""Packets on wires: lists of chunks by the slot and the node of their arrival, and by the part that sent them.

Every part writes to lists of its own, so that parts run side by side; a node reads the lists of all parts in any order,
because what arrives is ordered by its key. A list's first chunk is the one that is being filled.
"""

from weft.core.compile.rules import rule
from weft.netsim.kernel.layout import CHUNK, CHUNK_SHIFT, FAULTY, LOW32, NO_CHUNK, Shard, Wires

OUT_OF_CHUNKS, OUT_OF_ROWS, OUT_OF_LOG = 1, 2, 3
"""What can end a part: its wires, its queues or its notes hold no more."""


@rule
def take_chunk(wires: Wires, shard: Shard) -> int:
    """Take a free chunk of a part."""
    found = wires.free[shard.part, 0]
    if found >= 0:
        wires.free[shard.part, 0] = wires.after[found]
        wires.free[shard.part, 3] -= 1
        return found
    found = wires.free[shard.part, 1]
    if found >= wires.free[shard.part, 2]:
        shard.count[FAULTY] = OUT_OF_CHUNKS
        return found - 1
    wires.free[shard.part, 1] = found + 1
    return found


@rule
def place_on_wire(wires: Wires, shard: Shard, node: int, slot: int) -> int:
    """Return the row in which a packet stands that arrives at `node` in `slot`."""
    # The ring has a power of two of slots, so that the remainder is a mask.
    ring = slot & (wires.heads.shape[1] - 1)
    head = wires.heads[shard.part, ring, node]
    at = head & (CHUNK - 1)
    # The count's low bits are the place in the chunk: 0 means that the last one is full, or that there is none.
    if at == 0:
        fresh = take_chunk(wires, shard)
        wires.after[fresh] = head >> CHUNK_SHIFT
        wires.waiting[shard.part, ring] += 1
        head = (fresh << CHUNK_SHIFT) | (head & LOW32)
    wires.heads[shard.part, ring, node] = head + 1
    return (head >> CHUNK_SHIFT) * CHUNK + at


@rule
def clear_list(wires: Wires, part: int, source: int, ring: int, node: int) -> None:
    """Give the chunks of a list that has been read to part `part`."""
    chunk = wires.heads[source, ring, node] >> CHUNK_SHIFT
    while chunk >= 0:
        following = wires.after[chunk]
        wires.after[chunk] = wires.free[part, 0]
        wires.free[part, 0] = chunk
        wires.free[part, 3] += 1
        chunk = following
    wires.heads[source, ring, node] = NO_CHUNK


@rule
def arriving(wires: Wires, node: int, slot: int) -> int:
    """Return how many packets arrive at a node in a slot."""
    ring = slot & (wires.heads.shape[1] - 1)
    found = 0
    for source in range(wires.heads.shape[0]):
        found += wires.heads[source, ring, node] & LOW32
    return found


@rule
def move_chunks(wires: Wires, giver: int, taker: int, count: int) -> None:
    """Move free chunks from one part to another."""
    for _ in range(count):
        chunk = wires.free[giver, 0]
        if chunk < 0:
            return
        wires.free[giver, 0] = wires.after[chunk]
        wires.free[giver, 3] -= 1
        wires.after[chunk] = wires.free[taker, 0]
        wires.free[taker, 0] = chunk
        wires.free[taker, 3] += 1
