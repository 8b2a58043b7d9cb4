"""Any network as a `Topology`, from an edge list: one line of CSV for each link.

Columns `a` and `b` name the nodes; `rate` ("100 Gb/s"), `length` ("30 m") and `plane` (a number) are optional, and an
empty cell means the default. Names are free. Which nodes are hosts is said by an explicit `HostRule`. Two lines with
the same ends are two parallel links. Ports are counted in the order of the lines; the tier of a switch is its distance
from the nearest host. Lines that begin with # are left out. Text comes in, columns go out; nothing here opens a file.
"""

import csv
import fnmatch
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.core import quantity
from weft.core.errors import Mistake, SpecError, UsageError
from weft.fabric.graph.naming import NameList, Names
from weft.fabric.graph.topology import NO_OPTIC, Links, Switches, Topology

MOST_LINKS = 4_000_000
LONGEST_NAME = 63
MOST_PLANES = 64
_COLUMNS = ("a", "b", "rate", "length", "plane")
_LARGEST_LENGTH_MM = 2**31 - 1
_LARGEST_RATE_BPS = 2**63 - 1
_MOST_PORTS = 2**16


@dataclass(frozen=True)
class HostRule:
    """Which nodes are hosts: those whose name fits a pattern, or those with exactly so many links."""

    name: str | None = None
    """Pattern with * and ?, such as "gpu*"."""
    degree: int | None = None
    """Number of links."""
    names: frozenset[str] | None = None
    """Their very names, where the file that was imported says which they are."""

    def __post_init__(self) -> None:
        """Check that there is exactly one rule."""
        if sum(one is not None for one in (self.name, self.degree, self.names)) != 1:
            raise UsageError("say which nodes are hosts, by exactly one of name and degree")

    @classmethod
    def parse(cls, text: str) -> "HostRule":
        """Return the rule that `text` means: "name:gpu*" or "degree:1"."""
        kind, _, value = text.partition(":")
        if kind == "name" and value:
            return cls(name=value)
        if kind == "degree" and value.isascii() and value.isdecimal() and int(value) > 0:
            return cls(degree=int(value))
        raise UsageError(f"{text!r} does not say which nodes are hosts; write 'name:gpu*' or 'degree:1'")

    def holds(self, name: str, degree: int) -> bool:
        """Return whether the node called `name` with `degree` links is a host."""
        if self.names is not None:
            return name in self.names
        return fnmatch.fnmatchcase(name, self.name) if self.name is not None else degree == self.degree

    def __str__(self) -> str:
        """Return the rule as it is written."""
        if self.names is not None:
            return f"{len(self.names)} names"
        return f"name:{self.name}" if self.name is not None else f"degree:{self.degree}"


@dataclass(frozen=True)
class _Row:
    line: int
    ends: tuple[str, str]
    rate_bps: int
    length_mm: int
    plane: int


@dataclass
class _Reader:
    """Reads lines, keeps the good rows and every mistake."""

    file: str
    rate_bps: int
    length_mm: int
    rows: list[_Row] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)

    def blame(self, line: int | None, key: str, problem: str, remedy: str = "") -> None:
        self.mistakes.append(Mistake(self.file, key, problem, remedy, line))

    def read(self, lines: Iterable[str]) -> None:
        reader = csv.reader(lines, skipinitialspace=True, strict=True)
        header: list[str] | None = None
        try:
            for cells in reader:
                stripped = [cell.strip() for cell in cells]
                if not any(stripped) or stripped[0].startswith("#"):
                    continue
                if header is None:
                    header = stripped
                    if not self._header_is_right(header, reader.line_num):
                        return
                elif len(self.rows) == MOST_LINKS:
                    self.blame(reader.line_num, "", f"more than {MOST_LINKS:,} links", "import a part of it")
                    return
                else:
                    self._row(reader.line_num, header, stripped)
        except csv.Error as error:
            self.blame(reader.line_num, "", f"this is not CSV: {error}")
            return
        if header is None:
            self.blame(None, "", "there is no header", f"begin with the line {','.join(_COLUMNS)}")
        elif not self.rows and not self.mistakes:
            self.blame(None, "", "there is no link", "write one line for each")

    def _header_is_right(self, header: Sequence[str], line: int) -> bool:
        before = len(self.mistakes)
        for name in ("a", "b"):
            if name not in header:
                self.blame(line, name, "this column is missing", "the first line names the columns a and b at least")
        for name in dict.fromkeys(header):
            if name not in _COLUMNS:
                self.blame(line, name, "unknown column", f"known are {', '.join(_COLUMNS)}")
            if header.count(name) > 1:
                self.blame(line, name, "this column is named twice")
        return len(self.mistakes) == before

    def _row(self, line: int, header: Sequence[str], cells: Sequence[str]) -> None:
        if len(cells) != len(header):
            self.blame(line, "", f"{len(cells)} cells, but the header has {len(header)} columns")
            return
        cell = dict(zip(header, cells, strict=True))
        before = len(self.mistakes)
        ends = (self._name(line, "a", cell["a"]), self._name(line, "b", cell["b"]))
        if ends[0] == ends[1] and ends[0]:
            self.blame(line, "b", f"{ends[0]!r} is joined to itself")
        rate = self._amount(line, "rate", cell.get("rate", ""), (self.rate_bps, _LARGEST_RATE_BPS))
        length = self._amount(line, "length", cell.get("length", ""), (self.length_mm, _LARGEST_LENGTH_MM))
        plane = self._plane(line, cell.get("plane", ""))
        if len(self.mistakes) == before:
            self.rows.append(_Row(line, ends, rate, length, plane))

    def _name(self, line: int, key: str, name: str) -> str:
        if not name:
            self.blame(line, key, "this name is empty")
        elif len(name) > LONGEST_NAME or not name.isprintable():
            self.blame(line, key, f"{name[:LONGEST_NAME]!r} is not a name", f"use up to {LONGEST_NAME} characters")
        return name

    def _amount(self, line: int, key: str, text: str, bounds: tuple[int, int]) -> int:
        default, largest = bounds
        if not text:
            return default
        dimension = quantity.RATE if key == "rate" else quantity.LENGTH
        try:
            amount = dimension.parse(text)
        except quantity.QuantityError as error:
            problem, _, remedy = str(error).partition("; ")
            self.blame(line, key, problem, remedy)
            return default
        least = 1 if key == "rate" else 0
        if not least <= amount <= largest:
            bounds_text = f"{dimension.format(least)} to {dimension.format(largest)}"
            self.blame(line, key, f"{text!r} is out of range", f"a {dimension.name} here is {bounds_text}")
        return amount

    def _plane(self, line: int, text: str) -> int:
        if not text:
            return 0
        if not (text.isascii() and text.isdecimal() and int(text[:9]) < MOST_PLANES):
            self.blame(line, "plane", f"{text!r} is not a plane", f"write a number from 0 to {MOST_PLANES - 1}")
            return 0
        return int(text)


def import_edges(
    lines: str | Iterable[str],
    hosts: HostRule,
    *,
    file: str = "edges.csv",
    rate_bps: int = 100 * 10**9,
    length_mm: int = 10_000,
) -> Topology:
    """Return the network that an edge list describes, or raise with every mistake in it.

    `file` is the name used in messages; `rate_bps` and `length_mm` stand for empty cells and missing columns.
    """
    reader = _Reader(file, rate_bps, length_mm)
    reader.read(lines.splitlines() if isinstance(lines, str) else lines)
    graph = _Graph(reader.rows, hosts)
    if reader.rows:
        graph.check(reader)
    if reader.mistakes:
        raise SpecError(reader.mistakes)
    return graph.topology()


class _Graph:
    """The rows as a graph: nodes in order of appearance, hosts first in the ids."""

    def __init__(self, rows: Sequence[_Row], rule: HostRule) -> None:
        self.rows, self.rule = rows, rule
        self.joined: dict[str, list[str]] = {}
        for row in rows:
            for near, far in (row.ends, row.ends[::-1]):
                self.joined.setdefault(near, []).append(far)
        self.hosts = [name for name, far in self.joined.items() if rule.holds(name, len(far))]
        host_set = set(self.hosts)
        self.switches = [name for name in self.joined if name not in host_set]
        self.ids = {name: number for number, name in enumerate((*self.hosts, *self.switches))}

    def check(self, reader: _Reader) -> None:
        """Blame what is wrong with the graph as a whole."""
        if not self.hosts:
            some = ", ".join(repr(name) for name in list(self.joined)[:3])
            reader.blame(None, "", f"no node is a host by the rule {self.rule}", f"nodes are called {some}")
            return
        reach, planes = self.distances(), dict[str, int]()
        for row in self.rows:
            switches = [name for name in row.ends if self.ids[name] >= len(self.hosts)]
            if not switches:
                reader.blame(
                    row.line, "", f"{row.ends[0]!r} and {row.ends[1]!r} are both hosts", "join them by a switch"
                )
            for name in switches:
                if name not in reach:
                    reader.blame(row.line, "", f"no host reaches {name!r}", "add the missing links or leave it out")
                    reach[name] = 0
                if planes.setdefault(name, row.plane) != row.plane:
                    remedy = f"all its links belong to plane {planes[name]}"
                    reader.blame(row.line, "plane", f"{name!r} stands in plane {planes[name]} already", remedy)
        for name, far in self.joined.items():
            if len(far) > _MOST_PORTS:
                reader.blame(None, "", f"{name!r} has {len(far):,} links", f"a node has up to {_MOST_PORTS:,}")

    def distances(self) -> dict[str, int]:
        """Return how many links every reachable node is from the nearest host."""
        distance = dict.fromkeys(self.hosts, 0)
        waiting = deque(self.hosts)
        while waiting:
            near = waiting.popleft()
            for far in self.joined[near]:
                if far not in distance:
                    distance[far] = distance[near] + 1
                    waiting.append(far)
        return distance

    def topology(self) -> Topology:
        """Return the graph as columns."""
        distance = self.distances()
        tier = {name: distance[name] - 1 for name in self.switches}
        # The end nearer to the hosts is the lower one; between equals, the one named first.
        ends = [sorted(row.ends, key=lambda name: distance[name]) for row in self.rows]
        used = dict.fromkeys(self.joined, 0)
        ports: list[tuple[int, int]] = []
        for lower, upper in ends:
            ports.append((used[lower], used[upper]))
            used[lower] += 1
            used[upper] += 1
        nodes = np.array([[self.ids[lower], self.ids[upper]] for lower, upper in ends], np.int32)
        port = np.array(ports, np.uint16)
        copper = np.full(len(ends), NO_OPTIC, np.int32)
        links = Links(
            lower=nodes[:, 0].copy(),
            lower_port=port[:, 0].copy(),
            upper=nodes[:, 1].copy(),
            upper_port=port[:, 1].copy(),
            plane=np.array([row.plane for row in self.rows], np.uint8),
            stage=np.array([min(255, distance[lower]) for lower, _ in ends], np.uint8),
            rate_bps=np.array([row.rate_bps for row in self.rows], np.int64),
            length_mm=np.array([row.length_mm for row in self.rows], np.int32),
            lower_optic=copper,
            upper_optic=copper.copy(),
        )
        names = Names({
            "nic": (NameList("nic", tuple(self.hosts)),),
            "switch": (NameList("switch", tuple(self.switches)),),
            "link": (NameList("link", tuple(_link_names(ends))),),
            "optic": (NameList("optic", ()),),
        })  # fmt: skip
        return Topology(len(self.hosts), self._switch_columns(tier), links, 0, names)

    def _switch_columns(self, tier: dict[str, int]) -> Switches:
        plane_of: dict[str, int] = {}
        for row in self.rows:
            for name in row.ends:
                plane_of.setdefault(name, row.plane)
        counted: dict[tuple[int, int], int] = {}
        index: list[int] = []
        for name in self.switches:
            family = (tier[name], plane_of[name])
            index.append(counted.get(family, 0))
            counted[family] = index[-1] + 1
        return Switches(
            np.array([min(255, tier[name]) for name in self.switches], np.uint8),
            np.array([plane_of[name] for name in self.switches], np.uint8),
            np.array(index, np.int32),
        )


def _link_names(ends: Sequence[Sequence[str]]) -> Iterable[str]:
    """Yield "a--b" for every link, and "a--b#1" and so on for those parallel to an earlier one."""
    seen: dict[tuple[str, ...], int] = {}
    for pair in ends:
        number = seen[tuple(sorted(pair))] = seen.get(tuple(sorted(pair)), -1) + 1
        yield "--".join(pair) + (f"#{number}" if number else "")
