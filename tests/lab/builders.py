"""A lab on paper for tests that need no root: its plan, its record, and a machine that only takes notes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from typing_extensions import override

from weft_lab.network.faults import Faults
from weft_lab.network.lab import Lab
from weft_lab.network.machine import LabMachine
from weft_lab.network.plan import LabSpec, queue_for, small_fabric
from weft_lab.network.record import LabRecord, LabRecords

RATE = 200_000_000


@dataclass(frozen=True)
class Notes(LabMachine):
    """Runs nothing: keeps what was asked, and answers from a table."""

    asked: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)

    @override
    def run(self, argv: Sequence[str], text: str = "", *, check: bool = True) -> str:
        self.asked.append((tuple(argv), text))
        return next((answer for word, answer in self.answers.items() if word in argv), "")


def paper_lab(folder: Path, *, faults: Faults | None = None, **sizes: Any) -> Lab:
    """Return a lab that is written down and exists nowhere else."""
    asked = {"hosts": 4, "planes": 2, "spines": 2, **sizes}
    spec = LabSpec("w", small_fabric(**asked, rate_bps=RATE), RATE, queue_for(RATE))
    records = LabRecords(folder / "labs")
    record = LabRecord(spec, "up", Notes(), faults or Faults())
    with records.alone():
        records.write(record)
    return Lab(records, record)


@cache
def read_only_lab() -> Lab:
    """Return a lab for many examples of a property: nothing of it is written anywhere."""
    spec = LabSpec("w", small_fabric(4, 2, 2, RATE), RATE, queue_for(RATE))
    return Lab(LabRecords(Path("nowhere")), LabRecord(spec, "up", Notes()))
