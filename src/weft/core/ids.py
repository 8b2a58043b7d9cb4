"""Dense ids: integers 0..n-1 with coordinates and a name.

Everything that comes in large numbers (hosts, ports, switches, links) is an index into columns. A `Grid` gives such an
index its coordinates by arithmetic alone and its name back and forth, so that no table of names is ever kept.
"""

import math
import re
from dataclasses import dataclass
from functools import cached_property

_NAME_WORD = re.compile(r"[a-z][a-z0-9]*")


class IdError(ValueError):
    """A name or coordinate does not exist in its grid; the message says what does."""


@dataclass(frozen=True)
class Axis:
    """One coordinate of a grid."""

    letter: str
    """How the coordinate is marked in a name, "p" for plane."""
    size: int
    """How many values it takes, counted from 0."""


@dataclass(frozen=True)
class Grid:
    """A family of dense ids, named `kind` and counted along axes, the last one fastest."""

    kind: str
    """First word of every name, such as "t0"."""
    axes: tuple[Axis, ...]
    """Coordinates from slowest to fastest."""
    first: int = 0
    """The id of the first member, where several families share one id space."""

    @cached_property
    def size(self) -> int:
        """Return the number of members."""
        return math.prod(axis.size for axis in self.axes)

    def id(self, *coordinates: int) -> int:
        """Return the dense id at `coordinates`."""
        if len(coordinates) != len(self.axes):
            raise IdError(f"{self.kind} has {len(self.axes)} coordinates, not {len(coordinates)}")
        dense = 0
        for axis, coordinate in zip(self.axes, coordinates, strict=True):
            if not 0 <= coordinate < axis.size:
                raise IdError(f"{self.kind} {axis.letter}{coordinate} does not exist: {self._range(axis)}")
            dense = dense * axis.size + coordinate
        return self.first + dense

    def coordinates(self, dense: int) -> tuple[int, ...]:
        """Return the coordinates of id `dense`."""
        rest = dense - self.first
        if not 0 <= rest < self.size:
            raise IdError(f"{self.kind} ids run from {self.first} to {self.first + self.size - 1}, not {dense}")
        found: list[int] = []
        for axis in reversed(self.axes):
            rest, coordinate = divmod(rest, axis.size)
            found.append(coordinate)
        return tuple(reversed(found))

    def name(self, dense: int) -> str:
        """Return the name of id `dense`, such as "t0-p3-i17"."""
        parts = zip(self.axes, self.coordinates(dense), strict=True)
        return "-".join([self.kind, *(f"{axis.letter}{coordinate}" for axis, coordinate in parts)])

    def parse(self, name: str) -> int:
        """Return the id called `name`."""
        pattern = "-".join([re.escape(self.kind), *(rf"{axis.letter}(\d{{1,9}})" for axis in self.axes)])
        match = re.fullmatch(pattern, name)
        if match is None:
            raise IdError(f"{name!r} is not the name of a {self.kind}; names look like {self.name(self.first)!r}")
        return self.id(*(int(group) for group in match.groups()))

    def owns(self, dense: int) -> bool:
        """Return whether id `dense` belongs to this family."""
        return 0 <= dense - self.first < self.size

    def __post_init__(self) -> None:
        """Check that names differ."""
        assert _NAME_WORD.fullmatch(self.kind), self.kind
        assert all(re.fullmatch("[a-z]", axis.letter) and axis.size >= 0 for axis in self.axes), self.axes

    def _range(self, axis: Axis) -> str:
        return f"{axis.letter} runs from 0 to {axis.size - 1}" if axis.size else f"there is no {self.kind}"
