"""How fast a cluster is decided about: 100,000 generated jobs on 7,500 nodes, and one pass over 10,000 waiting jobs.

Prints the CPU time of the replay, with and without backfill, the time of a pass, the ratio between a pass over a kept
state and one over a state that is built anew, which is what a planner without increments would do, and the time that
`weft why` takes from an engine's state with 2,000 jobs waiting.
"""

import sys
import time
from dataclasses import replace

from weft.campaign.policies import policy_of
from weft.campaign.replay import TraceReplay
from weft.campaign.trace import generated
from weft.cluster.from_site import nodes_of, power_of
from weft.cluster.plan import decide, plan
from weft.cluster.records.effects import ended
from weft.cluster.records.job import Gang, Job, JobState, Team
from weft.cluster.records.snapshot import Snapshot
from weft.cluster.scheduling.state import ClusterState
from weft.cluster.why import answer
from weft.core.seeds import Seed
from weft.specs import load_site

SITE, NODES, TEAMS, JOBS, WAITING, ROUNDS = "gb200-8x100g-131k", 7500, 4, 100_000, 10_000, 50
ASKED, IN_LINE = 50, 2_000
"""How many jobs are asked about, and how many wait then."""


def main() -> None:
    """Measure and print."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS
    site = load_site(SITE)
    nodes = nodes_of(site, NODES)
    gpus = site.node.gpus
    teams = tuple(Team(f"team-{number}", NODES * gpus // TEAMS) for number in range(TEAMS))
    snapshot = Snapshot(nodes, teams=teams, power=power_of(site), policy=policy_of("weft")[0])

    lines = generated(jobs, NODES, gpus, Seed(0))
    begin = time.process_time()
    world = TraceReplay(snapshot, lines)
    measured = world.run()
    took = time.process_time() - begin
    each = took / world.passes * 1e6
    print(f"replay: {jobs:,} jobs on {NODES:,} nodes in {took:.1f} s of one core")
    print(f"        {world.passes:,} passes of {each:.0f} us")
    print(f"        utilisation {measured.utilisation():.1%}, waits without a reason {measured.unexplained_ms()} ms")

    fifo = replace(snapshot, policy=policy_of("fifo")[0])
    begin = time.process_time()
    world = TraceReplay(fifo, lines)
    world.run()
    other = time.process_time() - begin
    print(f"        fifo: {other:.1f} s, {other / took:.2f} times that, {world.passes:,} passes")

    one_pass(snapshot, gpus)
    questions(snapshot, gpus)


def singles(gpus: int) -> tuple[Job, ...]:
    """Return a job for each node."""
    return tuple(Job(f"run-{number:05d}", Gang(1, gpus), 0, team="team-0", limit_ms=10**8) for number in range(NODES))


def gangs(gpus: int, count: int) -> tuple[Job, ...]:
    """Return so many gangs of every size."""
    return tuple(
        Job(
            f"late-{number:05d}", Gang(1 + number % 64, gpus), 1 + number, team=f"team-{number % TEAMS}", limit_ms=10**7
        )
        for number in range(count)
    )


def one_pass(snapshot: Snapshot, gpus: int) -> None:
    """Measure a pass over a kept state and one over a state that is built anew."""
    policy = replace(snapshot.policy, preempt=False)
    cluster = ClusterState(replace(snapshot, jobs=(*singles(gpus), *gangs(gpus, WAITING)), policy=policy))
    decide(cluster, 10)
    running = [cluster.jobs[name] for name in sorted(cluster.nodes_of)][:ROUNDS]
    begin = time.process_time()
    for number, job in enumerate(running):
        cluster.put(ended(job, JobState.DONE), 20 + number)
        decide(cluster, 20 + number)
    kept = (time.process_time() - begin) / ROUNDS
    frozen = cluster.snapshot()
    begin = time.process_time()
    plan(frozen, 1000)
    anew = time.process_time() - begin
    times = f"{kept * 1e3:.2f} ms in a kept state, {anew * 1e3:.0f} ms anew, ratio {anew / kept:.0f}"
    print(f"one pass over {len(cluster.queue):,} waiting jobs: {times}")


def questions(snapshot: Snapshot, gpus: int) -> None:
    """Measure `weft why` from an engine's state: jobs from all of the line."""
    policy = replace(snapshot.policy, preempt=False, lane_share=0.0)
    cluster = ClusterState(replace(snapshot, jobs=singles(gpus), policy=policy))
    decide(cluster, 10)
    for job in gangs(gpus, IN_LINE):
        cluster.put(job, 10)
    decide(cluster, 15)
    names = sorted(cluster.queue.rows)[:: max(1, len(cluster.queue) // ASKED)]
    spans: list[float] = []
    for name in names:
        begin = time.process_time()
        answer(cluster, name, 20)
        spans.append(time.process_time() - begin)
    mean_ms, worst_ms = sum(spans) / len(spans) * 1e3, max(spans) * 1e3
    print(f"weft why: {len(cluster.running):,} jobs run, {len(cluster.queue):,} wait: "
          f"{mean_ms:.0f} ms on average, {worst_ms:.0f} ms at worst")  # fmt: skip


if __name__ == "__main__":
    main()
