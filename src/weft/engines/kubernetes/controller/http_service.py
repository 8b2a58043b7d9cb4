"""What the controller serves over HTTP: metrics, its health, reports of pods and agents, answers to `why` and `nodes`.

Every replica listens; only the one that leads knows. The others pass a request on to it, so that a Service may send
requests to any of them. Nothing here decides.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from weft.core.errors import UsageError, WeftError
from weft.engines.kubernetes.controller.agent_reports import AgentIdentities, read_agent_report
from weft.engines.kubernetes.controller.control_loop import KubernetesEngine
from weft.engines.kubernetes.controller.election import Election
from weft.engines.kubernetes.controller.observed import read_report
from weft.engines.kubernetes.controller.settings import system_ms

_PASSED_ON = "X-Weft-Forwarded"
_PATIENCE_S = 5.0
_MOST_BODY = 2**16
Handler = Callable[[web.Request], Awaitable[web.Response]]


@dataclass
class HttpService:
    """The handlers of one replica."""

    engine: KubernetesEngine
    election: Election
    registry: CollectorRegistry
    identities: AgentIdentities | None = None
    """Who may speak for which node; none where everybody is believed, in tests."""

    def application(self) -> web.Application:
        """Return the web application."""
        app = web.Application(client_max_size=_MOST_BODY)
        app.add_routes([
            web.get("/metrics", self._metrics), web.get("/healthz", self._alive),
            web.post("/v1/report", self._led(self._report)), web.post("/v1/health", self._led(self._health)),
        ])  # fmt: skip
        return app

    async def _metrics(self, request: web.Request) -> web.Response:
        del request
        return web.Response(body=generate_latest(self.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _alive(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text="alive\n")

    def _led(self, handler: Handler) -> Handler:
        """Answer by `handler` where this replica leads; pass the request on to the leader otherwise."""

        async def answer(request: web.Request) -> web.Response:
            if self.election.leading:
                return await handler(request)
            leader = self.election.leader_address
            if not leader or request.headers.get(_PASSED_ON):
                # Nobody leads at the moment, or the one who was said to does not: whoever asks tries again.
                return web.Response(status=503, text="no engine leads at the moment\n", headers={"Retry-After": "2"})
            return await _passed_on(request, leader)

        return answer

    async def _report(self, request: web.Request) -> web.Response:
        try:
            known = self.engine.hear(read_report(await request.json(), system_ms()))
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        return web.Response(status=200 if known else 404, text="heard\n" if known else "no such job\n")

    async def _health(self, request: web.Request) -> web.Response:
        try:
            report = read_agent_report(await request.json(), system_ms())
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        if self.identities is not None:
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            try:
                node = await self.identities.node_of(token, asyncio.get_running_loop().time())
            except WeftError as error:
                return web.Response(status=503, text=f"the token could not be reviewed: {error}\n")
            if node != report.node:
                return web.Response(status=403, text=f"this token does not speak for node {report.node}\n")
        if not self.engine.hear_agent(report):
            return web.Response(status=404, text=f"node {report.node} is not of this pool\n")
        orders = self.engine.orders(report.node)
        return web.json_response({"orders": orders, "out": bool(orders) or self.engine.is_out(report.node)})


async def _passed_on(request: web.Request, leader: str) -> web.Response:
    kept = ("Content-Type", "Authorization", "Idempotency-Key", "Accept")
    headers = {name: request.headers[name] for name in kept if name in request.headers} | {_PASSED_ON: "1"}
    limit = aiohttp.ClientTimeout(total=_PATIENCE_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.request(
                request.method, f"{leader}{request.path_qs}", data=await request.read(), headers=headers
            ) as answer,
        ):
            body = await answer.read()
            return web.Response(status=answer.status, body=body, content_type=answer.content_type)
    except (aiohttp.ClientError, TimeoutError) as error:
        return web.Response(status=503, text=f"the engine that leads does not answer: {error}\n")


@contextlib.asynccontextmanager
async def served(where: str, service: HttpService) -> AsyncIterator[None]:
    """Serve at HOST:PORT while the block runs; nothing is served where it is empty."""
    if not where:
        yield
        return
    host, _, port = where.rpartition(":")
    if not port.isdigit():
        raise UsageError(f"--metrics {where}: write HOST:PORT, such as 0.0.0.0:9090")
    runner = web.AppRunner(service.application(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host or "127.0.0.1", int(port)).start()
        yield
    except OSError as error:
        raise UsageError(f"--metrics {where}: {os.strerror(error.errno or 0)}") from None
    finally:
        await runner.cleanup()
