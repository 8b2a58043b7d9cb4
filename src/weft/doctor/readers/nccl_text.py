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
_LOG_LINE = re.compile(r"^(\S+?):(\d+):(\d+) \[(\d+)\] NCCL (INFO|WARN) (.*)$")
_CALL = re.compile(
    r"^(?:\[\d+\] )?(Broadcast|Reduce|AllGather|ReduceScatter|AllReduce|AlltoAll|Send|Recv): opCount ([0-9a-f]+) "
    r".*?count (\d+) datatype (\d+) .*?comm (0x[0-9a-f]+) \[nranks=(\d+)\]"
)
_INIT = re.compile(r"comm (0x[0-9a-f]+) rank (\d+) n[Rr]anks (\d+).*?(?:commId (0x[0-9a-f]+))?.*?- Init COMPLETE")
_VIA = re.compile(r"Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\].* via (\S+)")
_TEST_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+(.*)$")
_TEST_RANKS = re.compile(r"^#\s+Rank\s+(\d+)")
_TEST_NAME = re.compile(
    r"(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|sendrecv|reduce|gather|scatter|hypercube)_perf"
)
_FAR_BELOW = 0.7


class NcclLogReader:
    """Reads logs of `NCCL_DEBUG=INFO`, of one rank or of many in one file."""

    name = "NCCL log"

    def recognises(self, file: FileToRead) -> bool:
        """Return whether NCCL speaks in it."""
        return (
            file.is_text
            and re.search(r"^\S+:\d+:\d+ \[\d+\] NCCL (INFO|WARN) ", file.text_head, re.MULTILINE) is not None
        )

    def read(self, file: FileToRead, evidence: Evidence) -> str:
        """Read ranks, transports, warnings and, with the COLL subsystem on, the calls."""
        said = _Said()
        for line in file.lines():
            if (found := _LOG_LINE.match(line)) is not None:
                said.take(*found.groups())
        said.add_calls(evidence)
        _add_warnings(said, evidence)
        used = ", ".join(f"{name} ({count})" for name, count in said.transports.most_common(4)) or "no channels"
        return f"{len(said.rank_of)} ranks, {len(said.calls):,} calls, {used}"


@dataclass
class _Said:
    """What a log says, by process and communicator."""

    rank_of: dict[_Owner, tuple[int, str]] = field(default_factory=dict)
    transports: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    where: dict[str, str] = field(default_factory=dict)
    world: dict[str, int] = field(default_factory=dict)
    calls: list[tuple[_Owner, str, int, int]] = field(default_factory=list)
    counts: Counter[_Owner] = field(default_factory=Counter)

    def take(self, host: str, process: str, _thread: str, _device: str, level: str, text: str) -> None:
        """Take one line."""
        if level == "WARN":
            self.warnings[text] += 1
            self.where.setdefault(text, f"{host}:{process}")
        elif (init := _INIT.search(text)) is not None:
            communicator = init.group(4) or "world"
            self.rank_of[host, process, init.group(1)] = (int(init.group(2)), communicator)
            self.world[communicator] = int(init.group(3))
        elif (via := _VIA.search(text)) is not None:
            self.transports[via.group(1)] += 1
        elif (call := _CALL.match(text)) is not None:
            owner = (host, process, call.group(5))
            self.counts[owner] += 1
            self.calls.append((owner, call.group(1), self.counts[owner], int(call.group(3))))

    def add_calls(self, evidence: Evidence) -> None:
        """Add the calls of ranks that said who they are."""
        for owner, operation, number, size in self.calls:
            if owner in self.rank_of:
                rank, communicator = self.rank_of[owner]
                evidence.heard.add(rank)
                evidence.calls.append(EnteredCollective(rank, communicator, number, operation, ((size,),)))
                evidence.members[communicator] = tuple(range(self.world[communicator]))


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
        operation = found.group(1) if found else "collective"
        ranks = 0
        rows: list[Bandwidth] = []
        wrong = 0
        for line in file.lines():
            if (rank := _TEST_RANKS.match(line)) is not None:
                ranks = max(ranks, int(rank.group(1)) + 1)
            row = _TEST_ROW.match(line)
            if row is None:
                continue
            cells = row.group(6).split()
            results = [cells[at : at + 4] for at in range(0, len(cells) - 2, 4)]
            try:
                best = max(results, key=lambda cell: float(cell[2]))
                wrong += sum(int(cell[3]) for cell in results if len(cell) > 3 and cell[3].isdecimal())  # noqa: PLR2004
                rows.append(Bandwidth(
                    operation, int(row.group(1)), ranks or None, float(best[0]), float(best[1]), float(best[2])
                ))  # fmt: skip
            except (ValueError, IndexError):
                continue
        evidence.bandwidths += rows
        if wrong:
            evidence.findings.append(DiagnosisFinding(
                "wrong", "wrong-results", operation,
                f"{operation} returned {wrong:,} wrong elements: a device, a link or a memory corrupts data.", (), 0.95,
            ))  # fmt: skip
        evidence.findings += _dips(rows)
        peak = max((one.bus_gb_s for one in rows), default=0.0)
        return f"{operation}, {len(rows)} sizes, best bus bandwidth {peak:.4g} GB/s" + (
            f", {ranks} ranks" if ranks else ""
        )


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
