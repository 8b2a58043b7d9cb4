"""Whole lives of jobs and gangs on the fake API server, with simulated kubelets and in virtual time."""

from tests.engines.kubernetes.fake_cluster import FakeCluster, play, until


def test_a_gang_is_placed_runs_and_is_done() -> None:
    async def life() -> None:
        cluster = FakeCluster(4, start_s=1.0, run_s=60.0)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("gang", 4)
            await until(lambda: cluster.state("gang") == "running")
            assert len(set(cluster.on("gang"))) == 4
            assert cluster.status("gang")["running"] == 4
            await until(lambda: cluster.state("gang") == "done")
        kinds = {one["type"]: one["status"] for one in cluster.status("gang")["conditions"]}
        assert kinds == {"Accepted": "True", "Placed": "False", "Running": "False", "Finished": "True"}

    play(life)
