"""SenseTime's Helios traces: `cluster_log.csv` of a cluster (github.com/S-Lab-System-Group/HeliosData)."""

from collections.abc import Iterator, Mapping

from weft.campaign.readers.base import BrokenLineError, ForeignJob, ForeignTrace, LeftOut, moment, number, table, whole

COLUMNS = {"user", "gpu_num", "node_num", "state", "submit_time", "start_time", "end_time", "duration"}


class HeliosReader:
    """Reads one line for each job; its team is its virtual cluster."""

    name = "Helios"
    team_column = "vc"
    """The column that teams are made of."""
    columns = COLUMNS
    """The columns by which a file is known, besides."""

    def recognises(self, trace: ForeignTrace) -> bool:
        """Return whether the header names its columns."""
        return {*self.columns, self.team_column} <= set(trace.columns)

    def jobs(self, trace: ForeignTrace) -> Iterator[ForeignJob | LeftOut]:
        """Yield every job that had GPUs."""
        for line, row in table(trace.text):
            yield job_of(line, row, row[self.team_column])


def job_of(line: int, row: Mapping[str, str], team: str) -> ForeignJob | LeftOut:
    """Return the job of one row."""
    gpus = whole(line, row, "gpu_num", empty=0)
    if not gpus:
        return LeftOut(line, "asks for no GPU")
    submit_s, start_s, end_s = (moment(line, name, row[name]) for name in ("submit_time", "start_time", "end_time"))
    if submit_s is None:
        raise BrokenLineError(line, "it has no submit_time")
    if start_s is not None and end_s is not None:
        # The difference, not the column: in Acme's Kalos that counts from the submission.
        duration_s = end_s - start_s
        if duration_s < 0:
            raise BrokenLineError(line, f"it ends ({row['end_time']}) before it starts ({row['start_time']})")
    elif row["duration"] and start_s is not None:
        duration_s = number(line, row, "duration")
    else:
        return LeftOut(line, "never ran")
    nodes = max(1, whole(line, row, "node_num", empty=1))
    return ForeignJob(line, submit_s, duration_s, -(-gpus // nodes), nodes, team=team)
