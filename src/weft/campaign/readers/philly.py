"""Microsoft's Philly trace: `cluster_job_log`, a JSON list of jobs (github.com/msr-fiddle/philly-traces).

A job's duration is that of its attempts together, its size that of its last attempt; it declares no limit.
"""

import json
from collections.abc import Iterator
from typing import Any

from weft.campaign.readers.base import BrokenLineError, ForeignJob, ForeignTrace, LeftOut, moment


class PhillyReader:
    """Reads job by job, so that each is known by its line."""

    name = "Philly"

    def recognises(self, trace: ForeignTrace) -> bool:
        """Return whether it is a JSON list whose first job has a virtual cluster and attempts."""
        head = trace.head
        return head.lstrip().startswith("[") and all(f'"{key}"' in head for key in ("vc", "jobid", "attempts"))

    def jobs(self, trace: ForeignTrace) -> Iterator[ForeignJob | LeftOut]:
        """Yield every job that ran."""
        for line, entry in _entries(trace.text):
            try:
                yield _job(line, entry)
            except (KeyError, TypeError, AttributeError) as error:
                what = f"lacks {error}" if isinstance(error, KeyError) else "is not shaped as the trace's jobs are"
                raise BrokenLineError(line, f"the job {what}") from None


def _entries(text: str) -> Iterator[tuple[int, Any]]:
    decoder, at, line = json.JSONDecoder(), text.index("[") + 1, 1
    counted = 0
    while True:
        at += len(text[at : at + 1_000_000]) - len(text[at : at + 1_000_000].lstrip(" \t\r\n,"))
        line += text.count("\n", counted, at)
        counted = at
        if text.startswith("]", at):
            return
        try:
            entry, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            if isinstance(error, json.JSONDecodeError):
                raise BrokenLineError(error.lineno, f"this is no JSON: {error.msg}") from None
            raise BrokenLineError(line, "this is no JSON of a job") from None
        yield line, entry


def _job(line: int, entry: dict[str, Any]) -> ForeignJob | LeftOut:
    submit_s = moment(line, "submitted_time", str(entry["submitted_time"]))
    duration_s = 0.0
    shape: list[int] = []
    for attempt in entry["attempts"]:
        start_s, end_s = (moment(line, key, str(attempt.get(key))) for key in ("start_time", "end_time"))
        if start_s is None or end_s is None:
            continue
        duration_s += max(0.0, end_s - start_s)
        shape = [len(each["gpus"]) for each in attempt["detail"]]
    if submit_s is None or not shape:
        return LeftOut(line, "never ran, or its end is not known")
    if not max(shape):
        return LeftOut(line, "asks for no GPU")
    if min(shape) == max(shape):
        return ForeignJob(line, submit_s, duration_s, shape[0], len(shape), team=str(entry["vc"]))
    # Parts of nodes of several sizes: any GPUs will do.
    return ForeignJob(line, submit_s, duration_s, 1, sum(shape), team=str(entry["vc"]))
