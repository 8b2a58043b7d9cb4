"""One list and one watch for each kind, for the whole program: a cache that stays true whatever the server does.

A `Reflector` lists in pages, watches with bookmarks from there, and keeps of every object only what its reader wants.
It lists again when the server has forgotten the version (410) and when a watch ends before its time silently
(seen on real servers); it takes up the watch where it stood when nothing, not even a bookmark, was heard for too long.
A list older than what was seen already comes from a server that lags; it is not believed.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import aiohttp
import orjson

from weft.core.errors import WeftError
from weft.engines.kubernetes.api.api_client import ApiClient, ApiError
from weft.engines.kubernetes.api.resources import Resource

_LOG = logging.getLogger(__name__)
_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 10.0
_EARLY_S = 5.0

T = TypeVar("T")
Change = Callable[[T | None, T | None], None]


@dataclass(frozen=True)
class WatchScope:
    """Which objects of a kind are watched, and how long a watch lasts."""

    namespace: str | None = None
    """Those of one namespace; none for all."""
    labels: str = ""
    """A label selector; empty for all."""
    silence_s: float = 90.0
    """A watch that says nothing for this long is opened again."""
    watch_s: int = 290
    """How long a watch lasts when nothing happens to it."""


_EVERYTHING = WatchScope()


class Relist(Exception):  # noqa: N818 - not an error: it says what to do next
    """The cache cannot go on from where it stands."""


class Reflector(Generic[T]):
    """Keeps `items` equal to what the server holds, and calls `changed(old, new)` for every difference."""

    def __init__(
        self, client: ApiClient, resource: Resource, keep: Callable[[Mapping[str, Any]], T], changed: Change[T],
        scope: WatchScope = _EVERYTHING,
    ) -> None:  # fmt: skip
        """Watch `resource`, keeping `keep(object)` of each."""
        self.items: dict[str, T] = {}
        self.synced = asyncio.Event()
        self.relists = 0
        self._client, self._resource = client, resource
        self._keep, self._changed = keep, changed
        self._scope = scope
        self._version = ""

    async def run(self) -> None:
        """Keep the cache true until cancelled; only a missing kind or permission ends it."""
        wait_s = _FIRST_WAIT_S
        while True:
            started = _now_s()
            try:
                await self._list()
                await self._watch_on()
            except Relist as why:
                _LOG.info("listing %s again: %s", self._resource.plural, why)
            except ApiError as error:
                if error.missing or error.forbidden or error.status == 401:  # noqa: PLR2004 - HTTP
                    raise
                _LOG.warning("%s: %s", self._resource.plural, error)
            except (WeftError, aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                _LOG.warning("%s: %s", self._resource.plural, error)
            # Quick after a long good time, slower and slower where it fails at once.
            wait_s = _FIRST_WAIT_S if _now_s() - started > _EARLY_S else min(_LONGEST_WAIT_S, wait_s * 2)
            await asyncio.sleep(wait_s * (1 + random.random()))  # noqa: S311 - relists must not come together

    async def fill(self) -> None:
        """Fill the cache once, for whoever looks once: nothing is watched."""
        await self._list()

    async def _list(self) -> None:
        found: dict[str, T] = {}
        version = ""
        pages = self._client.pages(self._resource, self._scope.namespace, labels=self._scope.labels)
        async with contextlib.aclosing(pages):
            async for page, at in pages:
                version = at
                for item in page:
                    found[_key(item)] = self._keep(item)
        if self._version and _older(version, self._version):
            raise Relist(f"the server is behind: version {version} after {self._version}")
        self._version = version
        self.relists += 1
        gone = [key for key in self.items if key not in found]
        for key in gone:
            self._changed(self.items.pop(key), None)
        for key, new in found.items():
            old = self.items.get(key)
            self.items[key] = new
            if old != new:
                self._changed(old, new)
        self.synced.set()

    async def _watch_on(self) -> None:
        """Watch again and again from where the last watch stood."""
        while True:
            asked_s = self._scope.watch_s + random.randrange(10)  # noqa: S311 - ends of watches are spread
            started = _now_s()
            with contextlib.suppress(TimeoutError):
                await self._watch(asked_s)
                if _now_s() - started < asked_s - _EARLY_S:
                    raise Relist("the watch was closed before its time")

    async def _watch(self, asked_s: int) -> None:
        query = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": self._version,
                 "timeoutSeconds": str(asked_s)}  # fmt: skip
        if self._scope.labels:
            query["labelSelector"] = self._scope.labels
        path = self._resource.path(self._scope.namespace)
        try:
            async with self._client.stream(path, query, self._scope.silence_s) as lines:
                async for line in lines:
                    self._take(orjson.loads(line))
        except ApiError as error:
            if error.gone:
                raise Relist("the version is too old") from None
            raise
        except orjson.JSONDecodeError:
            raise Relist("the watch was cut in the middle of an event") from None

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            raise Relist(item.get("message") or "the watch failed")
        self._version = item["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return
        key = _key(item)
        old = self.items.get(key)
        if kind == "DELETED":
            self.items.pop(key, None)
            if old is not None:
                self._changed(old, None)
            return
        # What its reader does not compare (a version, say) is kept up to date without being news.
        new = self.items[key] = self._keep(item)
        if new != old:
            self._changed(old, new)


def _key(item: Mapping[str, Any]) -> str:
    meta = item["metadata"]
    namespace = meta.get("namespace")
    return f"{namespace}/{meta['name']}" if namespace else meta["name"]


def _older(version: str, than: str) -> bool:
    """Compare versions of one resource, which grow with time on every server that keeps them in etcd."""
    return version.isdigit() and than.isdigit() and int(version) < int(than)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
