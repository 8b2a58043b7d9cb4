"""A reader for `weft doctor`: a text file with the seconds of one step in each line, headed by `# step times`."""

from weft.diagnosis.step_series import StepSeries
from weft.doctor.readers.base import FileToRead
from weft.doctor.readers.evidence import Evidence


class PlainTimesReader:
    """Reads such files."""

    name = "plain step times"

    def recognises(self, file: FileToRead) -> bool:
        """Return whether the file begins with the heading."""
        return file.head.startswith(b"# step times")

    def read(self, file: FileToRead, evidence: Evidence) -> str:
        """Add one series of steps."""
        seconds = [float(line) for line in file.lines() if line and not line.startswith("#")]
        evidence.series.append(StepSeries(range(len(seconds)), seconds, source=file.name))
        return f"{len(seconds)} steps"
