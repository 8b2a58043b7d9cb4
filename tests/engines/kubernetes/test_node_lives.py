"""Nodes, teams and services on the fake API server: what is lost, cordoned, shared and reported."""

import asyncio
import json
from pathlib import Path

from tests.cluster.health.recorded_faults import GPUS, OF_PROGRAMS
from tests.engines.kubernetes.fake_cluster import POOL, SPACE, FakeCluster, play, until

from weft.cluster.health.faults import FaultMonitor, gpu_numbers
from weft.cluster.health.quarantine import report
from weft.cluster.records.snapshot import SchedulingPolicy
from weft.engines.health.fault_data import shipped_catalogue
from weft.engines.health.outbox import WebhookOutbox
from weft.engines.kubernetes.api.resources import (
    BUDGETS,
    HEALTH,
    NODES,
    SICK_TAINT,
    STATE_LABEL,
    TEAMS,
    TOPOLOGIES,
)
from weft.engines.kubernetes.controller.observed import PodReport


def test_a_lost_node_is_replaced_taken_out_and_returned() -> None:
    async def life() -> None:
        cluster = FakeCluster(4)
        async with cluster.nodes() as kubelets, cluster.engine():
            await cluster.submit("gang", 3)
            await until(lambda: cluster.state("gang") == "running")
            lost = cluster.on("gang")[1]
            kubelets.silence([lost])
            await until(lambda: lost not in cluster.on("gang") and cluster.state("gang") == "running")
            assert len(set(cluster.on("gang"))) == 3
            taints = lambda: [one["key"] for one in cluster.node(lost)["spec"].get("taints") or ()]  # noqa: E731
            await until(lambda: SICK_TAINT in taints())
            assert cluster.server.store.objects(HEALTH)[lost]["status"]["record"]
            await kubelets.revive([lost])
            await until(lambda: SICK_TAINT not in taints(), 7200)
            assert cluster.node(lost)["metadata"]["labels"][STATE_LABEL] == "ready"

    play(life)


def _agent_says(node: str, line: str, server_ms: int) -> PodReport:
    verdict = FaultMonitor(shipped_catalogue(), gpu_numbers(GPUS)).take(line, server_ms)
    assert verdict is not None
    return PodReport("", "", node, None, (verdict.evidence(server_ms),))


def test_a_ready_node_with_a_dead_gpu_is_out_in_seconds_and_its_gang_moves() -> None:
    async def life() -> None:
        cluster = FakeCluster(3)
        async with cluster.nodes(), cluster.engine() as engine:
            await cluster.submit("gang", 2)
            await until(lambda: cluster.state("gang") == "running")
            dead = cluster.on("gang")[1]
            line = "NVRM: Xid (PCI:0000:43:00): 79, pid=1, GPU has fallen off the bus."
            assert engine.hear_agent(_agent_says(dead, line, cluster.server.now_ms()))
            assert not engine.hear_agent(PodReport("", "", "another-pool", None, ()))
            taints = lambda: [one["key"] for one in cluster.node(dead)["spec"].get("taints") or ()]  # noqa: E731
            await until(lambda: SICK_TAINT in taints(), 30)
            await until(lambda: dead not in cluster.on("gang") and cluster.state("gang") == "running", 120)
            status = cluster.server.store.objects(HEALTH)[dead]["status"]
            assert "GPU 1" in str(status["record"])
            await until(lambda: engine.orders(dead) != [] or SICK_TAINT not in taints(), 60)

    play(life)


def test_what_a_program_did_wrong_and_a_first_corrected_error_take_nothing_out() -> None:
    async def life() -> None:
        cluster = FakeCluster(2)
        async with cluster.nodes(), cluster.engine() as engine:
            node = next(iter(engine.state.node_index.numbers), "n-00000")
            monitor = FaultMonitor(shipped_catalogue(), gpu_numbers(GPUS))
            for line in OF_PROGRAMS:
                assert monitor.take(line, cluster.server.now_ms()) is None
            await asyncio.sleep(60)
            assert node not in cluster.server.store.objects(HEALTH)

    play(life)


def test_a_broken_gpu_is_excluded_and_the_rest_of_the_node_stays_in_use() -> None:
    async def life() -> None:
        cluster = FakeCluster(1)
        async with cluster.nodes(), cluster.engine() as engine:
            line = "NVRM: Xid (PCI:0000:c3:00): 64, Row Remapper Error: All reserved rows for bank are remapped"
            await until(lambda: "n-00000" in engine.state.node_index.numbers)
            engine.hear_agent(_agent_says("n-00000", line, cluster.server.now_ms()))
            await until(lambda: bool(engine.cluster.pool.nodes[0].bad_gpus), 30)
            assert engine.cluster.pool.nodes[0].bad_gpus == (5,)
            await cluster.submit("small", 1, gpusPerNode=7)
            await until(lambda: cluster.state("small") == "running")

    play(life)


def test_a_condition_that_node_problem_detector_sets_takes_a_node_out_and_gives_it_back() -> None:
    async def life() -> None:
        cluster = FakeCluster(2)
        async with cluster.nodes(), cluster.engine(), cluster.server.client() as client:
            taints = lambda: [one["key"] for one in cluster.node("n-00001")["spec"].get("taints") or ()]  # noqa: E731
            for true in (True, False):
                before = [one for one in cluster.node("n-00001")["status"]["conditions"] if one["type"] == "Ready"]
                more = {"type": "KernelDeadlock", "status": str(true), "message": "task blocked", "reason": "x"}
                await client.patch(NODES, "n-00001", {"status": {"conditions": [*before, more]}}, part="status")
                await until(lambda true=true: (SICK_TAINT in taints()) is true, 30 if true else 7200)

    play(life)


def test_a_sick_node_is_tested_by_its_agent_and_a_ticket_is_sent(tmp_path: Path) -> None:
    sent = WebhookOutbox(tmp_path, "http://127.0.0.1:1/")

    async def life() -> None:
        cluster = FakeCluster(2)
        async with cluster.nodes() as kubelets:
            async with cluster.engine() as engine:
                engine.writer.tickets = sent
                await until(lambda: "n-00001" in engine.state.node_index.numbers)
                now = cluster.server.now_ms
                line = "NVRM: Xid (PCI:0000:43:00): 95, pid=1, Uncontained"
                engine.hear_agent(_agent_says("n-00001", line, now()))
                await until(lambda: bool(engine.orders("n-00001")), 30)
                found = engine.orders("n-00001")
                assert [(each["kind"], each["gpu"], each["program"]) for each in found] == [
                    ("reset-gpu", 1, ""), ("test", None, "diagnose"),
                ]  # fmt: skip
                await asyncio.sleep(300)
                assert engine.is_out("n-00001"), "that the node is heard is not enough where an agent can test it"
                failed = report("diagnose", now(), passed=False, text="slow")
                engine.hear_agent(PodReport("", "", "n-00001", None, (failed,)))
                await until(lambda: bool(sent.waiting), 30)
                ticket = json.loads(sent.waiting[0].read_text())
                assert (ticket["node"], ticket["finding"]) == ("n-00001", "slow")
                assert ticket["action"].startswith("reset the GPU")
            async with cluster.engine("next") as engine:
                engine.writer.tickets = sent
                await until(lambda: len(sent.waiting) == 2, 30)
                assert json.loads(sent.waiting[1].read_text())["id"] == ticket["id"], "sent again, it has the same name"
            del kubelets

    play(life)


def test_an_idle_node_is_tested_by_its_agent_and_work_goes_before_the_test() -> None:
    async def life() -> None:
        cluster = FakeCluster(2)
        async with cluster.nodes(), cluster.engine(policy=SchedulingPolicy(test_at_once=1)) as engine:
            await until(lambda: any(engine.orders(f"n-0000{each}") for each in (0, 1)), 60)
            first = next(name for name in ("n-00000", "n-00001") if engine.orders(name))
            assert [(one["kind"], one["program"]) for one in engine.orders(first)] == [("test", "idle")]
            other = "n-00001" if first == "n-00000" else "n-00000"
            assert engine.orders(other) == [], "one at a time"
            engine.hear_agent(PodReport("", "", first, None, (report("idle", cluster.server.now_ms(), passed=True),)))
            await until(lambda: bool(engine.orders(other)), 60)
            assert engine.orders(first) == []
            await cluster.submit("gang", 2)
            await until(lambda: cluster.state("gang") == "running")
            assert engine.orders(other) == [], "its agent ends the test"
            await cluster.cancel("gang")
            await until(lambda: cluster.state("gang") == "cancelled")
            await until(lambda: bool(engine.orders(other)), 7200)
            bad = report("idle", cluster.server.now_ms(), passed=False, text="product 3 was wrong")
            engine.hear_agent(PodReport("", "", other, None, (bad,)))
            await until(lambda: engine.is_out(other), 60)

    play(life)


def test_a_node_that_an_operator_cordons_gets_nothing_new() -> None:
    async def life() -> None:
        cluster = FakeCluster(2)
        async with cluster.nodes(), cluster.engine():
            async with cluster.server.client() as client:
                await client.patch(NODES, "n-00000", {"spec": {"unschedulable": True}})
            await asyncio.sleep(5)
            await cluster.submit("one")
            await until(lambda: cluster.state("one") == "running")
            assert cluster.on("one") == ["n-00001"]
            await cluster.submit("two")
            await asyncio.sleep(30)
            assert cluster.state("two") == "waiting"
            async with cluster.server.client() as client:
                await client.patch(NODES, "n-00000", {"spec": {"unschedulable": None}})
            await until(lambda: cluster.state("two") == "running")

    play(life)


def test_an_operators_override_keeps_a_node_out() -> None:
    async def life() -> None:
        cluster = FakeCluster(2)
        async with cluster.nodes(), cluster.engine():
            body = {"apiVersion": HEALTH.api_version, "kind": HEALTH.kind, "metadata": {"name": "n-00001"}}
            async with cluster.server.client() as client:
                await client.apply(HEALTH, {**body, "spec": {"override": "out", "overrideBy": "ada"}})
            await asyncio.sleep(5)
            await cluster.submit("gang", 2)
            await asyncio.sleep(60)
            assert cluster.state("gang") == "waiting"
            async with cluster.server.client() as client:
                await client.delete(HEALTH, "n-00001")
            await until(lambda: cluster.state("gang") == "running")

    play(life)


def test_a_node_that_leaves_the_cluster_takes_its_job_along() -> None:
    async def life() -> None:
        cluster = FakeCluster(2)
        async with cluster.nodes() as kubelets, cluster.engine():
            await cluster.submit("job")
            await until(lambda: cluster.state("job") == "running")
            node = cluster.on("job")[0]
            kubelets.silence([node])
            async with cluster.server.client() as client:
                await client.delete(NODES, node)
            await until(lambda: cluster.state("job") == "running" and cluster.on("job") not in ([], [node]))

    play(life)


def test_teams_stay_within_their_most_and_are_shown_what_they_hold() -> None:
    async def life() -> None:
        cluster = FakeCluster(4)
        async with cluster.nodes(), cluster.engine(), cluster.server.client() as client:
            await cluster.team(client, "team", 8, 16)
            await asyncio.sleep(5)
            for number in range(4):
                await cluster.submit(f"job{number}")
            await asyncio.sleep(120)
            assert sorted(cluster.state(f"job{number}") for number in range(4)) == ["running"] * 2 + ["waiting"] * 2
            held = cluster.server.store.objects(TEAMS)["team"]["status"]
            assert held == {"gpus": 16, "waiting": 2}
            await client.delete(TEAMS, "team")
            await asyncio.sleep(30)
            assert sorted(cluster.state(f"job{number}") for number in range(4)) == ["running"] * 2 + ["waiting"] * 2

    play(life)


def test_a_service_yields_under_its_owners_budget() -> None:
    async def life() -> None:
        cluster = FakeCluster(1)
        async with (
            cluster.nodes(),
            cluster.engine(policy=SchedulingPolicy(patience_ms=0)),
            cluster.server.client() as c,
        ):
            await cluster.submit("server", kind="service", priority=0, grace="5s")
            await until(lambda: cluster.state("server") == "running")
            budget = {"metadata": {"name": "mine"}, "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {}}}}
            await c.create(BUDGETS, budget, SPACE)
            await cluster.submit("job", priority=900)
            await asyncio.sleep(60)
            assert [one["spec"]["nodeName"] for one in cluster.pods("server")], "the budget holds"
            await c.delete(BUDGETS, "mine", SPACE)
            await until(lambda: cluster.state("job") == "running")
            assert cluster.server.requests["POST pods"] > 2, "it was evicted, not deleted"

    play(life)


def test_a_job_called_off_by_its_budgets_owner_is_deleted_at_once() -> None:
    async def life() -> None:
        cluster = FakeCluster(1)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("server", kind="service")
            await until(lambda: cluster.state("server") == "running")
            await cluster.cancel("server")
            await until(lambda: cluster.state("server") == "cancelled")
            assert cluster.server.requests["DELETE pods"] > 0

    play(life)


def test_what_pods_report_reaches_the_record_and_the_node() -> None:
    async def life() -> None:
        cluster = FakeCluster(2)
        async with cluster.nodes(), cluster.engine() as engine:
            await cluster.submit("job")
            await until(lambda: cluster.state("job") == "running")
            uid, node = cluster.job("job")["metadata"]["uid"], cluster.on("job")[0]
            at_ms = cluster.server.now_ms()
            assert engine.hear(PodReport(f"{SPACE}/job", uid, node, checkpoint_ms=at_ms))
            assert not engine.hear(PodReport(f"{SPACE}/job", "another", node))
            assert not engine.hear(PodReport(f"{SPACE}/none", uid, node))
            assert not engine.hear(PodReport(f"{SPACE}/job", uid, "nowhere"))
            await until(lambda: cluster.status("job")["record"].get("checkpoint_ms") == at_ms)

    play(life)


def test_labels_of_a_topology_make_neighbours() -> None:
    async def life() -> None:
        cluster = FakeCluster(8, per_t0=2)
        async with cluster.nodes(), cluster.server.client() as client:
            spec = {"pool": POOL, "rack": "topology.kubernetes.io/rack", "t0": "cluster.weft/t0"}
            body = {"apiVersion": TOPOLOGIES.api_version, "kind": TOPOLOGIES.kind, "metadata": {"name": "here"}}
            await client.create(TOPOLOGIES, {**body, "spec": spec})
            async with cluster.engine() as engine:
                await cluster.submit("gang", 4)
                await until(lambda: cluster.state("gang") == "running")
                switches = {cluster.node(name)["metadata"]["labels"]["cluster.weft/t0"] for name in cluster.on("gang")}
                assert len(switches) == 2
                assert engine.state.node_index.topology.pool == POOL
                await client.patch(TOPOLOGIES, "here", {"spec": {"rack": "another"}})
                await asyncio.sleep(5)

    play(life)


def test_small_jobs_share_a_node_on_devices_of_their_own() -> None:
    async def life() -> None:
        cluster = FakeCluster(1)
        async with cluster.nodes(), cluster.engine():
            for name, gpus in (("a", 4), ("b", 2), ("c", 2)):
                await cluster.submit(name, gpusPerNode=gpus)
            await until(lambda: all(cluster.state(name) == "running" for name in "abc"))
            devices = [tuple(cluster.status(name)["placement"]["devices"][0]) for name in "abc"]
            assert sorted(sum(devices, ())) == list(range(8))

    play(life)
