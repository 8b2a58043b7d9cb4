"""Alibaba's trace of 2023: `openb_pod_list_*.csv` (github.com/alibaba/clusterdata, cluster-trace-gpu-v2023).

One pod is one job; latency-sensitive ones (LS) count as services. Parts of a GPU are rounded up to whole ones.
"""

from collections.abc import Iterator

from weft.campaign.readers.base import BrokenLineError, ForeignJob, ForeignTrace, LeftOut, number, table, whole

_COLUMNS = {"name", "num_gpu", "gpu_milli", "qos", "creation_time", "deletion_time", "scheduled_time"}


class AlibabaPodReader:
    """Reads one line for each pod; its team is its quality of service."""

    name = "Alibaba 2023"

    def recognises(self, trace: ForeignTrace) -> bool:
        """Return whether the header names its columns."""
        return set(trace.columns) >= _COLUMNS

    def jobs(self, trace: ForeignTrace) -> Iterator[ForeignJob | LeftOut]:
        """Yield every pod that had GPUs."""
        for line, row in table(trace.text):
            gpus = whole(line, row, "num_gpu", empty=0)
            if not gpus:
                yield LeftOut(line, "asks for no GPU")
                continue
            submit_s, end_s = (number(line, row, name) for name in ("creation_time", "deletion_time"))
            start_s = number(line, row, "scheduled_time", empty=-1.0)
            if start_s < 0:
                yield LeftOut(line, "never ran")
                continue
            if end_s < start_s:
                raise BrokenLineError(line, f"it is deleted ({end_s:g}) before it is scheduled ({start_s:g})")
            yield ForeignJob(line, submit_s, end_s - start_s, gpus, team=row["qos"], service=row["qos"] == "LS")
