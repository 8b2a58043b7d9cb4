"""The role for workloads of other controllers holds what is needed, and nothing that is not."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.engines.kubernetes.fake_cluster import play, until
from tests.engines.kubernetes.stage import running
from tests.engines.kubernetes.workloads import KIND_NAMES, WorkloadCluster, workload

from weft.cluster.records.snapshot import SchedulingPolicy
from weft.engines.kubernetes.controller.control_loop import KubernetesEngine
from weft.testing.api_server import ADMIN

_FILE = Path(__file__).parents[3] / "deploy" / "kubernetes" / "rbac.yaml"
_ALL = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
_Taken = tuple[int, str, str]


def _rules(name: str) -> list[Mapping[str, Any]]:
    every = yaml.safe_load_all(_FILE.read_text(encoding="utf-8"))
    (found,) = [one for one in every if one["kind"] == "ClusterRole" and one["metadata"]["name"] == name]
    return found["rules"]


def _single() -> Iterator[_Taken]:
    for number, rule in enumerate(_rules("weft-workloads")):
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                yield number, resource, verb


def _without(taken: _Taken | None) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for number, rule in enumerate(_rules("weft-workloads")):
        for resource in rule["resources"]:
            verbs = [verb for verb in rule["verbs"] if (number, resource, verb) != taken]
            # The fake server tells rules by group, resource and verb alone, as the real one does.
            found.append({"apiGroups": rule["apiGroups"], "resources": [resource], "verbs": verbs})
    return found + _rules("weft-engine")


async def _scene(taken: _Taken | None) -> list[str]:
    """Play everything that is done for workloads, with one permission less; returns what was refused."""
    cluster = WorkloadCluster(4, start_s=0.5, run_s=20.0)
    async with cluster.controllers():
        cluster.server.users = {ADMIN: [_ALL], "engine": _without(taken)}
        async with cluster.server.client("engine", token="engine") as client:
            settings = cluster.settings(policy=SchedulingPolicy(patience_ms=0))
            one = KubernetesEngine(client, settings, cluster.server.now_ms)
            async with running(one.run()):
                work = asyncio.ensure_future(_all_of_it(cluster))
                while not work.done() and not client.refused:
                    await asyncio.sleep(0.5)
                if not client.refused:
                    work.result()
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                return list(client.refused)


async def _all_of_it(cluster: WorkloadCluster) -> None:
    for kind in KIND_NAMES:
        await cluster.hand_in(kind, f"one-{kind.lower()}", workload(kind, 1, suspend=False))
    for kind in KIND_NAMES:
        await until(lambda: cluster.ended(kind, f"one-{kind.lower()}") == "done")  # noqa: B023 - asked at once
    # A Job that gives way is prepared a second time; one that waits is changed; one that waits goes.
    cluster.server.store.garbage_collector = False
    await cluster.hand_in("Job", "low", workload("Job", 4), **{"cluster.weft/priority": "0"})
    await until(lambda: cluster.stands("Job", "low").get("state") == "running")
    await cluster.hand_in("Job", "high", workload("Job", 3), **{"cluster.weft/priority": "500"})
    await cluster.hand_in("Job", "later", workload("Job", 9))
    await until(lambda: cluster.stands("Job", "later").get("state") == "waiting")
    await cluster.edit("Job", "later", parallelism=8)
    await until(lambda: cluster.ended("Job", "low") == "done")
    await cluster.remove("Job", "later")
    await until(lambda: not cluster.stands("Job", "later"))


def test_the_permissions_are_enough() -> None:
    assert play(lambda: _scene(None)) == []


@pytest.mark.parametrize("taken", list(_single()), ids=str)
def test_each_of_them_is_needed(taken: _Taken) -> None:
    assert play(lambda: _scene(taken)), f"nobody needs {taken}"


def test_without_the_role_the_engine_does_its_own_work() -> None:
    async def life() -> None:
        cluster = WorkloadCluster(2, start_s=0.5)
        async with cluster.controllers():
            cluster.server.users = {ADMIN: [_ALL], "engine": _rules("weft-engine")}
            async with cluster.server.client("engine", token="engine") as client:
                one = KubernetesEngine(client, cluster.settings(), cluster.server.now_ms)
                async with running(one.run()):
                    await cluster.hand_in("Job", "one", workload("Job", 1))
                    await cluster.submit("mine", 2)
                    await until(lambda: cluster.state("mine") == "running")
                    assert not cluster.gang("Job", "one")

    play(life)
