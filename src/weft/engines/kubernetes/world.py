"""What the engine sees: one cache for each kind, kept true by `watching`, and what has changed since it last looked.

Pods are kept by job, because that is how they are asked for. Nothing here decides or writes.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.engines.kubernetes.client import Client
from weft.engines.kubernetes.objects import HealthBody
from weft.engines.kubernetes.resources import (
    HEALTH,
    JOB_LABEL,
    JOBS,
    NODES,
    PODS,
    POOL_LABEL,
    TEAMS,
    TOPOLOGIES,
)
from weft.engines.kubernetes.seen import (
    SeenJob,
    SeenNode,
    SeenPod,
    SeenTeam,
    read_body,
    seen_job,
    seen_node,
    seen_pod,
    seen_team,
)
from weft.engines.kubernetes.watching import Reflector


@dataclass(frozen=True, slots=True)
class SeenHealth:
    """A NodeHealth: an operator's word, and what the engine has written down about the node."""

    name: str
    version: str
    override: str
    override_by: str
    record: Mapping[str, Any]


def _seen_health(item: Mapping[str, Any]) -> SeenHealth:
    body, _ = read_body(item, HEALTH)
    said = body if isinstance(body, HealthBody) else HealthBody()
    meta = item["metadata"]
    record = (item.get("status") or {}).get("record") or {}
    return SeenHealth(meta["name"], meta["resourceVersion"], said.override, said.override_by, record)


class World:
    """The caches, and the names of what has changed."""

    def __init__(self, client: Client, pool: str, namespace: str | None = None, silence_s: float = 90.0) -> None:
        """Look at the nodes of `pool` and at the jobs of `namespace`, or of all namespaces."""
        self.pods_of: dict[str, dict[str, SeenPod]] = {}
        self.pods_on: dict[str, dict[str, SeenPod]] = {}
        """The pods of each node, by uid."""
        self.owners_of: dict[str, Counter[str]] = {}
        """How many pods of each job's name belong to which job, by uid."""
        self.changed_jobs: set[str] = set()
        self.changed_nodes: set[str] = set()
        self.changed_teams: set[str] = set()
        self.wake = asyncio.Event()
        self.events = 0
        mine = f"{POOL_LABEL}={pool}"
        self.jobs: Reflector[SeenJob] = Reflector(
            client, JOBS, seen_job, self._job_changed, namespace=namespace, silence_s=silence_s
        )
        self.pods: Reflector[SeenPod] = Reflector(
            client, PODS, seen_pod, self._pod_changed, namespace=namespace, labels=JOB_LABEL, silence_s=silence_s
        )
        self.nodes: Reflector[SeenNode] = Reflector(
            client, NODES, seen_node, self._node_changed, labels=mine, silence_s=silence_s
        )
        self.teams: Reflector[SeenTeam] = Reflector(client, TEAMS, seen_team, self._team_changed, silence_s=silence_s)
        self.health: Reflector[SeenHealth] = Reflector(
            client, HEALTH, _seen_health, self._health_changed, silence_s=silence_s
        )
        self.topologies: Reflector[Mapping[str, Any]] = Reflector(
            client, TOPOLOGIES, lambda item: item.get("spec") or {}, self._topology_changed, silence_s=silence_s
        )

    @property
    def reflectors(self) -> tuple[Reflector[Any], ...]:
        """Return every cache."""
        return (self.jobs, self.pods, self.nodes, self.teams, self.health, self.topologies)

    async def synced(self) -> None:
        """Wait until every cache has been filled once."""
        for one in self.reflectors:
            await one.synced.wait()

    def pods_by_job(self, job_id: str) -> list[SeenPod]:
        """Return the pods that bear a job's name."""
        return list(self.pods_of.get(job_id, {}).values())

    def _note(self, names: set[str], name: str) -> None:
        names.add(name)
        self.events += 1
        self.wake.set()

    def _job_changed(self, old: SeenJob | None, new: SeenJob | None) -> None:
        some = new or old
        assert some is not None
        self._note(self.changed_jobs, some.id)

    def _pod_changed(self, old: SeenPod | None, new: SeenPod | None) -> None:
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

    def _move(self, old: SeenPod | None, new: SeenPod | None) -> None:
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

    def _node_changed(self, old: SeenNode | None, new: SeenNode | None) -> None:
        some = new or old
        assert some is not None
        self._note(self.changed_nodes, some.name)

    def _team_changed(self, old: SeenTeam | None, new: SeenTeam | None) -> None:
        some = new or old
        assert some is not None
        # What we write into a team's status is no news.
        if old is None or new is None or old.body != new.body:
            self._note(self.changed_teams, some.name)

    def _health_changed(self, old: SeenHealth | None, new: SeenHealth | None) -> None:
        some = new or old
        assert some is not None
        self._note(self.changed_nodes, some.name)

    def _topology_changed(self, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
        del old, new
        for name in self.nodes.items:
            self.changed_nodes.add(name)
        self.wake.set()
