"""Installs weft's CRDs on a cluster and waits until they are served."""

import asyncio

from weft.core.errors import UsageError
from weft.engines.kubernetes.api.access import Access
from weft.engines.kubernetes.api.api_client import ApiClient, explaining
from weft.engines.kubernetes.api.crds import definitions
from weft.engines.kubernetes.api.resources import DEFINITIONS


async def install(access: Access) -> list[str]:
    """Install our CRDs on a server and wait until it serves them; returns their names."""
    async with explaining(), ApiClient(access) as client:
        names: list[str] = []
        for one in definitions():
            await client.apply(DEFINITIONS, one)
            names.append(one["metadata"]["name"])
        for name in names:
            await _established(client, name)
        return names


async def _established(client: ApiClient, name: str) -> None:
    for _ in range(300):
        there = await client.get(DEFINITIONS, name)
        kinds = {one["type"]: one["status"] for one in (there.get("status") or {}).get("conditions") or ()}
        if kinds.get("Established") == "True":
            return
        await asyncio.sleep(0.1)
    raise UsageError(f"the server does not serve {name} after 30 s; look at its conditions")
