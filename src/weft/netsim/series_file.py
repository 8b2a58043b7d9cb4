"""A run's figures over time as a file of JSON lines that grows while it runs: one line for each bin that is over.

A long run can so be watched, and one that is cut off has left what was known. A run that is taken up again writes its
first bins again, so that the file always begins at time 0.
"""

import json
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from weft.core.errors import FailedError
from weft.core.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from weft.netsim.model.records import RunRecords

_BITS_PER_BYTE = 8
_PS_PER_US = 10**6


class SeriesFile:
    """The file of one command; several transports write one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None
        self._written: dict[str, int] = {}

    def __enter__(self) -> "SeriesFile":
        """Open the file anew."""
        try:
            self._file = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise FailedError(f"{self.path} cannot be written: {error.strerror}") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        if self._file is not None:
            self._file.close()

    def note(self, transport: str, records: "RunRecords") -> None:
        """Write the bins that are over and were not written before."""
        assert self._file is not None, "the file is open"
        first = self._written.get(transport, 0)
        for place in range(first, len(records.bin_ends_ps)):
            self._file.write(json.dumps(_line(transport, records, place)) + "\n")
        self._written[transport] = len(records.bin_ends_ps)
        if self._written[transport] > first:
            self._file.flush()


def _line(transport: str, records: "RunRecords", place: int) -> dict[str, Any]:
    """Return one bin as plain values (docs/json.md)."""
    end_ps = records.bin_ends_ps[place]
    began_ps = records.bin_ends_ps[place - 1] if place else 0
    received = int(records.received[place].sum())
    before = int(records.received[place - 1].sum()) if place else 0
    return {
        "transport": transport,
        "time_us": end_ps / _PS_PER_US,
        "received_bytes": received,
        "rate_bps": (received - before) * _BITS_PER_BYTE * PICOSECONDS_PER_SECOND // (end_ps - began_ps),
        "queue_peak_bytes": list(records.queue_peaks[place]),
        "data_lost_to_faults": records.lost_by[place],
        **records.counts[place]._asdict(),
    }
