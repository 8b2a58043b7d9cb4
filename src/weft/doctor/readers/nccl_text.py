"""What NCCL and its tests print: `NCCL_DEBUG=INFO` logs, and tables of nccl-tests (and rccl-tests)."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

from weft.diagnosis.collective_calls import EnteredCollective
from weft.diagnosis.finding import DiagnosisFinding
from weft.doctor.readers.base import FileToRead
from weft.doctor.readers.evidence import Bandwidth, Evidence

_Owner: TypeAlias = tuple[str, str, str]
"""Host, process and communicator, as a log names them."""
_LOG_LINE = re.compile(
    r"(?:^|\s)(\S+?):(\d+):(\d+) \[(-?\d+)\] (?:\d{9,} )?(?:\S+:\d+ (?:\(\w+\) )?)?NCCL (INFO|WARN|ERROR|ABORT) (.*)$"
)
"""Warnings name file and line since 2.9, and the function since 2.28; RCCL may write a time behind the device."""
_CALL = re.compile(
    r"^(?:\[\d+\] )?(Broadcast|Reduce|AllGather|ReduceScatter|AllReduce|AlltoAll|AllToAll|Gather|Scatter): "
    r"opCount ([0-9a-f]+) .*?count (\d+) datatype (\d+) .*?comm (0x[0-9a-f]+) \[nranks=(\d+)\](?:.*globalrank (\d+))?"
)
_CUT_CALL = re.compile(r"^(?:\[\d+\] )?(Broadcast|Reduce|AllGather|ReduceScatter|AllReduce|All[tT]oAll): opCount ")
"""A call whose line was cut off before it names its communicator."""
_INIT = re.compile(r"comm (0x[0-9a-f]+) rank (\d+) n[Rr]anks (\d+)(.*)- Init (?:COMPLETE|START)")
_COMMUNICATOR = re.compile(r"(?:commId|commHash|parent) (0x[0-9a-f]+)(?:.*?(?:color|key) (-?\d+))?")
_VIA = re.compile(r"Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\].* via (\S+)")
_TEST_RANKS = re.compile(r"^#\s+Rank\s+(\d+)")
_TEST_NAME = re.compile(
    r"(all_reduce|all_gather|reduce_scatter|alltoallv|alltoall|broadcast|sendrecv|reduce|gather|scatter|hypercube)_perf"
)
_TEST_HEADING = re.compile(r"^#\s+size\s+count\s+(.*)$")
_FIGURES = ("time", "algbw", "busbw")
_FAR_BELOW = 0.7


class NcclLogReader:
    """Reads logs of `NCCL_DEBUG=INFO`, of one rank or of many in one file."""

    name = "NCCL log"

    def recognises(self, file: FileToRead) -> bool:
        """Return whether NCCL speaks in it."""
        return file.is_text and any(_LOG_LINE.search(line) is not None for line in file.log_head.splitlines())

    def read(self, file: FileToRead, evidence: Evidence) -> str:
        """Read ranks, transports, warnings and, with the COLL subsystem on, the calls."""
        said = _Said()
        for line in file.log_lines():
            if " NCCL " in line and (found := _LOG_LINE.search(line)) is not None:
                said.take(*found.groups())
        if said.cut:
            file.note("it ends in the middle of a call, and what came behind that is not known")
        said.add_calls(evidence)
        _add_warnings(said, evidence)
        used = ", ".join(f"{name} ({count})" for name, count in said.transports.most_common(4)) or "no channels"
        return f"{len(said.job_ranks())} ranks, {len(said.calls):,} calls, {used}"


@dataclass
class _Said:
    """What a log says, by process and communicator."""

    rank_of: dict[_Owner, tuple[int, str, int]] = field(default_factory=dict)
    """Rank, name and size of each communicator."""
    transports: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    where: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[_Owner, str, int, int]] = field(default_factory=list)
    counts: Counter[_Owner] = field(default_factory=Counter)
    cut: bool = False
    """Whether the line of a call was cut off; it counts for the communicator of the last one like it."""

    def take(self, host: str, process: str, _thread: str, device: str, level: str, text: str) -> None:
        """Take one line."""
        who = f"{process}/{device}"
        if level != "INFO":
            self.warnings[text] += 1
            self.where.setdefault(text, f"{host}:{process}")
        elif (init := _INIT.search(text)) is not None:
            named = _COMMUNICATOR.search(init.group(4))
            name = "world" if named is None else " ".join(part for part in named.groups() if part)
            self.rank_of[host, who, init.group(1)] = (int(init.group(2)), name, int(init.group(3)))
        elif (via := _VIA.search(text)) is not None:
            self.transports[via.group(1)] += 1
        elif (call := _CALL.match(text)) is not None:
            owner = (host, who, call.group(5))
            self.counts[owner] += 1
            if call.group(7) is not None:  # newer versions say whose call it is, whatever was logged before
                self.rank_of.setdefault(owner, (int(call.group(7)), "world", int(call.group(6))))
            self.calls.append((owner, call.group(1), self.counts[owner], int(call.group(3))))
        elif (cut := _CUT_CALL.match(text)) is not None:
            self.cut = True
            own = [one for one in reversed(self.calls) if one[0][:2] == (host, who)]
            last = next((one for one in own if one[1] == cut.group(1)), own[0] if own else None)
            if last is not None:
                self.counts[last[0]] += 1
                self.calls.append((last[0], cut.group(1), self.counts[last[0]], last[3]))

    def job_ranks(self) -> dict[tuple[str, str], int]:
        """Return the rank of each process in its largest communicator: that is its rank in the job."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for (host, who, _), (rank, _, size) in self.rank_of.items():
            if size > found.get((host, who), (0, 0))[0]:
                found[host, who] = (size, rank)
        return {process: rank for process, (_, rank) in found.items()}

    def add_calls(self, evidence: Evidence) -> None:
        """Add the calls of ranks that said who they are."""
        job = self.job_ranks()
        for (host, who, _), (rank, name, size) in self.rank_of.items():
            known = evidence.members.get(name, tuple(range(size)) if rank == job[host, who] else ())
            evidence.members[name] = tuple(sorted({*known, job[host, who]}))
        for owner, operation, number, size in self.calls:
            if owner in self.rank_of:
                rank = job[owner[0], owner[1]]
                evidence.heard.add(rank)
                evidence.calls.append(EnteredCollective(rank, self.rank_of[owner][1], number, operation, ((size,),)))


def _add_warnings(said: _Said, evidence: Evidence) -> None:
    for text, count in said.warnings.most_common(5):
        evidence.findings.append(DiagnosisFinding(
            "wrong", "nccl-warning", said.where[text], f"NCCL warns on {said.where[text]}: {text}"[:300],
            (f"{count} times",) if count > 1 else (), 0.7,
        ))  # fmt: skip
    sockets = sum(count for name, count in said.transports.items() if name.upper().startswith("NET/SOCKET"))
    fabric = sum(count for name, count in said.transports.items() if name.upper().startswith("NET/"))
    if sockets and sockets == fabric:
        evidence.findings.append(DiagnosisFinding(
            "slow", "tcp-instead-of-rdma", "the network",
            "NCCL sends over TCP sockets (NET/Socket): no RDMA device or plugin was found; check its NICs, drivers and"
            " NCCL_NET.", (f"{sockets} channels via NET/Socket",), 0.9,
        ))  # fmt: skip


class NcclTestsReader:
    """Reads the tables of nccl-tests."""

    name = "nccl-tests output"

    def recognises(self, file: FileToRead) -> bool:
        """Return whether it has their heading."""
        return file.is_text and "algbw" in file.text_head and "busbw" in file.text_head and "#" in file.text_head

    def read(self, file: FileToRead, evidence: Evidence) -> str:
        """Read time and bandwidth by size, out of place and in place; the better counts."""
        found = _TEST_NAME.search(file.text_head) or _TEST_NAME.search(file.name)
        table = _TestTable(found.group(1) if found else "collective")
        for line in file.log_lines():
            table.take(line)
        rows = [row for own in table.rows.values() for row in own]
        evidence.bandwidths += rows
        if table.wrong:
            evidence.findings.append(DiagnosisFinding(
                "wrong", "wrong-results", table.operation,
                f"{table.operation} returned {table.wrong:,} wrong elements: a device, a link or a memory corrupts"
                " data.", (), 0.95,
            ))  # fmt: skip
        # Of several types and operators the table that dips most is enough.
        dips = [dip for own in table.rows.values() for dip in _dips(own)]
        evidence.findings += sorted(dips, key=lambda one: -(one.slowdown or 0.0))[:1]
        peak = max((one.bus_gb_s for one in rows), default=0.0)
        names = ", ".join(dict.fromkeys(row.operation for row in rows)) or table.operation
        return f"{names}, {len(rows)} sizes, best bus bandwidth {peak:.4g} GB/s" + (
            f", {table.ranks} ranks" if table.ranks else ""
        )


@dataclass
class _TestTable:
    """Rows of one file; several tests, types and operators may stand in it one after another."""

    operation: str
    ranks: int = 0
    wrong: int = 0
    words: int = 3
    """Columns between the count and the first time, which differ by test and version: type, redop, root."""
    rows: dict[tuple[str, ...], list[Bandwidth]] = field(default_factory=dict)
    """By operation and by these words."""

    def take(self, line: str) -> None:
        """Take one line."""
        if line.startswith("#") or "_perf" in line:
            if (rank := _TEST_RANKS.match(line)) is not None:
                self.ranks = max(self.ranks, int(rank.group(1)) + 1)
            elif (heading := _TEST_HEADING.match(line)) is not None and "time" in heading.group(1).split():
                self.words = heading.group(1).split().index("time")
            elif (name := _TEST_NAME.search(line)) is not None:
                self.operation = name.group(1)
            return
        cells = line.split()
        if len(cells) < 2 + self.words + len(_FIGURES) or not (cells[0].isdecimal() and cells[1].isdecimal()):
            return
        figures = cells[2 + self.words :]
        results = [one for at in range(0, len(figures) - 2, 4) if (one := _test_result(figures[at : at + 4]))]
        if not results:
            return
        self.wrong += sum(wrong for *_, wrong in results)
        time_us, algorithm, bus, _ = max(results, key=lambda one: one[2])
        self.rows.setdefault((self.operation, *cells[2 : 2 + self.words]), []).append(
            Bandwidth(self.operation, int(cells[0]), self.ranks or None, time_us, algorithm, bus)
        )


def _test_result(cells: list[str]) -> tuple[float, float, float, int] | None:
    """Return time, two bandwidths and wrong elements; none where they were not measured (N/A)."""
    try:
        time_us, algorithm, bus = (float(cell) for cell in cells[:3])
    except ValueError:
        return None
    return time_us, algorithm, bus, int(cells[3]) if len(cells) > 3 and cells[3].isdecimal() else 0  # noqa: PLR2004


def _dips(rows: list[Bandwidth]) -> list[DiagnosisFinding]:
    """Return a size at which more bytes get less bandwidth than fewer did: a change of algorithm that does not pay."""
    best = 0.0
    for row in sorted(rows, key=lambda one: one.size_bytes):
        if best > 0 and row.bus_gb_s < _FAR_BELOW * best:
            return [DiagnosisFinding(
                "slow", "bandwidth-dip", row.operation,
                f"{row.operation} of {row.size_bytes:,} bytes reaches {row.bus_gb_s:.4g} GB/s, a smaller one"
                f" {best:.4g}.",
                (), 0.6, best / row.bus_gb_s if row.bus_gb_s else None,
            )]  # fmt: skip
        best = max(best, row.bus_gb_s)
    return []
