"""A proxy between the engine and the API server that answers badly on purpose, by a seed.

It refuses (429 with Retry-After, 500), loses answers after the server has done what was asked, closes watches early or
lets them fall silent, is slow, and gives old lists. What it does is decided by a seeded stream and counted.
"""

import asyncio
import random
from collections import Counter
from typing import Any

import aiohttp
from aiohttp import web

from weft.engines.kubernetes.api.access import Access
from weft.engines.kubernetes.api.connector import Connector

_STALE_MOST = 400_000
_SURELY_AT = 4


class Proxy:
    """Passes requests on, or not."""

    def __init__(self, access: Access, seed: int, share: float = 0.15) -> None:
        """Spoil about `share` of the requests."""
        self._access = access
        self._chance = random.Random(seed)
        self._share = share
        self._old: dict[str, bytes] = {}
        self.done: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()
        self.calm = False

    async def start(self) -> str:
        """Listen and return the address."""
        self._session = aiohttp.ClientSession(
            connector=Connector(limit=200, ssl=self._access.tls or True), auto_decompress=True
        )
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        (address,) = self._runner.addresses
        return f"http://127.0.0.1:{address[1]}"

    async def stop(self) -> None:
        """End."""
        await self._runner.cleanup()
        await self._session.close()

    def _spoils(self, what: str, share: float = 1.0) -> bool:
        # How many requests there are depends on the machine: what was not drawn by then happens at the fourth chance.
        self._asked[what] += 1
        due = self._asked[what] == _SURELY_AT and not self.done[what]
        hit = not self.calm and (self._chance.random() < self._share * share or due)
        self.done[what] += hit
        return hit

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        if self._spoils("429", 0.4):
            return _status(429, {"Retry-After": "1"})
        if self._spoils("500", 0.5):
            return _status(500, {})
        if self._spoils("slow", 0.5):
            await asyncio.sleep(0.5)
        if request.method == "GET" and self._spoils("stale list", 0.5) and request.path_qs in self._old:
            return web.Response(body=self._old[request.path_qs], content_type="application/json")
        async with self._send(request, await request.read()) as answer:
            body = await answer.read()
            if request.method == "GET" and len(body) < _STALE_MOST:
                self._old.setdefault(request.path_qs, body)
            if self._spoils("lost answer", 0.5):
                # The server has done it, and nobody will know.
                return _status(500, {})
            headers = {"Retry-After": answer.headers["Retry-After"]} if "Retry-After" in answer.headers else {}
            return web.Response(body=body, status=answer.status, content_type="application/json", headers=headers)

    def _send(self, request: web.Request, body: bytes) -> Any:
        kept = {name: value for name, value in request.headers.items() if name in ("Authorization", "Content-Type")}
        timeout = aiohttp.ClientTimeout(total=None)
        url = self._access.server + request.path
        return self._session.request(
            request.method, url, params=request.query, data=body or None, headers=kept, timeout=timeout
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        close = self._chance.randrange(1, 40) if self._spoils("closed watch", 3.0) else None
        silent = self._chance.randrange(1, 40) if self._spoils("silent watch", 2.0) else None
        if self._spoils("410", 1.0):
            return _status(410, {})
        async with self._send(request, b"") as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
            await response.prepare(request)
            lines = 0
            async for line in answer.content:
                lines += 1
                if lines == close:
                    break
                if lines == silent:
                    await asyncio.sleep(3600)
                await response.write(line)
            return response


def _status(status: int, headers: dict[str, str]) -> web.Response:
    document = {"kind": "Status", "status": "Failure", "message": "the proxy says so", "code": status}
    return web.json_response(document, status=status, headers=headers)
