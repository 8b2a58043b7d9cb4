"""The decision log on a disk: what every pass of an engine saw and said, in files that `cluster.log.replayed` reads.

One file for each start, and another when one has become long. A shell: what goes into a line is `cluster.log`'s.
"""

from pathlib import Path

_LARGEST_LOG_BYTES = 64 * 2**20
_LOGS_KEPT = 8


class DecisionLog:
    """Files of lines in one folder; the oldest ones go when there are many."""

    def __init__(self, folder: Path) -> None:
        """Write into `folder`."""
        self._folder = folder
        self._path: Path | None = None

    def take(self, lines: str, now_ms: int) -> bool:
        """Write a pass down; returns whether the file has become so long that another is to begin.

        A pass whose lines bring a snapshot begins a file.
        """
        if "\n" not in lines:
            assert self._path is not None, "a log begins with a snapshot"
            with self._path.open("a", encoding="utf-8") as file:
                file.write(lines + "\n")
                return file.tell() > _LARGEST_LOG_BYTES
        self._folder.mkdir(exist_ok=True, parents=True)
        path = self._folder / f"{now_ms:015d}.jsonl"
        try:
            path.write_text(lines + "\n", encoding="utf-8")
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._path = path
        # Only now: a log that could not be begun must not cost an old one.
        for old in sorted(self._folder.glob("*.jsonl"))[:-_LOGS_KEPT]:
            old.unlink(missing_ok=True)
        return False
