import asyncio
import contextlib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.engines.kubernetes.stage import CONTROLLER, NOBODY, Theatre, playing, until

from weft.cluster.records.job import JobState
from weft.cluster.records.node import NodeState
from weft.engines.kubernetes.api.api_client import ApiClient, ApiError
from weft.engines.kubernetes.api.crds import manifest
from weft.engines.kubernetes.api.resources import HEALTH, JOBS, NAMESPACES, NODES, PODS, TEAMS, Resource
from weft.engines.kubernetes.controller.agent_reports import AGENT, AUDIENCE, AgentIdentities
from weft.engines.kubernetes.controller.control_loop import KubernetesEngine
from weft.engines.kubernetes.controller.controller_state import MarkNode
from weft.engines.kubernetes.controller.election import Election
from weft.engines.kubernetes.controller.observed import CANCEL

_DEPLOY = Path(__file__).parents[3] / "deploy" / "kubernetes"
_GROUP = "rbac.authorization.k8s.io"
_KINDS = {
    "ClusterRole": Resource(_GROUP, "v1", "clusterroles", "ClusterRole", namespaced=False),
    "ClusterRoleBinding": Resource(_GROUP, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    "Role": Resource(_GROUP, "v1", "roles", "Role"),
    "RoleBinding": Resource(_GROUP, "v1", "rolebindings", "RoleBinding"),
}


def _documents() -> list[dict[str, Any]]:
    every = yaml.safe_load_all((_DEPLOY / "rbac.yaml").read_text(encoding="utf-8"))
    return [one for one in every if one["kind"] in _KINDS]


def _single_verbs() -> Iterator[tuple[str, int, str, str]]:
    """Yield every (kind of role, rule, resource, verb) that the engine is given."""
    for one in _documents():
        if one["kind"] in ("ClusterRole", "Role") and one["metadata"]["name"] == "weft-engine":
            for number, rule in enumerate(one["rules"]):
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        yield one["kind"], number, resource, verb


def _without(taken: tuple[str, int, str, str] | None) -> list[dict[str, Any]]:
    documents = deepcopy(_documents())
    if taken is None:
        return documents
    kind, number, resource, verb = taken
    role = next(one for one in documents if one["kind"] == kind and one["metadata"]["name"] == "weft-engine")
    rule = role["rules"][number]
    others = [other for other in rule["resources"] if other != resource]
    kept = [other for other in rule["verbs"] if other != verb]
    new = [{**rule, "resources": others}] if others else []
    new += [{**rule, "resources": [resource], "verbs": kept}] if kept else []
    role["rules"][number : number + 1] = new
    return documents


def test_the_kinds_that_are_shipped_are_those_of_the_specs():
    assert (_DEPLOY / "kinds.yaml").read_text(encoding="utf-8") == manifest()


@pytest.mark.kube
@pytest.mark.timeout(400)
def test_the_shipped_permissions_are_enough_and_each_of_them_is_needed(theatre: Theatre):
    asyncio.run(_all_verbs(theatre))


@pytest.mark.kube
def test_a_real_server_takes_every_shipped_object(theatre: Theatre):
    kinds = {
        **_KINDS, "Namespace": NAMESPACES, "Deployment": Resource("apps", "v1", "deployments", "Deployment"),
        "Service": Resource("", "v1", "services", "Service"),
        "DaemonSet": Resource("apps", "v1", "daemonsets", "DaemonSet"),
        "ServiceAccount": Resource("", "v1", "serviceaccounts", "ServiceAccount"),
    }  # fmt: skip
    named = yaml.safe_load((_DEPLOY / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    assert set(named) | {"kustomization.yaml"} == {path.name for path in _DEPLOY.iterdir()}
    texts = [(_DEPLOY / name).read_text(encoding="utf-8") for name in named if name != "kinds.yaml"]
    documents = [one for text in texts for one in yaml.safe_load_all(text)]

    async def dry_run() -> None:
        async with theatre.open() as client:
            for number, one in enumerate(documents):
                resource = kinds[one["kind"]]
                space = theatre.name if resource.namespaced else None
                meta = {**one["metadata"], "name": f"{theatre.name}-{number}", "namespace": space or ""}
                await client.request(
                    "POST", resource.path(space), query={"dryRun": "All"}, body={**one, "metadata": meta}
                )

    asyncio.run(dry_run())
    assert len(documents) >= 8


async def _all_verbs(theatre: Theatre) -> None:
    async with theatre.open() as client, playing(theatre, theatre.stage(4)):
        await client.apply(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "weft-system"}})
        refused = await _scene(theatre, client, None, 0)
        assert not refused, f"the shipped permissions do not allow {refused}"
        unused = []
        for number, taken in enumerate(_single_verbs(), 1):
            if not await _scene(theatre, client, taken, number):
                unused.append(taken)
        assert not unused, f"nobody needs {unused}"


async def _scene(theatre: Theatre, client: ApiClient, taken: Any, number: int) -> list[str]:
    """Play everything that the engine can do, with one permission less; returns what was refused."""
    for one in _without(taken):
        resource = _KINDS[one["kind"]]
        namespace = one["metadata"].get("namespace")
        name = one["metadata"]["name"]
        there = await client.find(resource, name, namespace)
        if there is None:
            await client.create(resource, one, namespace)
        elif "rules" in one:
            await client.replace(resource, {**there, "rules": one["rules"]}, namespace)
    await asyncio.sleep(0.3)
    access = theatre.plane.access(CONTROLLER)
    async with ApiClient(access, tries=2) as mine:
        election = Election(mine, "weft-system", f"test{number}", name=f"lease{theatre.name}{number}", duration_s=30.0)
        try:
            await election.wait()
            await election.give_up()
        except ApiError:
            return mine.refused
        engine = KubernetesEngine(mine, theatre.settings(teams_s=0.2))
        task = asyncio.create_task(engine.run())
        try:
            await _play(theatre, client, engine, mine, task, number)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await _clear(theatre, client)
        return mine.refused


async def _play(
    theatre: Theatre, client: ApiClient, engine: KubernetesEngine, mine: ApiClient, task: Any, number: int
) -> None:
    async def over(question: Any) -> bool:
        return bool(mine.refused) or task.done() or bool(await question())

    async def wait_for(question: Any) -> bool:
        """Wait until it is so; returns whether the scene goes on."""
        await until(lambda: over(question), 30.0)
        return not mine.refused and not task.done()

    gang, server, sick = f"gang{number}", f"server{number}", theatre.stage(4).name(3)
    await theatre.submit(client, gang, 2)
    await theatre.submit(client, server, 1, kind="service", priority=0)

    async def both_run() -> bool:
        states = await theatre.states(client)
        return states.get(gang) == states.get(server) == "running"

    await _whose_tokens(client, mine, number, sick)
    if not await wait_for(both_run):
        return
    # A service that has to leave goes by eviction; a gang that is cancelled by deletion.
    entry = engine.entries[f"{theatre.name}/{server}"]
    stopping = replace(entry.record, state=JobState.STOPPING, ending="failed", leave_by_ms=0)
    entry.record = stopping
    engine.cluster.put(stopping, 0)
    engine.state.live.add(entry.seen.id)
    engine.touch(entry.seen.id)
    await client.patch(JOBS, gang, {"metadata": {"annotations": {CANCEL: "a test"}}}, theatre.name)

    async def both_ended() -> bool:
        states = await theatre.states(client)
        return states.get(gang) == "cancelled" and states.get(server) == "failed"

    if not await wait_for(both_ended):
        return
    node = engine.cluster.pool.nodes[engine.state.node_index.numbers[sick]]
    engine.writer.perform(MarkNode(replace(node, state=NodeState.QUARANTINED), "a test"))

    async def marked() -> bool:
        there = await client.get(NODES, sick)
        return any(one["key"].endswith("quarantined") for one in there["spec"].get("taints") or ())

    if not await wait_for(marked):
        return

    async def quiet() -> bool:
        # What one scene has written down about its team must not be what the next one would write.
        held = (await client.get(TEAMS, theatre.name)).get("status") or {}
        lines = list(engine.lanes._lines) + list(engine.lanes._running)
        return held == {"gpus": 0, "waiting": 0} and not any(engine.lanes.waiting(line) for line in lines)

    await wait_for(quiet)


async def _whose_tokens(client: ApiClient, mine: ApiClient, number: int, node: str) -> None:
    """Ask whose token an agent shows: the server names its pod, and the pod its node."""
    with contextlib.suppress(ApiError):
        identities = AgentIdentities(mine, "weft-system")
        token = await _agent_token(client, number, node)
        assert await identities.node_of(token, 0.0) == node
        assert await identities.node_of("nonsense", 0.0) == ""
        assert await identities.node_of(NOBODY.token, 0.0) == ""


async def _agent_token(client: ApiClient, number: int, node: str) -> str:
    """Return the token of an agent's pod on a node, as a kubelet asks the server for it."""
    accounts = Resource("", "v1", "serviceaccounts", "ServiceAccount")
    space, name = "weft-system", f"agent-{number}-{node}"
    await client.apply(accounts, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": AGENT}}, space)
    container = {"name": "agent", "image": "weft"}
    spec = {"nodeName": node, "serviceAccountName": AGENT, "containers": [container],
            "terminationGracePeriodSeconds": 0}  # fmt: skip
    made = await client.create(
        PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, space
    )
    bound = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": made["metadata"]["uid"]}
    asked = {
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": [AUDIENCE], "expirationSeconds": 3600, "boundObjectRef": bound},
    }  # fmt: skip
    answer = await client.request("POST", accounts.path(space, AGENT, "token"), body=asked)
    return answer["status"]["token"]


async def _clear(theatre: Theatre, client: ApiClient) -> None:
    for one in await client.list(JOBS, theatre.name):
        await client.delete(JOBS, one["metadata"]["name"], theatre.name)
    await client.request("DELETE", PODS.path(theatre.name), query={"gracePeriodSeconds": "0"})
    sick = theatre.stage(4).name(3)
    taints = (await client.get(NODES, sick))["spec"].get("taints") or []
    kept = [one for one in taints if not one["key"].endswith("quarantined")]
    await client.patch(NODES, sick, {"spec": {"taints": kept}})
    await client.delete(HEALTH, sick)

    async def empty() -> bool:
        return not await client.list(PODS, theatre.name)

    await until(empty)
