"""Where an engine keeps what it knows: one folder, closed to others."""

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weft.core.errors import FailedError, UsageError
from weft.core.input_files import read_text
from weft.engines.local.atomic_files import read_document, write_whole

_CLOSED, _PRIVATE = 0o700, 0o600
_LOOK_S = 0.01
_TOKEN_BYTES, _LARGEST_TOKEN_BYTES = 32, 4096


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
    def lane(self) -> Path:
        """Return the socket by which only the folder's owner reaches a running engine."""
        return self.folder / "engine.sock"

    def listen(self, backlog: int) -> socket.socket:
        """Listen on that socket, in the place of an engine that has ended."""
        self.lane.unlink(missing_ok=True)
        found = socket.socket(socket.AF_UNIX)
        with self._short_name() as name:
            found.bind(name)
        self.lane.chmod(_PRIVATE)
        found.listen(backlog)
        return found

    def connect(self, patience_s: float) -> socket.socket:
        """Return a connection to a running engine by that socket; raises `OSError` where there is none."""
        found = socket.socket(socket.AF_UNIX)
        found.settimeout(patience_s)
        deadline = time.monotonic() + patience_s
        try:
            with self._short_name() as name:
                while True:
                    try:
                        found.connect(name)
                    except BlockingIOError:
                        # So many are waiting there that the kernel takes no more: unlike TCP, it says so at once.
                        if time.monotonic() > deadline:
                            raise
                        time.sleep(_LOOK_S)
                    else:
                        return found
        except OSError:
            found.close()
            raise

    @contextlib.contextmanager
    def _short_name(self) -> Iterator[str]:
        """Give the socket's name by way of an open folder: the kernel takes no more than 107 bytes of a path."""
        handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{handle}/{self.lane.name}"
        finally:
            os.close(handle)

    @property
    def log(self) -> Path:
        """Return the engine's own log."""
        return self.folder / "engine.log"

    @property
    def decisions(self) -> Path:
        """Return the folder of the logs of decisions."""
        return self.folder / "decisions"

    @property
    def policy(self) -> Path:
        """Return the policy file, where there is one; a running engine takes up what changes in it."""
        return self.folder / "policy.toml"

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
        return self._read_token(path)

    def known_token(self) -> str | None:
        """Return the secret, where there is one already."""
        path = self.folder / "token"
        return self._read_token(path) if path.exists() else None

    def _read_token(self, path: Path) -> str:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            token = read_text(path, _LARGEST_TOKEN_BYTES, "ascii").strip()
            if token.isalnum():
                return token
        raise FailedError(f"{path} is no token; remove it and start the cluster again")

    def where(self) -> tuple[str, int] | None:
        """Return host and port of the engine that was last started here."""
        known = read_document(self.address)
        try:
            return None if known is None else (str(known["host"]), int(known["port"]))
        except (LookupError, TypeError, ValueError):
            raise FailedError(f"{self.address} does not say where an engine listens; remove it") from None
