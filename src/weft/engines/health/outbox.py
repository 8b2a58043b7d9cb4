"""Documents on their way to somebody's HTTP server: kept on disk until it has taken them, tried again with pauses.

Each document is a file, written before the first try, so that neither a crash here nor an outage there loses one. A
receiver may see one twice (it answered, and the answer was lost): the header Idempotency-Key is the same both times.
"""

import http.client
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from weft.core.errors import UsageError
from weft.engines.health.log_follower import write_atomically

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 300.0
_PATIENCE_S = 10.0
_MOST_FILES = 10_000
_MOST_ANSWER = 2**20
_AGAIN = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
"""Refusals that say nothing about the document."""


@dataclass
class WebhookOutbox:
    """Documents for one address, oldest first."""

    folder: Path
    """Where they wait; those that the receiver does not want are kept in `refused` below it."""
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    """What is sent along: an Authorization, say."""
    patience_s: float = _PATIENCE_S
    """How long an answer is waited for."""
    dropped: int = 0
    """Documents that were given up because too many waited."""
    _pause_s: float = 0.0
    _not_before_s: float = float("-inf")
    _next: int = -1

    def __post_init__(self) -> None:
        """Make the folder."""
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"{self.url}: write an address that begins with http:// or https://")
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def waiting(self) -> list[Path]:
        """Return the documents that wait, oldest first."""
        return sorted(self.folder.glob("*.json"))

    def put(self, document: Mapping[str, Any]) -> None:
        """Write a document down, to be sent by the next `flush`."""
        there = self.waiting
        if self._next < 0:
            refused = sorted((self.folder / "refused").glob("*.json"))
            self._next = 1 + max(
                (int(path.stem) for path in (*there[-1:], *refused[-1:]) if path.stem.isdigit()), default=0
            )
        for path in there[: max(0, len(there) + 1 - _MOST_FILES)]:
            path.unlink(missing_ok=True)
            self.dropped += 1
        write_atomically(self.folder / f"{self._next:012d}.json", json.dumps(document, sort_keys=True))
        self._next += 1

    def flush(self, now_s: float) -> list[Any]:
        """Send what waits until the receiver fails; returns its answers. `now_s` is a clock that never goes back."""
        answers: list[Any] = []
        if now_s < self._not_before_s:
            return answers
        for path in self.waiting:
            try:
                answers.append(self._send(path))
            except urllib.error.HTTPError as error:
                if not 400 <= error.code < 500 or error.code in _AGAIN:  # noqa: PLR2004 - classes of HTTP statuses
                    self._failed(now_s, f"{error.code} {error.reason}")
                    break
                _LOG.error("%s refuses %s: %s %s; it is kept in %s", self.url, path.name, error.code, error.reason,
                           self.folder / "refused")  # fmt: skip
                (self.folder / "refused").mkdir(exist_ok=True)
                path.replace(self.folder / "refused" / path.name)
                continue
            except (OSError, ValueError, http.client.HTTPException) as error:
                self._failed(now_s, str(error))
                break
            path.unlink(missing_ok=True)
            self._pause_s, self._not_before_s = 0.0, float("-inf")
        return answers

    def _failed(self, now_s: float, text: str) -> None:
        self._pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * self._pause_s))
        self._not_before_s = now_s + self._pause_s
        _LOG.warning("%s: %s; tried again in %g s", self.url, text, self._pause_s)

    def _send(self, path: Path) -> Any:
        key = f"{path.stem}-{path.stat().st_mtime_ns:x}"
        headers = {"Content-Type": "application/json", "Idempotency-Key": key, **self.headers}
        request = urllib.request.Request(self.url, path.read_bytes(), headers)  # noqa: S310 - http(s), checked above
        with urllib.request.urlopen(request, timeout=self.patience_s) as answer:  # noqa: S310 - the same
            text = answer.read(_MOST_ANSWER)
        try:
            return json.loads(text)
        except ValueError:
            return None
