"""The programs: the engine with its lease and its metrics, and the installation of our kinds.

Wiring only. Each function runs until it is cancelled or until something ends it that the user has to put right.
"""

import contextlib
import os
import resource
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

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


class EngineMetrics(Collector):
    """What Prometheus reads of an engine, counted when it asks."""

    def __init__(self, engine: KubernetesEngine, client: ApiClient, election: Election) -> None:
        """Look at these."""
        self._engine, self._client, self._election = engine, client, election

    @override
    def collect(self) -> Iterator[Metric]:
        engine, state = self._engine, self._engine.state
        jobs = Counter(str(entry.record.state) for entry in engine.entries.values())
        nodes = Counter(str(node.state) for node in engine.cluster.pool.nodes)
        relists = sum(one.relists for one in engine.cache.reflectors)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        yield GaugeMetricFamily("weft_leading", "Whether this engine leads.", int(self._election.leading))
        yield CounterMetricFamily("weft_passes", "Passes of decisions.", state.passes)
        yield CounterMetricFamily("weft_decisions", "Actions decided.", state.decisions)
        yield CounterMetricFamily("weft_writes", "Writes carried out.", engine.lanes.done)
        yield CounterMetricFamily("weft_writes_failed", "Writes that failed.", engine.lanes.failed)
        requests = CounterMetricFamily("weft_api_requests", "Requests by method.", labels=["method"])
        yield _labelled(requests, self._client.sent)
        yield _labelled(GaugeMetricFamily("weft_jobs", "Jobs by state.", labels=["state"]), jobs)
        yield _labelled(GaugeMetricFamily("weft_nodes", "Nodes by state.", labels=["state"]), nodes)
        yield CounterMetricFamily("weft_relists", "Lists made.", relists)
        yield GaugeMetricFamily("weft_alarms", "Alarms that are on.", len(state.alarms))
        yield GaugeMetricFamily("weft_peak_memory_bytes", "Peak memory.", peak)


def _labelled(family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, int]) -> Metric:
    for label, value in values.items():
        family.add_metric([label], value)
    return family


@contextlib.asynccontextmanager
async def served(where: str, engine: KubernetesEngine, client: ApiClient, election: Election) -> AsyncIterator[None]:
    """Serve metrics and health, and hear reports, while the block runs."""
    if not where:
        yield
        return
    host, _, port = where.rpartition(":")
    if not port.isdigit():
        raise UsageError(f"--metrics {where}: write HOST:PORT, such as 0.0.0.0:9090")

    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineMetrics(engine, client, election))

    async def metrics(request: web.Request) -> web.Response:
        del request
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

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
