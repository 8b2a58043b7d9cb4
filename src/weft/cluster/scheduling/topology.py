"""What a gang requires of the topology: nodes of one scale-up domain, rack, T0 or pod, in slices, or no two of any.

Three shapes: all nodes in one group, whole slices that are each in one group (16 trays of a domain's 18), and at most
one node in each group. A shape turns any set of nodes into how many of them a gang could have, and picks the ones that
cost the least. Pure; columns in, node numbers out.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.cluster.records.job import Gang
from weft.cluster.scheduling.placement import Column
from weft.cluster.scheduling.pool import Pool

_Cost = npt.NDArray[np.int64] | npt.NDArray[np.float64]


class TopologyShape(NamedTuple):
    """Which nodes a gang can have together."""

    groups: Column
    """Each node's group at the level that it names."""
    slice_nodes: int
    """Nodes that must share a group; 0 for all of the gang."""
    apart: bool
    """Whether no two of its nodes may share one."""

    def capacity(self, nodes: Column) -> int:
        """Return the widest gang of this shape that `nodes` could hold."""
        if not len(nodes):
            return 0
        sizes = np.bincount(self.groups[nodes])
        if self.apart:
            return int(np.count_nonzero(sizes))
        if not self.slice_nodes:
            return int(sizes.max())
        return int((sizes // self.slice_nodes).sum()) * self.slice_nodes

    def in_slices(self, nodes: Column) -> Column:
        """Return nodes in rank order so that each slice's stand together."""
        return nodes[np.argsort(self.groups[nodes], kind="stable")] if self.slice_nodes else nodes

    def cheapest(self, nodes: Column, cost: _Cost, count: int, *, latest: bool = False) -> Column:
        """Return `count` of `nodes` that cost the least, or none where no such gang is there.

        A slice costs what its nodes do, or with `latest` what the dearest of them does. Among equals the smallest
        groups are taken: large ones stay whole.
        """
        if self.capacity(nodes) < count:
            return nodes[:0]
        width = 1 if self.apart else self.slice_nodes or count
        order = np.lexsort((nodes, cost, self.groups[nodes]))
        nodes, cost = nodes[order], cost[order]
        groups = self.groups[nodes]
        _, begins, sizes = np.unique(groups, return_index=True, return_counts=True)
        turn = np.arange(len(nodes)) - np.repeat(begins, sizes)
        kept = turn < (1 if self.apart else np.repeat(sizes // width * width, sizes))
        nodes, cost, size = nodes[kept], cost[kept].reshape(-1, width), np.repeat(sizes, sizes)[kept][::width]
        each = cost.max(axis=1) if latest else cost.sum(axis=1)
        first = np.lexsort((np.arange(len(each)), size, each))[: count // width]
        return nodes.reshape(-1, width)[np.sort(first)].ravel()


def shape_of(pool: Pool, gang: Gang) -> TopologyShape | None:
    """Return what a gang requires; nothing where any nodes will do."""
    if gang.within:
        return TopologyShape(getattr(pool, gang.within), gang.slice_nodes, apart=False)
    if gang.apart:
        return TopologyShape(getattr(pool, gang.apart), 0, apart=True)
    return None


def places(gang: Gang) -> str:
    """Return in words where a gang's nodes must be; empty where that does not matter."""
    if gang.within:
        names = {"domain": "scale-up domain", "t0": "T0"}
        one = names.get(gang.within, gang.within)
        return f", each {gang.slice_nodes:,} in one {one}" if gang.slice_nodes else f" in one {one}"
    return f", each in another {gang.apart.replace('t0', 'T0')}" if gang.apart else ""


def spares_for(shape: TopologyShape, held: Column, gone: Column, free: Column) -> Column:
    """Return one of `free` for each node that is `gone` of those that a gang held; none where the shape would break."""
    rest = held[~np.isin(held, gone)]
    found: list[int] = []
    for node in gone.tolist():
        left = free[~np.isin(free, found)]
        if shape.apart:
            left = left[~np.isin(shape.groups[left], shape.groups[np.concatenate([rest, np.array(found, dtype=int)])])]
        else:
            left = left[shape.groups[left] == shape.groups[node]]
        if not len(left):
            return free[:0]
        found.append(int(left[0]))
    return np.array(found, dtype=np.int64)
