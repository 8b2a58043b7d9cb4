"""The links of a path by arithmetic, where nothing has failed: the implicit twin of `walk`.

One function for one path, one for many at once. Neither keeps a table; tests hold both equal to the walker.
"""

import numpy as np
from numpy.typing import NDArray

from weft.fabric.addressing.srv6 import EvSpace
from weft.fabric.graph.shape import THREE_TIERS, Shape
from weft.fabric.graph.topology import NO_LINK

Column = NDArray[np.int64]


def links_on_path(shape: Shape, source: int, destination: int, ev: int) -> tuple[int, ...]:
    """Return the links from NIC `source` to NIC `destination` on the path that `ev` names, in order."""
    plane, first, second = EvSpace(shape).coordinates(ev)
    start, end = shape.t0_of(source), shape.t0_of(destination)
    grids = shape.link_grids
    out, into = grids[0].id(plane, source), grids[0].id(plane, destination)
    if start == end:
        return (out, into)
    up, down = grids[1].id(plane, start, first), grids[1].id(plane, end, first)
    if shape.pod_of(start) == shape.pod_of(end):
        return (out, up, down, into)
    rise = grids[2].id(plane, shape.t1_above(start, first), second)
    fall = grids[2].id(plane, shape.t1_above(end, first), second)
    return (out, up, rise, fall, down, into)


def links_on_paths(shape: Shape, source: Column, destination: Column, ev: Column) -> NDArray[np.int32]:
    """Return the links of many paths, one row each, as wide as the longest path and filled up with `NO_LINK`."""
    rest, second = np.divmod(ev, max(1, shape.t1_up))
    plane, first = np.divmod(rest, max(1, shape.up))
    start, end = source // shape.down, destination // shape.down
    links = np.full((len(source), 2 * shape.tiers), NO_LINK, np.int32)
    out, into = plane * shape.hosts + source, plane * shape.hosts + destination
    links[:, 0], links[:, 1] = out, into
    if shape.tiers == 1:
        return links
    base = shape.link_grids[1].first + plane * shape.t0 * shape.up + first
    up, down = base + start * shape.up, base + end * shape.up
    _put(links, start != end, (out, up, down, into))
    if shape.tiers == THREE_TIERS:
        base = shape.link_grids[2].first + plane * shape.t1 * shape.t1_up + second
        pods = start // shape.pod_t0, end // shape.pod_t0
        rise, fall = (base + (pod * shape.pod_t1 + first) * shape.t1_up for pod in pods)
        _put(links, pods[0] != pods[1], (out, up, rise, fall, down, into))
    return links


def _put(links: NDArray[np.int32], where: NDArray[np.bool_], path: tuple[Column, ...]) -> None:
    for place, column in enumerate(path):
        links[where, place] = column[where]
