"""The algorithms: who sends which parts to whom, in which order.

Rings (Patarasu and Yuan, 2009), recursive halving and doubling (Thakur, Rabenseifner and Gropp, 2005), double binary
trees (Sanders, Speck and Traeff, 2009), direct all-to-all, chains and binomial trees for broadcast, and the two-level
forms in which a scale-up domain works together so that all of its far links are used.
"""

from weft.collectives.schedule import Builder, Schedule


def ring_reduce_scatter(ranks: int) -> Schedule:
    """Return a reduce-scatter around a ring: rank r ends with the sum of part r."""
    builder = Builder("reduce-scatter", ranks, ranks)
    builder.ring(list(range(ranks)), _single(ranks), adds=True)
    return builder.build()


def ring_all_gather(ranks: int) -> Schedule:
    """Return an all-gather around a ring: rank r begins with part r."""
    builder = Builder("all-gather", ranks, ranks)
    builder.ring(list(range(ranks)), _single(ranks), adds=False)
    return builder.build()


def ring_all_reduce(ranks: int) -> Schedule:
    """Return an all-reduce: a reduce-scatter and an all-gather around the same ring."""
    builder = Builder("all-reduce", ranks, ranks)
    builder.ring(list(range(ranks)), _single(ranks), adds=True)
    builder.ring(list(range(ranks)), _single(ranks), adds=False)
    return builder.build()


def halving_reduce_scatter(ranks: int) -> Schedule:
    """Return a reduce-scatter by recursive halving; the number of ranks must be a power of two."""
    assert _power(ranks) == ranks, f"{ranks} is not a power of two"
    builder = Builder("reduce-scatter", ranks, ranks)
    _halve(builder, ranks)
    return builder.build()


def doubling_all_gather(ranks: int) -> Schedule:
    """Return an all-gather by recursive doubling; the number of ranks must be a power of two."""
    assert _power(ranks) == ranks, f"{ranks} is not a power of two"
    builder = Builder("all-gather", ranks, ranks)
    _double(builder, ranks)
    return builder.build()


def halving_doubling_all_reduce(ranks: int) -> Schedule:
    """Return an all-reduce by halving and doubling; ranks beyond a power of two hand over and get back everything."""
    power = _power(ranks)
    builder = Builder("all-reduce", ranks, power)
    for extra in range(power, ranks):
        builder.send(extra, extra - power, 0, power, adds=True)
    _halve(builder, power)
    _double(builder, power)
    for extra in range(power, ranks):
        builder.send(extra - power, extra, 0, power, adds=False)
    return builder.build()


def double_tree_all_reduce(ranks: int, pieces: int = 4) -> Schedule:
    """Return an all-reduce over two binary trees, each with half of the data in `pieces` that follow each other.

    The second tree is the first one moved by one rank, so that (for an even number) a leaf of one is inside the other.
    """
    builder = Builder("all-reduce", ranks, 2 * pieces)
    parents = _tree(ranks)
    shifted = [-1] * ranks
    for rank, parent in enumerate(parents):
        shifted[(rank + 1) % ranks] = -1 if parent < 0 else (parent + 1) % ranks
    upward = [_bottom_up(tree) for tree in (parents, shifted)]
    for piece in range(pieces):
        for tree, order, offset in ((parents, upward[0], 0), (shifted, upward[1], pieces)):
            for rank in order:
                builder.send(rank, tree[rank], offset + piece, adds=True)
    for piece in range(pieces):
        for tree, order, offset in ((parents, upward[0], 0), (shifted, upward[1], pieces)):
            for rank in reversed(order):
                builder.send(tree[rank], rank, offset + piece, adds=False)
    return builder.build()


def direct_all_to_all(ranks: int) -> Schedule:
    """Return an all-to-all in n - 1 rounds; part s x n + t is what rank s has for rank t."""
    builder = Builder("all-to-all", ranks, ranks * ranks)
    for step in range(1, ranks):
        for source in range(ranks):
            target = (source + step) % ranks
            builder.send(source, target, source * ranks + target, adds=False)
    return builder.build()


def chain_broadcast(ranks: int, pieces: int = 1) -> Schedule:
    """Return a broadcast from rank 0 along a chain, in pieces that follow each other."""
    builder = Builder("broadcast", ranks, pieces)
    for piece in range(pieces):
        for rank in range(ranks - 1):
            builder.send(rank, rank + 1, piece, adds=False)
    return builder.build()


def binomial_broadcast(ranks: int) -> Schedule:
    """Return a broadcast from rank 0 down a binomial tree."""
    builder = Builder("broadcast", ranks, 1)
    reach = 1
    while reach < ranks:
        for rank in range(min(reach, ranks - reach)):
            builder.send(rank, rank + reach, 0, adds=False)
        reach *= 2
    return builder.build()


def single_send() -> Schedule:
    """Return one message from rank 0 to rank 1."""
    builder = Builder("send", 2, 1)
    builder.send(0, 1, 0, adds=False)
    return builder.build()


def two_level_all_reduce(inner: int, outer: int) -> Schedule:
    """Return an all-reduce over `outer` domains of `inner` ranks: scattered inside, rings between, gathered inside."""
    builder = Builder("all-reduce", inner * outer, inner * outer)
    _inside(builder, inner, outer, adds=True)
    for adds in (True, False):
        _between(builder, inner, outer, adds=adds)
    _inside(builder, inner, outer, adds=False)
    return builder.build()


def two_level_all_to_all(inner: int, outer: int) -> Schedule:
    """Return an all-to-all in two hops: inside the domain to the rank with the target's place, then to its domain.

    Part s x n + t is what rank s has for rank t. Every rank sends `outer` - 1 large messages far instead of many small
    ones.
    """
    ranks = inner * outer
    builder = Builder("all-to-all", ranks, ranks * ranks)
    for step in range(1, inner):
        for source in range(ranks):
            domain, place = divmod(source, inner)
            relay = domain * inner + (place + step) % inner
            for other in range(outer):
                target = other * inner + relay % inner
                builder.send(source, relay, source * ranks + target, adds=False)
    for step in range(1, outer):
        for relay in range(ranks):
            domain, place = divmod(relay, inner)
            target = (domain + step) % outer * inner + place
            for source in range(domain * inner, domain * inner + inner):
                builder.send(relay, target, source * ranks + target, adds=False, far=True)
    return builder.build()


def _single(ranks: int) -> list[tuple[int, int]]:
    return [(part, 1) for part in range(ranks)]


def _power(ranks: int) -> int:
    return 1 << (ranks.bit_length() - 1)


def _halve(builder: Builder, power: int) -> None:
    distance = power // 2
    while distance:
        for rank in range(power):
            partner = rank ^ distance
            # The half of the common range in which the partner's own part lies.
            builder.send(rank, partner, partner // distance * distance, distance, adds=True)
        distance //= 2


def _double(builder: Builder, power: int) -> None:
    distance = 1
    while distance < power:
        for rank in range(power):
            builder.send(rank, rank ^ distance, rank // distance * distance, distance, adds=False)
        distance *= 2


def _inside(builder: Builder, inner: int, outer: int, *, adds: bool) -> None:
    """Add rings inside every domain; place i of a domain answers for the i-th run of `outer` parts."""
    blocks = [(place * outer, outer) for place in range(inner)]
    for domain in range(outer):
        builder.ring([domain * inner + place for place in range(inner)], blocks, adds=adds)


def _between(builder: Builder, inner: int, outer: int, *, adds: bool) -> None:
    """Add rings between the ranks that have the same place in their domains."""
    for place in range(inner):
        blocks = [(place * outer + domain, 1) for domain in range(outer)]
        builder.ring([domain * inner + place for domain in range(outer)], blocks, adds=adds, far=True)


def _tree(ranks: int) -> list[int]:
    """Return the parent of every rank in a balanced in-order binary tree; -1 for the root."""
    parents = [-1] * ranks

    def grow(low: int, high: int, parent: int) -> None:
        if low >= high:
            return
        middle = (low + high) // 2
        parents[middle] = parent
        grow(low, middle, middle)
        grow(middle + 1, high, middle)

    grow(0, ranks, -1)
    return parents


def _bottom_up(parents: list[int]) -> list[int]:
    """Return the ranks that have a parent, deepest first."""

    def depth(rank: int) -> int:
        steps = 0
        while parents[rank] >= 0:
            rank, steps = parents[rank], steps + 1
        return steps

    return sorted((rank for rank, parent in enumerate(parents) if parent >= 0), key=depth, reverse=True)
