"""What Slurm's accounting prints: `sacct --parsable2` (or `-P`) with a header (slurm.schedmd.com/sacct.html).

Needed are JobID, Submit, Start and End (or ElapsedRaw), and AllocTRES or ReqTRES; NNodes, Timelimit (or TimelimitRaw),
Account and User are used where they are there. Steps of jobs are passed over.
"""

import re
from collections.abc import Iterator

from weft.campaign.readers.base import (
    MINUTE_S,
    BrokenLineError,
    ForeignJob,
    ForeignTrace,
    LeftOut,
    moment,
    span,
    table,
    whole,
)

_NEEDED = ("JobID", "Submit")
_SIZES = ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES")
_ENDLESS = ("unlimited", "partition_limit", "", "unknown", "none")


class SacctReader:
    """Reads one line for each job."""

    name = "Slurm sacct"

    def recognises(self, trace: ForeignTrace) -> bool:
        """Return whether the first line is a header of sacct's."""
        words = trace.head.partition("\n")[0].strip().split("|")
        return all(name in words for name in _NEEDED)

    def jobs(self, trace: ForeignTrace) -> Iterator[ForeignJob | LeftOut]:
        """Yield every job that had GPUs."""
        header = trace.head.partition("\n")[0].split("|")
        if not any(name in header for name in _SIZES):
            raise BrokenLineError(1, "there is no column with GPUs; print AllocTRES or ReqTRES as well")
        if "ElapsedRaw" not in header and not {"Start", "End"} <= set(header):
            raise BrokenLineError(1, "there is no column with run times; print Start and End, or ElapsedRaw, as well")
        for line, row in table(trace.text, separator="|"):
            if "." not in row["JobID"]:
                yield _job(line, row)


def gpus_of(text: str) -> int:
    """Return the GPUs in a list of trackable resources, such as `cpu=64,gres/gpu=8,gres/gpu:a100=8,node=1`."""
    found = re.findall(r"(?:gres[/:])?gpu(?::([^=,:()]+))?[=:](\d+)", text)
    plain = [int(count) for kind, count in found if not kind]
    # The sum over models is written beside the models.
    return plain[0] if plain else sum(int(count) for _, count in found)


def _job(line: int, row: dict[str, str]) -> ForeignJob | LeftOut:
    gpus = next((count for name in _SIZES if (count := gpus_of(row.get(name, "")))), 0)
    submit_s, duration_s = moment(line, "Submit", row["Submit"]), _duration_s(line, row)
    if not gpus:
        return LeftOut(line, "asks for no GPU")
    if submit_s is None or duration_s is None:
        return LeftOut(line, "never ran")
    nodes = max(1, whole(line, row, "NNodes", empty=1)) if "NNodes" in row else 1
    if "NNodes" not in row and (listed := re.search(r"\bnode=(\d+)", row.get("AllocTRES", ""))):
        nodes = max(1, int(listed.group(1)))
    team = row.get("Account") or row.get("User") or ""
    return ForeignJob(line, submit_s, duration_s, -(-gpus // nodes), nodes, _limit_s(line, row), team)


def _duration_s(line: int, row: dict[str, str]) -> float | None:
    start_s, end_s = (moment(line, name, row.get(name, "")) for name in ("Start", "End"))
    if start_s is not None and end_s is not None:
        if end_s < start_s:
            raise BrokenLineError(line, f"it ends ({row['End']}) before it starts ({row['Start']})")
        return end_s - start_s
    if row.get("ElapsedRaw", "0").isdigit() and (elapsed := int(row.get("ElapsedRaw", "0"))):
        return elapsed
    return None


def _limit_s(line: int, row: dict[str, str]) -> float | None:
    raw, text = row.get("TimelimitRaw", ""), row.get("Timelimit", "")
    if raw.isdigit():
        return int(raw) * MINUTE_S or None
    return None if text.lower() in _ENDLESS else span(line, "Timelimit", text) or None
