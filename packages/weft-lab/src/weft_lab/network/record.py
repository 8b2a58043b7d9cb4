"""What is remembered of a lab between commands: one small file, written before the machine is touched.

A command that dies half-way leaves the file, and with it everything that is needed to clear up. One command at a time
works on the labs of a folder.
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from weft.core.errors import FailedError, UsageError
from weft.core.input_files import json_of, read_bytes
from weft_lab.network.faults import Faults
from weft_lab.network.machine import LabMachine, NamespaceKeeper
from weft_lab.network.plan import LabSpec

Phase = Literal["making", "up", "removing"]

FOLDER_MARK = "made-netns-folder"
"""A file of this name says that the folder of network namespaces was not there before the first lab."""
_FORMAT = 1


@dataclass(frozen=True)
class LabRecord:
    """One lab as it was last written down."""

    spec: LabSpec
    """What it is asked to be."""
    phase: Phase
    """How far it has got."""
    machine: LabMachine = field(default_factory=LabMachine)
    """Where it lives."""
    faults: Faults = field(default_factory=Faults)
    """What is wrong with it on purpose."""

    def as_json(self) -> dict[str, Any]:
        """Return the record as it is written."""
        keeper = self.machine.keeper
        return {
            "format": _FORMAT,
            "phase": self.phase,
            "keeper": None if keeper is None else {"pid": keeper.pid, "started": keeper.started},
            "spec": self.spec.as_json(),
            "faults": self.faults.as_json(),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "LabRecord":
        """Return the record that `as_json` wrote."""
        keeper = document["keeper"]
        world = LabMachine(None if keeper is None else NamespaceKeeper(**keeper))
        return cls(LabSpec.from_json(document["spec"]), document["phase"], world, Faults.from_json(document["faults"]))


@dataclass(frozen=True)
class LabRecords:
    """The labs of one user, in one folder."""

    folder: Path

    def names(self) -> list[str]:
        """Return the names of the labs that are written down."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def read(self, name: str) -> LabRecord | None:
        """Return what is written about a lab, or nothing."""
        path = self._path(name)
        try:
            return LabRecord.from_json(json_of(read_bytes(path)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageError(
                f"{path} cannot be read as the record of a lab; weft lab down --name {name} removes it and the lab"
            ) from None

    def write(self, record: LabRecord) -> None:
        """Write a lab down; the file appears whole or not at all."""
        path = self._path(record.spec.name)
        part = path.with_suffix(".part")
        try:
            with part.open("w") as file:
                json.dump(record.as_json(), file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise FailedError(f"{path} cannot be written: {error.strerror}") from None

    def forget(self, name: str) -> None:
        """Remove what is written about a lab."""
        self._path(name).unlink(missing_ok=True)
        self._path(name).with_suffix(".part").unlink(missing_ok=True)

    @property
    def mark(self) -> Path:
        """Return the file that says who made the folder of network namespaces."""
        return self.folder / FOLDER_MARK

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other commands off these labs; the folder is made for this long and goes with the last lab."""
        file = self._locked()
        try:
            yield
        finally:
            # Nobody else can hold the lock here, and who waits for it looks whether the file is still the same.
            if not [path for path in self.folder.iterdir() if path.name != "lock"]:
                (self.folder / "lock").unlink()
                with suppress(OSError):
                    self.folder.rmdir()
                    self.folder.parent.rmdir()
            os.close(file)

    def _locked(self) -> int:
        lock = self.folder / "lock"
        while True:
            try:
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise UsageError(f"{self.folder} cannot be used to remember labs: {error.strerror}") from None
            fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if lock.stat().st_ino == os.fstat(file).st_ino:
                    return file
            os.close(file)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def own_records() -> LabRecords:
    """Return where this user's labs are remembered: gone after a restart, as they are."""
    if os.geteuid() == 0:
        return LabRecords(Path("/run/weft/lab"))
    own = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(own) if own and Path(own).is_dir() else Path(tempfile.gettempdir(), f"weft-{os.geteuid()}")
    return LabRecords(base / "weft" / "lab")
