"""Speaks to a running engine over HTTP: the command line's only way to it.

Standard library only. A refusal of the engine becomes the same error that a command would have raised by itself.
"""

import contextlib
import http.client
import json
import time
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from weft.core.errors import FailedError, UsageError
from weft.engines.local.atomic_files import read_document
from weft.engines.local.home import Home
from weft.engines.local.processes import Identity

_PATIENCE_S = 60.0
_TRIES, _PAUSE_S = 5, 0.5
_ASKED_WRONGLY = frozenset({400, 404, 409, 413, 415})
_GOOD = 200


class Speaker(Protocol):
    """What commands ask of a cluster, wherever it is."""

    def get(self, *path: str, **query: Any) -> Any:
        """Ask for something."""
        ...

    def post(self, *path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask for a change, once."""
        ...

    def submit(self, submission: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Submit; asked twice with the same key it is submitted once."""
        ...

    def upload(self, packed: bytes) -> str:
        """Upload a working folder and return its name."""
        ...


class LocalClient:
    """A way to the engine of one folder."""

    def __init__(self, home: Home) -> None:
        """Speak to the engine in `home`."""
        self._home = home

    def process(self) -> Identity | None:
        """Return the engine's process, where it runs."""
        known = read_document(self._home.address)
        try:
            found = None if known is None else Identity.from_plain(known["process"])
        except (LookupError, TypeError, ValueError):
            raise FailedError(f"{self._home.address} does not name an engine's process; remove it") from None
        return found if found is not None and found.alive() else None

    def get(self, *path: str, **query: Any) -> Any:
        """Ask for something."""
        return self._call("GET", path, query, None, "")

    def post(self, *path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask for a change, once."""
        return self._call("POST", path, {}, json.dumps(body or {}).encode(), "application/json")

    def submit(self, submission: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Submit; the submission's key makes it safe to ask again when an answer is lost."""
        assert submission.get("key"), "a submission that may be repeated needs a key"
        for left in reversed(range(_TRIES)):
            try:
                return self.post("v1", "jobs", body=submission)["jobs"]
            except UnreachableError:
                if not left:
                    raise
                time.sleep(_PAUSE_S)
        raise AssertionError("the loop above returns or raises")

    def upload(self, packed: bytes) -> str:
        """Upload a working folder and return its name."""
        return self._call("POST", ("v1", "snapshots"), {}, packed, "application/octet-stream")["snapshot"]

    def _call(
        self, method: str, path: tuple[str, ...], query: Mapping[str, Any], body: bytes | None, content_type: str
    ) -> Any:
        where, token = self._home.where(), self._home.known_token()
        if where is None or token is None:
            raise NoClusterError(f"no cluster is up in {self._home.folder}; weft cluster up starts one")
        target = "/" + "/".join(quote(part, safe="") for part in path)
        given = {key: value for key, value in query.items() if value is not None}
        headers = {"Authorization": f"Bearer {token}", **({"Content-Type": content_type} if content_type else {})}
        connection = http.client.HTTPConnection(*where, timeout=_PATIENCE_S)
        try:
            # The owner's own way in, where whoever crowds the port does not come; an older engine may have none.
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                connection.sock = self._home.connect(_PATIENCE_S)
            connection.request(method, target + (f"?{urlencode(given)}" if given else ""), body, headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(
                f"the cluster in {self._home.folder} does not answer ({error}); weft cluster up starts it again"
            ) from None
        finally:
            connection.close()
        return _read(status, text)


class UnreachableError(FailedError):
    """No engine answers."""


class NoClusterError(UnreachableError):
    """None was started here: the user has to, as with any other thing that is named and not there."""

    exit_status = UsageError.exit_status


def _read(status: int, text: bytes) -> Any:
    try:
        document = json.loads(text)
    except ValueError:
        raise FailedError(f"the cluster answered with status {status} and no JSON") from None
    if status == _GOOD:
        return document
    message = str(document.get("error", f"status {status}"))
    raise UsageError(message) if status in _ASKED_WRONGLY else FailedError(f"the cluster refused: {message}")
