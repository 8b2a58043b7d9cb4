"""What the engine sees: one cache for each kind, kept true by a `Reflector`, and what has changed since it last looked.

Pods are kept by job, because that is how they are asked for. Nothing here decides or writes.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.engines.kubernetes.api.api_client import ApiClient
from weft.engines.kubernetes.api.reflector import Reflector, WatchScope
from weft.engines.kubernetes.api.resources import HEALTH, JOB_LABEL, JOBS, NODES, PODS, POOL_LABEL, TEAMS, TOPOLOGIES
from weft.engines.kubernetes.controller.controller_state import Observation
from weft.engines.kubernetes.controller.observed import (
    ObservedHealth,
    ObservedJob,
    ObservedNode,
    ObservedPod,
    ObservedTeam,
    PodReport,
    observe_health,
    observe_job,
    observe_node,
    observe_pod,
    observe_team,
)
from weft.engines.kubernetes.controller.workload_cache import WorkloadCache

_AboutNode = ObservedNode | ObservedHealth


class ClusterCache:
    """The caches, and the names of what has changed."""

    def __init__(self, client: ApiClient, pool: str, namespace: str | None = None, silence_s: float = 90.0) -> None:
        """Look at the nodes of `pool` and at the jobs of `namespace`, or of all namespaces."""
        self.pods_of: dict[str, dict[str, ObservedPod]] = {}
        self.pods_on: dict[str, dict[str, ObservedPod]] = {}
        """The pods of each node, by uid."""
        self.owners_of: dict[str, Counter[str]] = {}
        """How many pods of each job's name belong to which job, by uid."""
        self.changed_jobs: set[str] = set()
        self.changed_nodes: set[str] = set()
        self.changed_teams: set[str] = set()
        self.wake = asyncio.Event()
        self.events = 0
        everywhere = WatchScope(silence_s=silence_s)
        ours = replace(everywhere, namespace=namespace)
        self.jobs: Reflector[ObservedJob] = Reflector(client, JOBS, observe_job, self._job_changed, ours)
        self.pods: Reflector[ObservedPod] = Reflector(
            client, PODS, observe_pod, self._pod_changed, replace(ours, labels=JOB_LABEL)
        )
        self.nodes: Reflector[ObservedNode] = Reflector(
            client, NODES, observe_node, self._node_changed, replace(everywhere, labels=f"{POOL_LABEL}={pool}")
        )
        self.teams: Reflector[ObservedTeam] = Reflector(client, TEAMS, observe_team, self._team_changed, everywhere)
        self.health: Reflector[ObservedHealth] = Reflector(
            client, HEALTH, observe_health, self._node_changed, everywhere
        )
        self.workloads = WorkloadCache(client, ours, lambda job_id: self._note(self.changed_jobs, job_id))
        self.topologies: Reflector[Mapping[str, Any]] = Reflector(
            client, TOPOLOGIES, lambda item: item.get("spec") or {}, self._topology_changed, everywhere
        )

    @property
    def reflectors(self) -> tuple[Reflector[Any], ...]:
        """Return every cache."""
        return (self.jobs, self.pods, self.nodes, self.teams, self.health, self.topologies)

    async def synced(self) -> None:
        """Wait until every cache has been filled once."""
        for one in self.reflectors:
            await one.synced.wait()

    def observation(self, touched: set[str], reports: tuple[PodReport, ...] = ()) -> Observation:
        """Return what a pass sees; `touched` are jobs to look at beside those that have changed."""
        jobs, nodes, teams = self.changed_jobs | touched, self.changed_nodes, self.changed_teams
        self.changed_jobs, self.changed_nodes, self.changed_teams = set(), set(), set()
        return Observation(
            self.jobs.items, self.nodes.items, self.teams.items, self.health.items, self.topologies.items,
            self.pods_of, self.pods_on, self.owners_of, jobs, nodes, teams, reports, self.workloads.view,
        )  # fmt: skip

    def _note(self, names: set[str], name: str) -> None:
        names.add(name)
        self.events += 1
        self.wake.set()

    def _job_changed(self, old: ObservedJob | None, new: ObservedJob | None) -> None:
        some = new or old
        assert some is not None
        self._note(self.changed_jobs, some.id)

    def _pod_changed(self, old: ObservedPod | None, new: ObservedPod | None) -> None:
        some = new or old
        assert some is not None
        job_id = f"{some.namespace}/{some.job}"
        pods = self.pods_of.setdefault(job_id, {})
        if new is None:
            pods.pop(some.name, None)
            if not pods:
                del self.pods_of[job_id]
        else:
            pods[new.name] = new
        self._move(old, new)
        self._note(self.changed_jobs, job_id)

    def _move(self, old: ObservedPod | None, new: ObservedPod | None) -> None:
        """Keep the pods of each node, and their owners, true."""
        if old is None or new is None or old.owner != new.owner:
            for pod, sign in ((old, -1), (new, 1)):
                if pod is not None:
                    job_id = f"{pod.namespace}/{pod.job}"
                    owners = self.owners_of.setdefault(job_id, Counter())
                    owners[pod.owner] += sign
                    if not owners[pod.owner]:
                        del owners[pod.owner]
                    if not owners:
                        del self.owners_of[job_id]
        if old is not None and old.node and (new is None or (new.node, new.uid) != (old.node, old.uid)):
            there = self.pods_on[old.node]
            there.pop(old.uid, None)
            if not there:
                del self.pods_on[old.node]
        if new is not None and new.node:
            self.pods_on.setdefault(new.node, {})[new.uid] = new

    def _node_changed(self, old: _AboutNode | None, new: _AboutNode | None) -> None:
        some = new or old
        assert some is not None
        self._note(self.changed_nodes, some.name)

    def _team_changed(self, old: ObservedTeam | None, new: ObservedTeam | None) -> None:
        some = new or old
        assert some is not None
        # What we write into a team's status is no news.
        if old is None or new is None or old.body != new.body:
            self._note(self.changed_teams, some.name)

    def _topology_changed(self, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
        del old, new
        for name in self.nodes.items:
            self.changed_nodes.add(name)
        self.wake.set()
