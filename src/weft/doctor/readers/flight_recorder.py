"""Dumps of torch's flight recorder: the collectives that each rank entered last, as JSON or as a pickle.

A pickle may hold anything; here it is read as plain values alone, and refused if it names a class or a function.
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from weft.core.pickle_opcodes import StrangePickleError, plain_values
from weft.diagnosis.collective_calls import EnteredCollective
from weft.doctor.readers.base import FileToRead, UnreadableError
from weft.doctor.readers.evidence import Evidence

_MOST_BYTES = 512 * 2**20
_PICKLE = b"\x80"
_TRANSFER = re.compile(r"(send|recv) (\d+)\s*(?:->|<-)\s*(\d+)")


class FlightRecorderReader:
    """Reads one rank's dump."""

    name = "flight recorder"

    def recognises(self, file: FileToRead) -> bool:
        """Return whether it has a recorder's words in it."""
        begins = file.head.startswith(_PICKLE) or file.head.lstrip()[:1] in {b"{", b"["}
        words = (b"pg_config", b"pg_status", b"collective_seq_id", b"profiling_name", b"seq_id")
        return begins and sum(word in file.head for word in words) >= 2  # noqa: PLR2004 - one alone may be chance

    def read(self, file: FileToRead, evidence: Evidence) -> str:
        """Read the calls of one rank."""
        rank = file.rank
        if rank is None:
            raise UnreadableError(f"{file.path} does not say whose dump it is; let its name end in the rank, as dump_3")
        document = _document(file)
        entries = document.get("entries", [])
        if not isinstance(entries, list):
            raise UnreadableError(f"{file.path} has no list of entries")
        evidence.heard.add(rank)
        _members(document, evidence)
        count = 0
        records = [entry["record_id"] for entry in entries if isinstance(entry, Mapping) and "record_id" in entry]
        transfers = _Transfers(rank, evidence, whole=bool(records) and min(records) == 0)
        for entry in entries:
            if isinstance(entry, Mapping):
                if entry.get("is_p2p"):
                    transfers.take(entry)
                else:
                    evidence.calls.append(_call(rank, entry))
                    count += 1
        _forgotten(rank, document, evidence)
        return f"rank {rank}: {count:,} collectives" + (f", {transfers.count:,} transfers" if transfers.count else "")


class _Transfers:
    """Sends and receives of a rank: of a pair of ranks, the n-th send is one with the n-th receive."""

    def __init__(self, rank: int, evidence: Evidence, *, whole: bool) -> None:
        self.rank, self.evidence, self.whole, self.count = rank, evidence, whole, 0
        self.numbers: Counter[str] = Counter()

    def take(self, entry: Mapping[str, Any]) -> None:
        """Take one, where the recorder still knows the first: else it is not known which number it has."""
        self.count += 1
        found = _TRANSFER.search(str(entry.get("profiling_name", "")))
        if found is None or not self.whole:
            return
        what, one, other = found.group(1), int(found.group(2)), int(found.group(3))
        sender, receiver = (one, other) if what == "send" else (other, one)
        call = _call(self.rank, entry)
        if sender == receiver or max(sender, receiver) >= len(self.evidence.members.get(call.group, ())):
            return
        group = f"{call.group}, {sender} to {receiver}"
        self.numbers[group] += 1
        members = self.evidence.members[call.group]
        self.evidence.members[group] = (members[sender], members[receiver])
        self.evidence.calls.append(EnteredCollective(
            self.rank, group, self.numbers[group], f"send {sender} -> {receiver}", call.sizes, call.dtypes, call.done,
            call.entered_ns,
        ))  # fmt: skip


def _forgotten(rank: int, document: Mapping[str, Any], evidence: Evidence) -> None:
    """Add what a group's status says was called last, where its calls have left the ring that the recorder keeps."""
    status = document.get("pg_status")
    if not isinstance(status, Mapping):
        return
    seen = {call.group for call in evidence.calls}
    for key, one in status.items():
        last = one.get("last_enqueued_collective") if isinstance(one, Mapping) else None
        if isinstance(last, int) and last > 0 and str(key) not in seen and str(key) in evidence.members:
            done = int(one.get("last_completed_collective") or 0) >= last
            evidence.calls.append(EnteredCollective(rank, str(key), last, "", (), (), done))


def _document(file: FileToRead) -> Mapping[str, Any]:
    with file.open() as stream:
        data = stream.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise UnreadableError(f"{file.path} is larger than {_MOST_BYTES >> 20} MiB; that is no dump of a recorder")
    try:
        document = plain_values(data, "a dump") if data.startswith(_PICKLE) else json.loads(data)
    except StrangePickleError as error:
        raise UnreadableError(f"{file.path} is refused: {error}") from None
    except (ValueError, RecursionError):
        raise UnreadableError(f"{file.path} is damaged: it is no dump of a flight recorder") from None
    if isinstance(document, list):
        return {"entries": document}  # torch 2.2 and before
    if not isinstance(document, Mapping):
        raise UnreadableError(f"{file.path} is no dump of a flight recorder")
    return document


def _members(document: Mapping[str, Any], evidence: Evidence) -> None:
    configured = document.get("pg_config")
    if not isinstance(configured, Mapping):
        return
    for key, group in configured.items():
        if not isinstance(group, Mapping):
            continue
        try:
            ranks = ast.literal_eval(str(group.get("ranks", "[]")))
            # gloo's default group has no name in the configuration and number 0 in the entries.
            evidence.members[str(group.get("name") or key or "0")] = tuple(int(rank) for rank in ranks)
        except (ValueError, SyntaxError, TypeError):
            continue


def _call(rank: int, entry: Mapping[str, Any]) -> EnteredCollective:
    group = entry.get("process_group") or (str(entry.get("pg_id", "")), "")
    name = str(group[0] if isinstance(group, (list, tuple)) and group else group)
    sizes: list[list[Any]] = list(entry.get("input_sizes") or [])
    dtypes: list[Any] = list(entry.get("input_dtypes") or [])
    return EnteredCollective(
        rank, name or "0", int(entry.get("collective_seq_id") or entry.get("seq_id") or 0),
        str(entry.get("profiling_name", "a collective")),
        tuple(tuple(int(one) for one in size) for size in sizes),
        tuple(str(one) for one in dtypes), entry.get("state") == "completed",
        int(entry.get("time_created_ns") or 0),
    )  # fmt: skip
