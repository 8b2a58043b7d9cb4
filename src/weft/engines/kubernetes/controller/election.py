"""One engine at a time: a Lease that its holder renews, and that others take when it has not been renewed.

Times of other machines are not compared: a lease is old when this process has not seen it change for its duration. A
holder that could not renew in time stops writing before anybody else may begin; `Client`'s `before` hook asks it.
"""

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from weft.core.errors import FailedError, WeftError
from weft.engines.kubernetes.api.api_client import ApiClient, ApiError
from weft.engines.kubernetes.api.resources import LEASES

_LOG = logging.getLogger(__name__)
_ADDRESS = "cluster.weft/address"
"""Annotation of the lease: where its holder hears reports."""
_READS = ("GET", "WATCH")


class NotLeadingError(FailedError):
    """A write was not sent: this process does not hold the lease, or not any more."""


@dataclass
class Election:
    """Holds, or waits for, one lease."""

    client: ApiClient
    """A client of its own: its writes are not those that leadership guards."""
    namespace: str
    """Where the lease is."""
    identity: str
    """Who we are; a process that comes back under the same name goes on at once."""
    name: str = "weft-engine"
    """The lease."""
    duration_s: float = 15.0
    """After this long without renewal it may be taken."""
    address: str = ""
    """URL at which this process hears reports, for the others."""

    def __post_init__(self) -> None:
        """Begin without the lease."""
        self.deadline = 0.0
        self._seen: tuple[Any, float] | None = None
        self.leader_address = ""
        """URL of whoever held the lease when it was last looked at."""

    @property
    def leading(self) -> bool:
        """Return whether this process may write now."""
        return _now_s() < self.deadline

    async def guard(self, method: str, path: str) -> None:
        """Refuse a write without the lease."""
        if method not in _READS and not self.leading:
            raise NotLeadingError(f"{method} {path} was not sent: this process does not hold the lease {self.name}")

    async def wait(self) -> None:
        """Return once the lease is ours."""
        while not await self._try():
            await asyncio.sleep(self.duration_s / 5)
        _LOG.info("%s leads", self.identity)

    async def keep(self) -> None:
        """Renew for ever; raises when the lease is lost."""
        while True:
            await asyncio.sleep(self.duration_s / 3)
            held = False
            try:
                held = await self._try()
            except WeftError as error:
                _LOG.warning("the lease could not be renewed: %s", error)
            if not held and not self.leading:
                raise NotLeadingError(f"the lease {self.name} was lost; somebody else leads")

    async def _try(self) -> bool:
        """Take or renew the lease if that is allowed; returns whether it is ours."""
        began = _now_s()
        there = await self.client.find(LEASES, self.name, self.namespace)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self.identity, "leaseDurationSeconds": max(1, int(self.duration_s)), "renewTime": now}
        meta = {"annotations": {_ADDRESS: self.address}} if self.address else {}
        if there is not None:
            self.leader_address = (there["metadata"].get("annotations") or {}).get(_ADDRESS, "")
        try:
            if there is None:
                body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": {"name": self.name, **meta}}
                await self.client.create(LEASES, {**body, "spec": {**spec, "acquireTime": now}}, self.namespace)
            elif self._may_take(there["spec"]):
                there["spec"] = {**there["spec"], **spec}
                there["metadata"] = {**there["metadata"], **meta}
                await self.client.replace(LEASES, there, self.namespace)
            else:
                return False
        except ApiError as error:
            if error.conflict:
                return False
            raise
        # Counted from before the request, so that ours ends before theirs can begin.
        self.deadline = began + self.duration_s * 0.8
        return True

    def _may_take(self, spec: dict[str, Any]) -> bool:
        if spec.get("holderIdentity") in (self.identity, "", None):
            return True
        stamp = (spec.get("holderIdentity"), spec.get("renewTime"))
        if self._seen is None or self._seen[0] != stamp:
            self._seen = (stamp, _now_s())
        return _now_s() - self._seen[1] > self.duration_s

    async def give_up(self) -> None:
        """Let go of the lease, so that the next one need not wait."""
        there = await self.client.find(LEASES, self.name, self.namespace)
        if there is not None and there["spec"].get("holderIdentity") == self.identity:
            there["spec"]["holderIdentity"] = ""
            try:
                await self.client.replace(LEASES, there, self.namespace)
            except ApiError as error:
                _LOG.info("the lease was not given up: %s", error)
        self.deadline = 0.0


def _now_s() -> float:
    return asyncio.get_running_loop().time()
