"""The Standard Workload Format 2.2 of the Parallel Workloads Archive (cs.huji.ac.il/labs/parallel/workload/swf.html).

18 numbers to a line, -1 where unknown, comments behind a semicolon. It knows processors, not GPUs: how many of them
count as one GPU is the caller's word.
"""

from collections.abc import Iterator

from weft.campaign.readers.base import BrokenLineError, ForeignJob, ForeignTrace, LeftOut

_FIELDS = 18
_SUBMIT, _RUN, _ALLOCATED, _ASKED, _LIMIT, _GROUP = 1, 3, 4, 7, 8, 12


class SwfReader:
    """Reads one line for each job."""

    name = "SWF"

    def recognises(self, trace: ForeignTrace) -> bool:
        """Return whether the first line that is no comment has 18 words, the first of them a number."""
        first = next((line for line in trace.head.splitlines() if line.strip() and not line.startswith(";")), "")
        words = first.split()
        if not words:
            return trace.head.startswith(";") and "Version:" in trace.head
        return len(words) == _FIELDS and words[0].isdigit()

    def jobs(self, trace: ForeignTrace) -> Iterator[ForeignJob | LeftOut]:
        """Yield every job that ran."""
        for line, text in enumerate(trace.text.splitlines(), start=1):
            words = text.split()
            if not words or words[0].startswith(";"):
                continue
            if len(words) != _FIELDS:
                raise BrokenLineError(line, f"{len(words)} fields; the format has {_FIELDS}")
            try:
                values = [float(word) for word in words]
            except ValueError as error:
                raise BrokenLineError(line, str(error)) from None
            asked = values[_ASKED] if values[_ASKED] > 0 else values[_ALLOCATED]
            if asked <= 0 or values[_RUN] < 0:
                yield LeftOut(line, "never ran" if asked > 0 else "asks for no processors")
                continue
            limit_s = values[_LIMIT] if values[_LIMIT] > 0 else None
            gpus = -int(-asked // trace.processors_per_gpu)
            team = f"group-{values[_GROUP]:g}" if values[_GROUP] >= 0 else ""
            # Any processors will do: each is a piece of its own, so that as few nodes as can be hold them.
            yield ForeignJob(line, values[_SUBMIT], values[_RUN], 1, gpus, limit_s, team)
