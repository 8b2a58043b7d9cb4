"""NCCL's RAS report as JSON (`ncclras -f json`, NCCL 2.28.7 and later): how many collectives each rank has launched."""

import json
from collections.abc import Mapping
from typing import Any

from weft.diagnosis.collective_calls import EnteredCollective, listed
from weft.diagnosis.finding import DiagnosisFinding
from weft.doctor.readers.base import FileToRead, UnreadableError
from weft.doctor.readers.evidence import Evidence

_MOST_BYTES = 512 * 2**20


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
            document = json.loads(data)
            communicators = document["communicators"]
            for communicator in communicators:
                _communicator(communicator, evidence)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UnreadableError(f"{file.path} is no whole RAS report") from None
        return f"{len(communicators)} communicators, NCCL {document.get('nccl_version', '?')}"


def _communicator(communicator: Mapping[str, Any], evidence: Evidence) -> None:
    name = str(communicator.get("hash", "?"))
    ranks = communicator.get("ranks", [])
    for rank in ranks:
        number = int(rank["rank"])
        evidence.heard.add(number)
        for operation, count in rank.get("collective_counts", {}).items():
            if count:
                evidence.calls.append(EnteredCollective(number, f"{name} {operation}", int(count), str(operation)))
        status = rank.get("status", {})
        troubles = [key for key in ("async_error", "abort_flag") if status.get(key)]
        if troubles:
            evidence.findings.append(DiagnosisFinding(
                "wrong", "communicator-error", f"rank {number}",
                f"Rank {number} on {rank.get('host', '?')} reports {' and '.join(troubles)} in communicator {name}.",
                (), 0.95, None, None, "", None, (number,),
            ))  # fmt: skip
    counted = {operation for rank in ranks for operation, count in rank.get("collective_counts", {}).items() if count}
    missing = tuple(int(rank["rank"]) for rank in communicator.get("missing_ranks", []))
    for operation in counted:
        evidence.members[f"{name} {operation}"] = tuple(sorted({*(int(rank["rank"]) for rank in ranks), *missing}))
    if missing:
        dead = [rank for rank in communicator["missing_ranks"] if rank.get("considered_dead")]
        hosts = sorted({str(rank.get("host", "?")) for rank in communicator["missing_ranks"]})
        evidence.findings.append(DiagnosisFinding(
            "stuck", "lost-rank", listed(missing),
            f"{listed(missing).capitalize()} of communicator {name} {'is' if len(missing) == 1 else 'are'} gone"
            f" ({', '.join(hosts)}).",
            (f"NCCL considers {len(dead)} of them dead, the others do not answer",), 0.95, None, 1.0, "", None, missing,
        ))  # fmt: skip
