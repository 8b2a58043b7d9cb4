"""A witness: it watches all pods of a theatre and remembers what must never be seen."""

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from weft.engines.kubernetes.api.api_client import ApiClient
from weft.engines.kubernetes.api.reflector import Reflector, WatchScope
from weft.engines.kubernetes.api.resources import JOB_LABEL, PODS, RANK_LABEL

_Seen = tuple[str, str, str, str, int, bool]


class Witness:
    """Checks, at every event, that nodes are held once, ranks exist once and teams stay within their most."""

    def __init__(self, client: ApiClient, namespace: str, sizes: Mapping[str, int], most: int, gpus: int = 8) -> None:
        """Watch whole-node jobs whose sizes are known, of one team that may hold `most` GPUs."""
        self.wrong: list[str] = []
        self.bound = 0
        self.half: dict[str, float] = {}
        self.longest_half_s = 0.0
        self._sizes, self._most, self._gpus = sizes, most, gpus
        self._nodes: dict[str, set[str]] = defaultdict(set)
        self._jobs: dict[str, set[str]] = defaultdict(set)
        self._ranks: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._where: dict[str, str] = {}
        self.cache: Reflector[_Seen] = Reflector(client, PODS, _kept, self._changed, WatchScope(namespace, JOB_LABEL))

    def _changed(self, old: _Seen | None, new: _Seen | None) -> None:
        some = new or old
        assert some is not None
        uid, _, job, node, rank, _ = some
        holds = new is not None and bool(node) and not new[5]
        if new is not None and node:
            first = self._where.setdefault(uid, node)
            self.bound += first == node and (old is None or not old[3])
            if first != node:
                self.wrong.append(f"{some[1]} was bound to {first} and to {node}")
        for held in (self._nodes[node], self._jobs[job], self._ranks[job, rank]):
            (held.add if holds else held.discard)(uid)
        if len(self._nodes[node]) > 1 and node:
            self.wrong.append(f"node {node} is held {len(self._nodes[node])} times")
        if len(self._ranks[job, rank]) > 1:
            self.wrong.append(f"rank {rank} of {job} runs {len(self._ranks[job, rank])} times")
        in_use = self._gpus * sum(len(held) for held in self._jobs.values())
        if in_use > self._most:
            self.wrong.append(f"{in_use} GPUs of {self._most} are used")
        self._halves(job, ended=new is None or new[5])

    def _halves(self, job: str, *, ended: bool) -> None:
        """Note how long a gang has had some of its nodes; one that ends rank by rank is not meant."""
        count, size, now = len(self._jobs[job]), self._sizes.get(job, 1), time.monotonic()
        if 0 < count < size and not ended:
            self.half.setdefault(job, now)
        elif job in self.half:
            self.longest_half_s = max(self.longest_half_s, now - self.half.pop(job))


def _kept(item: Mapping[str, Any]) -> _Seen:
    meta = item["metadata"]
    labels, status = meta["labels"], item.get("status") or {}
    over = status.get("phase") in ("Succeeded", "Failed")
    node = item["spec"].get("nodeName") or ""
    return meta["uid"], meta["name"], labels[JOB_LABEL], node, int(labels[RANK_LABEL]), over
