"""NCCL's RAS report as JSON (`ncclras -f json`, NCCL 2.28.7 and later): how many collectives each rank has launched."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from weft.diagnosis.collective_calls import EnteredCollective, listed
from weft.diagnosis.finding import DiagnosisFinding
from weft.doctor.readers.base import FileToRead, UnreadableError
from weft.doctor.readers.evidence import Evidence

_MOST_BYTES = 512 * 2**20
_NO_COMMA = re.compile(rb'("nvml_dev"\s*:\s*-?\d+)\s+"status"')
_Process: TypeAlias = tuple[str, int, int]
"""Host, process and device: who it is in every communicator."""


class NcclRasReader:
    """Reads one report."""

    name = "NCCL RAS report"

    def recognises(self, file: FileToRead) -> bool:
        """Return whether it has the words of one."""
        return (
            file.head.lstrip().startswith(b"{") and b'"communicators"' in file.head and b'"nccl_version"' in file.head
        )

    def read(self, file: FileToRead, evidence: Evidence) -> str:
        """Read every communicator."""
        with file.open() as stream:
            data = stream.read(_MOST_BYTES)
        try:
            # 2.28 to 2.28.9 leave out a comma before the status of a missing rank.
            document = json.loads(_NO_COMMA.sub(rb'\1, "status"', data))
            communicators = document["communicators"]
            numbers = _job_ranks(communicators)
            for communicator in communicators:
                _communicator(communicator, numbers, evidence)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UnreadableError(f"{file.path} is no whole RAS report") from None
        return f"{len(communicators)} communicators, NCCL {document.get('nccl_version', '?')}"


def _process(rank: Mapping[str, Any]) -> _Process:
    return str(rank.get("host", "?")), int(rank.get("pid", rank["rank"])), int(rank.get("cuda_dev", 0))


def _everybody(communicator: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*communicator.get("ranks", []), *communicator.get("missing_ranks", [])]


def _job_ranks(communicators: Sequence[Mapping[str, Any]]) -> dict[_Process, int]:
    """Return each process's rank in the job: its rank in the largest communicator, if that holds all processes."""
    largest: list[Mapping[str, Any]] = max(map(_everybody, communicators), key=len, default=[])
    found = {_process(rank): int(rank["rank"]) for rank in largest}
    everybody = dict.fromkeys(_process(rank) for one in communicators for rank in _everybody(one))
    if len(found) == len(everybody):
        return found
    # No communicator of all: processes are counted by host and device, as launchers do.
    return {process: number for number, process in enumerate(sorted(everybody, key=lambda one: (one[0], one[2])))}


def _communicator(communicator: Mapping[str, Any], numbers: Mapping[_Process, int], evidence: Evidence) -> None:
    name = str(communicator.get("hash", "?"))
    ranks, gone = communicator.get("ranks", []), communicator.get("missing_ranks", [])
    for rank in ranks:
        number = numbers[_process(rank)]
        evidence.heard.add(number)
        for operation, count in rank.get("collective_counts", {}).items():
            if count:
                group = _group(communicator, str(operation))
                evidence.calls.append(EnteredCollective(number, group, int(count), str(operation)))
        status = rank.get("status", {})
        troubles = [key for key in ("async_error", "abort_flag") if status.get(key)]
        if troubles:
            evidence.findings.append(DiagnosisFinding(
                "wrong", "communicator-error", f"rank {number}",
                f"Rank {number} on {rank.get('host', '?')} reports {' and '.join(troubles)} in communicator {name}.",
                (), 0.95, None, None, "", None, (number,),
            ))  # fmt: skip
    counted = {operation for rank in ranks for operation, count in rank.get("collective_counts", {}).items() if count}
    missing = tuple(sorted(numbers[_process(rank)] for rank in gone))
    for operation in counted:
        everybody = tuple(sorted({*(numbers[_process(rank)] for rank in ranks), *missing}))
        evidence.members[_group(communicator, str(operation))] = everybody
    if missing:
        dead = [rank for rank in gone if {**rank, **rank.get("status", {})}.get("considered_dead")]
        hosts = sorted({str(rank.get("host", "?")) for rank in gone})
        evidence.findings.append(DiagnosisFinding(
            "stuck", "lost-rank", listed(missing),
            f"{listed(missing).capitalize()} of communicator {name} {'is' if len(missing) == 1 else 'are'} gone"
            f" ({', '.join(hosts)}).",
            (f"NCCL considers {len(dead)} of them dead, the others do not answer",), 0.95, None, 1.0, "", None, missing,
        ))  # fmt: skip


def _group(communicator: Mapping[str, Any], operation: str) -> str:
    """Return a name for what is counted: the hash alone is not always one communicator's."""
    second = communicator.get("secondary_hash")
    return f"{communicator.get('hash', '?')}{f' ({second})' if second else ''} {operation}"
