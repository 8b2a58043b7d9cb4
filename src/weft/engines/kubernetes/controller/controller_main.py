"""The programs: the engine with its lease and its metrics, and the installation of our kinds.

Wiring only. Each function runs until it is cancelled or until something ends it that the user has to put right.
"""

import contextlib
import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from weft.core.errors import UsageError
from weft.engines.kubernetes.api.access import Access
from weft.engines.kubernetes.api.api_client import ApiClient, Hook, explaining
from weft.engines.kubernetes.controller.control_loop import KubernetesEngine, first_of
from weft.engines.kubernetes.controller.election import Election
from weft.engines.kubernetes.controller.observed import read_report
from weft.engines.kubernetes.controller.settings import Settings, system_ms

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


async def control(
    access: Access, settings: Settings, leading: Leading, *, after: Hook | None = None,
    on_engine: Callable[[KubernetesEngine], None] | None = None,
) -> None:  # fmt: skip
    """Be the engine: wait for the lease, then run until it is lost; `after` and `on_engine` are for tests."""
    async with explaining(), ApiClient(access, agent="weft-lease", limit=4) as lease_client:
        election = Election(lease_client, leading.namespace, leading.identity, duration_s=leading.lease_s)
        agent = "weft-engine"
        async with ApiClient(access, agent=agent, limit=settings.width, before=election.guard, after=after) as client:
            engine = KubernetesEngine(client, settings)
            async with served(leading.metrics, engine, client, election):
                await election.wait()
                if on_engine is not None:
                    on_engine(engine)
                try:
                    await first_of([engine.run(), election.keep()])
                finally:
                    if election.leading:
                        await election.give_up()


def metrics_of(engine: KubernetesEngine, client: ApiClient, election: Election) -> str:
    """Return what Prometheus reads."""
    states: dict[str, int] = {}
    for entry in engine.entries.values():
        states[str(entry.record.state)] = states.get(str(entry.record.state), 0) + 1
    nodes: dict[str, int] = {}
    for node in engine.cluster.pool.nodes:
        nodes[str(node.state)] = nodes.get(str(node.state), 0) + 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    lines = [
        *_metric("weft_leading", "Whether this engine leads.", {"": int(election.leading)}),
        *_metric("weft_passes_total", "Passes of decisions.", {"": engine.state.passes}),
        *_metric("weft_decisions_total", "Actions decided.", {"": engine.state.decisions}),
        *_metric("weft_writes_total", "Writes carried out.", {"": engine.lanes.done}),
        *_metric("weft_writes_failed_total", "Writes that failed.", {"": engine.lanes.failed}),
        *_metric("weft_api_requests_total", "Requests by method.", client.sent, "method"),
        *_metric("weft_jobs", "Jobs by state.", states, "state"),
        *_metric("weft_nodes", "Nodes by state.", nodes, "state"),
        *_metric("weft_relists_total", "Lists made.", {"": sum(one.relists for one in engine.cache.reflectors)}),
        *_metric("weft_alarms", "Alarms that are on.", {"": len(engine.state.alarms)}),
        *_metric("weft_peak_memory_bytes", "Most memory held so far.", {"": peak}),
    ]
    return "\n".join(lines) + "\n"


def _metric(name: str, help_line: str, values: Mapping[str, int], label: str = "") -> list[str]:
    kind = "counter" if name.endswith("_total") else "gauge"
    rows = [f'{name}{{{label}="{key}"}} {value}' if label else f"{name} {value}" for key, value in values.items()]
    return [f"# HELP {name} {help_line}", f"# TYPE {name} {kind}", *rows]


@contextlib.asynccontextmanager
async def served(where: str, engine: KubernetesEngine, client: ApiClient, election: Election) -> Any:
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
            known = engine.hear(read_report(await request.json(), system_ms()))
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
