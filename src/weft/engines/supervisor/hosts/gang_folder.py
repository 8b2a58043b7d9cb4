"""What the agents of a run share on disk: its key, who coordinates in which epoch, and what the last one knew.

An epoch is claimed by making its file, which succeeds once; so no two coordinators ever have the same one. Whoever has
claimed says in the file where it is reached. Epochs have no gaps, so the highest is found without listing a folder.
"""

import contextlib
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from weft.core.errors import FailedError

_KEY = "key"
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """Where a coordinator is reached."""

    host: str
    port: int
    place: int
    """On which host it runs."""
    pid: int
    """Its process there."""


class GangFolder:
    """The shared folder of one run's agents."""

    def __init__(self, root: Path) -> None:
        """Use the folder below `root`."""
        self._folder = root / ".coordination"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise FailedError(f"{self._folder} cannot be made: {error.strerror}") from None
        self._highest = 0

    def key(self) -> bytes:
        """Return the key of this run; the first to ask makes it."""
        path = self._folder / _KEY
        part = self._folder / f".{_KEY}-{secrets.token_hex(8)}"
        if not path.exists():
            part.touch(mode=0o600)
            part.write_text(secrets.token_hex(_KEY_BYTES), encoding="ascii")
            # A link appears complete or not at all, and only once.
            with contextlib.suppress(FileExistsError):
                os.link(part, path)
            part.unlink()
        return bytes.fromhex(path.read_text(encoding="ascii"))

    def highest(self) -> int:
        """Return the highest epoch that anybody has claimed; 0 for none."""
        while self._epoch(self._highest + 1).exists():
            self._highest += 1
        return self._highest

    def claim(self, epoch: int) -> bool:
        """Become the coordinator of `epoch`; returns whether nobody else has."""
        try:
            os.close(os.open(self._epoch(epoch), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        return True

    def announce(self, epoch: int, where: CoordinatorAddress) -> None:
        """Say where the coordinator of `epoch` is reached."""
        self._write(self._epoch(epoch), json.dumps(asdict(where)).encode())

    def address(self, epoch: int) -> CoordinatorAddress | None:
        """Return where the coordinator of `epoch` is reached, where it has said so."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            return CoordinatorAddress(**json.loads(self._epoch(epoch).read_text(encoding="utf-8")))
        return None

    def save(self, epoch: int, state: bytes) -> None:
        """Keep what the coordinator of `epoch` knows; one that cannot goes on."""
        with contextlib.suppress(OSError):
            self._write(self._folder / f"state-{epoch}", state)
            (self._folder / f"state-{epoch - 1}").unlink(missing_ok=True)

    def saved(self) -> bytes | None:
        """Return what the last coordinator that has kept anything knew."""
        for epoch in range(self.highest(), 0, -1):
            with contextlib.suppress(OSError):
                return (self._folder / f"state-{epoch}").read_bytes()
        return None

    def _epoch(self, number: int) -> Path:
        return self._folder / f"epoch-{number}"

    def _write(self, path: Path, content: bytes) -> None:
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(content)
        part.replace(path)
