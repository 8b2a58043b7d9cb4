"""The programs: the engine with its lease and its metrics, and the installation of our kinds.

Wiring only. Each function runs until it is cancelled or until something ends it that the user has to put right.
"""

import asyncio
import resource
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from weft.engines.health.outbox import WebhookOutbox
from weft.engines.kubernetes.api.access import Access
from weft.engines.kubernetes.api.api_client import ApiClient, Hook, explaining
from weft.engines.kubernetes.controller.agent_reports import AgentIdentities
from weft.engines.kubernetes.controller.control_loop import KubernetesEngine, first_of
from weft.engines.kubernetes.controller.election import Election
from weft.engines.kubernetes.controller.http_service import HttpService, served
from weft.engines.kubernetes.controller.settings import Settings

NAMESPACE = "weft-system"
_DELIVERY_S = 1.0


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
    tickets: str = ""
    """URL that repair tickets are posted to; empty for the log alone."""
    ticket_folder: Path = Path("/var/lib/weft-engine/tickets")
    """Where tickets wait until that has taken them."""
    ticket_token: str = ""
    """What is sent along as a bearer token."""
    advertise: str = ""
    """URL at which other replicas reach that; written into the lease."""


async def control(
    access: Access, settings: Settings, leading: Leading, *, after: Hook | None = None,
    on_engine: Callable[[KubernetesEngine], None] | None = None,
) -> None:  # fmt: skip
    """Be the engine: wait for the lease, then run until it is lost; `after` and `on_engine` are for tests."""
    async with explaining(), ApiClient(access, agent="weft-lease", limit=4) as lease_client:
        election = Election(
            lease_client, leading.namespace, leading.identity, duration_s=leading.lease_s, address=leading.advertise
        )
        agent = "weft-engine"
        async with ApiClient(access, agent=agent, limit=settings.width, before=election.guard, after=after) as client:
            engine = KubernetesEngine(client, settings)
            registry = CollectorRegistry(auto_describe=False)
            registry.register(EngineMetrics(engine, client, election))
            # A client of its own: a review is asked for whoever leads, and is no write to the cluster.
            identities = AgentIdentities(lease_client, leading.namespace)
            service = HttpService(engine, election, registry, identities)
            async with served(leading.metrics, service):
                await election.wait()
                if on_engine is not None:
                    on_engine(engine)
                works = [engine.run(), election.keep()]
                if leading.tickets:
                    proof = {"Authorization": f"Bearer {leading.ticket_token}"} if leading.ticket_token else {}
                    engine.writer.tickets = WebhookOutbox(leading.ticket_folder, leading.tickets, proof)
                    works.append(_delivered(engine.writer.tickets))
                try:
                    await first_of(works)
                finally:
                    if election.leading:
                        await election.give_up()


async def _delivered(outbox: WebhookOutbox) -> None:
    """Send what waits, again and again, beside the loop."""
    while True:
        await asyncio.to_thread(outbox.flush, asyncio.get_running_loop().time())
        await asyncio.sleep(_DELIVERY_S)


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
        measures = state.measures
        waits = HistogramMetricFamily("weft_wait_seconds", "From being queued to being placed.", labels=["nodes"])
        for size, counted in measures.waits.items():
            waits.add_metric([size], counted.buckets(), counted.total)
        yield waits
        passes = HistogramMetricFamily("weft_pass_seconds", "Duration of a pass of decisions.")
        passes.add_metric([], measures.passes.buckets(), measures.passes.total)
        yield passes
        yield CounterMetricFamily("weft_pods_bound", "Pods made on their nodes.", engine.writer.made)
        health = CounterMetricFamily("weft_health_actions", "Health actions by kind.", labels=["action"])
        yield _labelled(health, measures.health)
        reports = CounterMetricFamily("weft_health_reports", "Findings of agents.", labels=["severity"])
        yield _labelled(reports, measures.reports)
        waiting = len(engine.writer.tickets.waiting) if engine.writer.tickets is not None else 0
        yield GaugeMetricFamily("weft_tickets_waiting", "Tickets that the webhook has not taken yet.", waiting)
        yield GaugeMetricFamily("weft_peak_memory_bytes", "Peak memory.", peak)


def _labelled(family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, int]) -> Metric:
    for label, value in values.items():
        family.add_metric([label], value)
    return family
