"""A collective: all-reduce over a star. Everybody sends to rank 0, which adds and sends the sum back.

It is the worst all-reduce there is for large buffers (rank 0 receives n - 1 of them), and the best for tiny ones.
"""

from weft.collectives.registry import CollectiveAlgorithm
from weft.collectives.schedule import Builder, Schedule


def star_all_reduce(ranks: int) -> Schedule:
    """Return the sends: in to rank 0, then out again."""
    builder = Builder("all-reduce", ranks, 1)
    for rank in range(1, ranks):
        builder.send(rank, 0, 0, adds=True)
    for rank in range(1, ranks):
        builder.send(0, rank, 0, adds=False)
    return builder.build()


STAR = CollectiveAlgorithm("all-reduce", "star", star_all_reduce)
