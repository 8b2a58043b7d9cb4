"""Where an engine keeps what it knows: one folder, closed to others."""

import secrets
from dataclasses import dataclass
from pathlib import Path

from weft.core.errors import FailedError, UsageError
from weft.engines.local.atomic_files import read_document, write_whole

_CLOSED = 0o700
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one engine."""

    folder: Path

    @property
    def state(self) -> Path:
        """Return the database."""
        return self.folder / "state.sqlite"

    @property
    def lock(self) -> Path:
        """Return the file that a running engine holds."""
        return self.folder / "engine.lock"

    @property
    def address(self) -> Path:
        """Return the file that says where a running engine listens."""
        return self.folder / "engine.json"

    @property
    def log(self) -> Path:
        """Return the engine's own log."""
        return self.folder / "engine.log"

    @property
    def decisions(self) -> Path:
        """Return the folder of the logs of decisions."""
        return self.folder / "decisions"

    @property
    def snapshots(self) -> Path:
        """Return the folder of working folders as they were submitted."""
        return self.folder / "snapshots"

    def job(self, name: str) -> Path:
        """Return the folder of a job."""
        return self.folder / "jobs" / name

    def attempt(self, name: str, number: int) -> Path:
        """Return the folder of one attempt of a job."""
        return self.job(name) / f"attempt-{number}"

    def make(self) -> None:
        """Make the folders, closed to others."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=_CLOSED)
            self.folder.chmod(_CLOSED)
            self.snapshots.mkdir(exist_ok=True)
            (self.folder / "jobs").mkdir(exist_ok=True)
        except FileExistsError:
            raise UsageError(f"{self.folder} is a file; name a folder for the cluster's state") from None
        except OSError as error:
            raise FailedError(f"{self.folder} cannot be used for the cluster's state: {error.strerror}") from None

    def token(self) -> str:
        """Return the secret that opens the HTTP interface; the first call makes it."""
        path = self.folder / "token"
        if not path.exists():
            write_whole(path, secrets.token_hex(_TOKEN_BYTES) + "\n")
        return path.read_text(encoding="ascii").strip()

    def known_token(self) -> str | None:
        """Return the secret, where there is one already."""
        path = self.folder / "token"
        return path.read_text(encoding="ascii").strip() if path.is_file() else None

    def where(self) -> tuple[str, int] | None:
        """Return host and port of the engine that was last started here."""
        known = read_document(self.address)
        return None if known is None else (str(known["host"]), int(known["port"]))
