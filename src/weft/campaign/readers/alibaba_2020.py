"""Alibaba's PAI trace of 2020: `pai_task_table.csv` (github.com/alibaba/clusterdata, cluster-trace-gpu-v2020).

The files come without headers. A job's tasks are taken together: those that ask for GPUs must run at once. When it was
submitted and by whom stands in `pai_job_table.csv`, which is read where it lies in the same folder. Parts of a GPU are
rounded up to whole ones: here nobody shares one.
"""

from collections.abc import Iterator
from itertools import groupby

from weft.campaign.readers.base import BrokenLineError, ForeignJob, ForeignTrace, LeftOut, number, table

_TASKS = ["job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
          "gpu_type"]  # fmt: skip
_JOBS = ["job_name", "inst_id", "user", "status", "start_time", "end_time"]
_STATES = {"Running", "Terminated", "Failed", "Waiting"}
_STATE = 3
_PERCENT = 100


class AlibabaPaiReader:
    """Reads one line for each task, and joins those of a job."""

    name = "Alibaba 2020"

    def recognises(self, trace: ForeignTrace) -> bool:
        """Return whether the first line has the ten columns of a task, with or without a header."""
        words = trace.columns
        return len(words) == len(_TASKS) and (words == _TASKS or words[_STATE] in _STATES)

    def jobs(self, trace: ForeignTrace) -> Iterator[ForeignJob | LeftOut]:
        """Yield every job that had GPUs."""
        submitted = {
            row["job_name"]: (row["start_time"], row["user"])
            for _, row in table(trace.beside("pai_job_table.csv") or "", _JOBS)
        }
        rows = list(table(trace.text, None if trace.columns == _TASKS else _TASKS))
        # Tasks of a job need not stand together; jobs keep the order of their first lines.
        first = {row["job_name"]: line for line, row in reversed(rows)}
        rows.sort(key=lambda entry: first[entry[1]["job_name"]])
        for name, tasks in groupby(rows, key=lambda entry: entry[1]["job_name"]):
            yield _job(list(tasks), *submitted.get(name, ("", "")))


def _job(tasks: list[tuple[int, dict[str, str]]], submit: str, user: str) -> ForeignJob | LeftOut:
    line = tasks[0][0]
    gpus, pieces = 0, 0
    begins: list[float] = []
    ends: list[float] = []
    for at, row in tasks:
        share = number(at, row, "plan_gpu", empty=0.0)
        count = int(number(at, row, "inst_num", empty=0.0))
        if not share or not count:
            continue
        gpus, pieces = max(gpus, -int(-share // _PERCENT)), pieces + count
        begins.append(number(at, row, "start_time", empty=0.0))
        ends.append(number(at, row, "end_time", empty=0.0))
    if not pieces:
        return LeftOut(line, "asks for no GPU")
    if not all(begins) or not all(ends):
        return LeftOut(line, "never ran, or its end is not known")
    start_s, end_s = min(begins), max(ends)
    if end_s < start_s:
        raise BrokenLineError(line, f"it ends ({end_s:g}) before it starts ({start_s:g})")
    submit_s = number(line, {"start_time": submit}, "start_time", empty=start_s)
    return ForeignJob(line, min(submit_s, start_s), end_s - start_s, gpus, pieces, team=user)
