"""The programs: the engine with its lease and its metrics, the acted nodes, and the installation of our kinds.

Wiring only. Each function runs until it is cancelled or until something ends it that the user has to put right.
"""

import asyncio
import contextlib
import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from weft.core.errors import UsageError
from weft.engines.kubernetes.access import Access
from weft.engines.kubernetes.acting import Actor, Stage
from weft.engines.kubernetes.client import ApiError, Client, Hook
from weft.engines.kubernetes.election import Election
from weft.engines.kubernetes.engine import Engine
from weft.engines.kubernetes.executing import Processes
from weft.engines.kubernetes.objects import definitions
from weft.engines.kubernetes.reporting import read
from weft.engines.kubernetes.resources import DEFINITIONS, OURS
from weft.engines.kubernetes.settings import Settings, system_ms

NAMESPACE = "weft-system"


@dataclass(frozen=True)
class Leading:
    """How the engine is elected and looked at."""

    namespace: str = NAMESPACE
    """Where the lease is."""
    identity: str = "weft"
    """Who we are."""
    lease_s: float = 15.0
    """How long the lease lasts without renewal."""
    metrics: str = ""
    """HOST:PORT at which metrics and health are served; empty for nowhere."""


def explained(error: ApiError) -> Exception:
    """Return what a refusal means for the user, where it means that something has to be put right first."""
    unknown = ("page not found", "could not find the requested resource", *(one.plural for one in OURS))
    if error.missing and any(words in error.message for words in unknown):
        return UsageError("the cluster does not know weft's kinds; an administrator runs: weft cluster install")
    if error.forbidden:
        return UsageError(f"a permission is missing: {error.message}")
    if error.status == 401:  # noqa: PLR2004 - HTTP
        return UsageError("the API server does not accept the credentials of this context")
    return error


@contextlib.asynccontextmanager
async def explaining() -> Any:
    """Turn refusals into sentences for the user."""
    try:
        yield
    except ApiError as error:
        raise explained(error) from None


async def control(
    access: Access, settings: Settings, leading: Leading, *, after: Hook | None = None,
    on_engine: Callable[[Engine], None] | None = None,
) -> None:  # fmt: skip
    """Be the engine: wait for the lease, then run until it is lost; `after` and `on_engine` are for tests."""
    async with explaining(), Client(access, agent="weft-lease", limit=4) as lease_client:
        election = Election(lease_client, leading.namespace, leading.identity, duration_s=leading.lease_s)
        agent = "weft-engine"
        async with Client(access, agent=agent, limit=settings.width, before=election.guard, after=after) as client:
            engine = Engine(client, settings)
            async with served(leading.metrics, engine, client, election):
                await election.wait()
                if on_engine is not None:
                    on_engine(engine)
                tasks = [asyncio.create_task(engine.run()), asyncio.create_task(election.keep())]
                try:
                    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                    if election.leading:
                        await election.give_up()


def metrics_of(engine: Engine, client: Client, election: Election) -> str:
    """Return what Prometheus reads."""
    states: dict[str, int] = {}
    for entry in engine.entries.values():
        states[str(entry.record.state)] = states.get(str(entry.record.state), 0) + 1
    nodes: dict[str, int] = {}
    for node in engine.book.pool.nodes:
        nodes[str(node.state)] = nodes.get(str(node.state), 0) + 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    lines = [
        *_metric("weft_leading", "Whether this engine leads.", {"": int(election.leading)}),
        *_metric("weft_passes_total", "Passes of decisions.", {"": engine.passes}),
        *_metric("weft_decisions_total", "Actions decided.", {"": engine.decisions}),
        *_metric("weft_writes_total", "Writes carried out.", {"": engine.lanes.done}),
        *_metric("weft_writes_failed_total", "Writes that failed.", {"": engine.lanes.failed}),
        *_metric("weft_api_requests_total", "Requests by method.", client.sent, "method"),
        *_metric("weft_jobs", "Jobs by state.", states, "state"),
        *_metric("weft_nodes", "Nodes by state.", nodes, "state"),
        *_metric("weft_relists_total", "Lists made.", {"": sum(one.relists for one in engine.world.reflectors)}),
        *_metric("weft_alarms", "Alarms that are on.", {"": len(engine.alarms)}),
        *_metric("weft_peak_memory_bytes", "Most memory held so far.", {"": peak}),
    ]
    return "\n".join(lines) + "\n"


def _metric(name: str, help_line: str, values: Mapping[str, int], label: str = "") -> list[str]:
    kind = "counter" if name.endswith("_total") else "gauge"
    rows = [f'{name}{{{label}="{key}"}} {value}' if label else f"{name} {value}" for key, value in values.items()]
    return [f"# HELP {name} {help_line}", f"# TYPE {name} {kind}", *rows]


@contextlib.asynccontextmanager
async def served(where: str, engine: Engine, client: Client, election: Election) -> Any:
    """Serve metrics and health, and hear reports, while the block runs."""
    if not where:
        yield
        return
    host, _, port = where.rpartition(":")
    if not port.isdigit():
        raise UsageError(f"--metrics {where}: write HOST:PORT, such as 0.0.0.0:9090")

    async def metrics(request: web.Request) -> web.Response:
        del request
        return web.Response(text=metrics_of(engine, client, election))

    async def alive(request: web.Request) -> web.Response:
        del request
        return web.Response(text="alive\n")

    async def report(request: web.Request) -> web.Response:
        if not election.leading:
            return web.Response(status=503, text="this engine does not lead\n")
        try:
            known = engine.hear(read(await request.json(), system_ms()))
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        return web.Response(status=200 if known else 404, text="heard\n" if known else "no such job\n")

    app = web.Application(client_max_size=2**16)
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", alive), web.post("/v1/report", report)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host or "127.0.0.1", int(port)).start()
        yield
    except OSError as error:
        raise UsageError(f"--metrics {where}: {os.strerror(error.errno or 0)}") from None
    finally:
        await runner.cleanup()


async def install(access: Access) -> list[str]:
    """Make our kinds known to a server and wait until it serves them; returns their names."""
    async with explaining(), Client(access) as client:
        names: list[str] = []
        for one in definitions():
            await client.apply(DEFINITIONS, one)
            names.append(one["metadata"]["name"])
        for name in names:
            await _established(client, name)
        return names


async def _established(client: Client, name: str) -> None:
    for _ in range(300):
        there = await client.get(DEFINITIONS, name)
        kinds = {one["type"]: one["status"] for one in (there.get("status") or {}).get("conditions") or ()}
        if kinds.get("Established") == "True":
            return
        await asyncio.sleep(0.1)
    raise UsageError(f"the server does not serve {name} after 30 s; look at its conditions")


async def play(
    access: Access, stage: Stage, ready: Callable[[], None], folder: Path | None, silence: tuple[float, float]
) -> None:
    """Register the nodes of a stage and play them until cancelled; `silence` is a share of them, and after how long."""
    share, after_s = silence
    async with explaining(), Client(access, agent="weft-actor") as client:
        actor = Actor(client, stage)
        if folder is not None:
            actor.run_in(Processes(folder, client))

        async def register() -> None:
            await actor.register()
            ready()
            await asyncio.sleep(after_s)
            actor.silence(sorted(actor.names)[: int(share * stage.nodes)])

        await asyncio.gather(actor.run(), register())


def stage_fits(stage: Stage) -> Stage:
    """Refuse a stage that can not be played."""
    most = 60_000
    if not 1 <= stage.nodes <= most:
        raise UsageError(f"--nodes {stage.nodes}: write a number from 1 to {most:,}")
    return stage
