"""What health agents say of their nodes: read, and believed only of the node that the sender runs on.

An agent proves itself by a token of the service account of agents that is bound to its pod, or to its Node; the server
is asked whose it is, once for each token. So an agent that was taken over can take out its own node only.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.cluster.health.tickets import REPAIRS
from weft.cluster.records.node import NodeEvidence
from weft.engines.kubernetes.api.api_client import ApiClient, ApiError
from weft.engines.kubernetes.api.resources import PODS, TOKEN_REVIEWS
from weft.engines.kubernetes.controller.observed import PodReport

AGENT = "weft-agent"
"""The service account of agents."""
AUDIENCE = "weft"
"""What their tokens are made for."""
_EXTRA = "authentication.kubernetes.io/"
_SEVERITIES = ("note", "warning", "fatal")
_MOST_TEXT, _MOST_SEEN, _MOST_TOKENS, _MOST_GPUS = 500, 64, 20_000, 1024
_KEPT_S = 600.0


def read_agent_report(document: Any, now_ms: int) -> PodReport:
    """Return a report as an agent sends it; raises ValueError where it is none."""
    try:
        node, given = document["node"], document["seen"][:_MOST_SEEN]
        seen = tuple(_evidence(one, now_ms) for one in given if one["severity"] in _SEVERITIES)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError("a report of an agent has node and seen; each of these has check and severity") from None
    if not isinstance(node, str):
        raise ValueError("node is the name of a node")  # noqa: TRY004 - what came over the wire, not a caller's mistake
    return PodReport("", "", node, None, seen)


def _evidence(one: Mapping[str, Any], now_ms: int) -> NodeEvidence:
    at_ms = one.get("at_ms", now_ms)
    # A clock that runs ahead must not keep a report fresh for ever.
    at_ms = min(int(at_ms), now_ms) if isinstance(at_ms, int) else now_ms
    gpu, repair = one.get("gpu"), one.get("repair")
    return NodeEvidence(
        str(one["check"])[:_MOST_TEXT], at_ms, one["severity"], str(one.get("text", ""))[:_MOST_TEXT],
        gpu=gpu if isinstance(gpu, int) and 0 <= gpu < _MOST_GPUS else None,
        repair=repair if isinstance(repair, str) and repair in REPAIRS else "",
    )  # fmt: skip


@dataclass
class AgentIdentities:
    """Which node a token belongs to."""

    client: ApiClient
    namespace: str
    """Where agents run."""
    _known: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)

    async def node_of(self, token: str, now_s: float) -> str:
        """Return the node that the bearer of a token may speak for; empty where there is none."""
        if not token:
            return ""
        key = hashlib.sha256(token.encode()).hexdigest()
        node, until_s = self._known.get(key, ("", 0.0))
        if now_s >= until_s:
            node = await self._asked(token)
            self._known[key] = (node, now_s + _KEPT_S)
            self._known.move_to_end(key)
            if len(self._known) > _MOST_TOKENS:
                self._known.popitem(last=False)
        return node

    async def _asked(self, token: str) -> str:
        body = {
            "apiVersion": TOKEN_REVIEWS.api_version, "kind": TOKEN_REVIEWS.kind,
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }  # fmt: skip
        status = (await self.client.create(TOKEN_REVIEWS, body)).get("status") or {}
        user = status.get("user") or {}
        name, extra = str(user.get("username", "")), user.get("extra") or {}
        if not status.get("authenticated"):
            return ""
        if name != f"system:serviceaccount:{self.namespace}:{AGENT}":
            return ""
        if nodes := extra.get(f"{_EXTRA}node-name"):
            return str(nodes[0])
        # Servers before 1.30 name the pod alone.
        for pod in extra.get(f"{_EXTRA}pod-name") or ():
            try:
                return str((await self.client.get(PODS, pod, self.namespace))["spec"].get("nodeName", ""))
            except ApiError as error:
                if not error.missing:
                    raise
        return ""
