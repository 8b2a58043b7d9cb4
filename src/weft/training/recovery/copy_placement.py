"""Who puts which piece where: every piece into two failure domains, the work spread evenly. Pure.

Where replicas in two domains hold a piece, each puts it into its own domain's memory and nothing crosses between them;
where only one domain holds it, one copy travels to the next.
"""

from collections.abc import Mapping, Sequence

COPIES = 2
"""Failure domains that hold each piece, where there are as many."""


def placement(
    holders: Mapping[str, Sequence[int]], nodes: Sequence[int], domains: Sequence[int]
) -> dict[int, list[tuple[str, int]]]:
    """Return for every rank the pieces that it puts and the domain that each goes to.

    `holders` says which ranks hold each piece, `nodes` in which domain each rank is, `domains` which of them can keep.
    """
    assert domains, "somebody keeps"
    puts: dict[int, list[tuple[str, int]]] = {rank: [] for rank in range(len(nodes))}
    for number, key in enumerate(sorted(holders)):
        by_node: dict[int, list[int]] = {}
        for rank in sorted(holders[key]):
            by_node.setdefault(nodes[rank], []).append(rank)
        near = [node for node in _turned(sorted(by_node), number) if node in domains][:COPIES]
        for node in near:
            puts[_turned(by_node[node], number)[0]].append((key, node))
        far = [node for node in _turned(sorted(domains), number) if node not in near]
        # Too few domains hold it, so copies travel.
        for node in far[: min(COPIES, len(domains)) - len(near)]:
            puts[_turned(sorted(holders[key]), number)[0]].append((key, node))
    return puts


def _turned(values: list[int], by: int) -> list[int]:
    return [*values[by % len(values) :], *values[: by % len(values)]]
