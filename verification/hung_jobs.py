"""Jobs whose collectives hang, for tests of diagnosis: the collectives that each rank entered last.

Ranks of a `replicas` x `stages` grid run the same program of collectives in three kinds of groups: over replicas, over
stages, and over all. One rank stops before a collective, leaves one out, or gives one another shape.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from typing import Literal, TypeAlias

import numpy as np

from weft.diagnosis.collective_calls import EnteredCollective

HangCause = Literal["stops", "skips", "other-shape"]
_Planned: TypeAlias = tuple[str, str, int]
"""Group, operation and size of one collective."""


@dataclass(frozen=True)
class HungJob:
    """What is simulated."""

    seed: int
    replicas: int = 4
    stages: int = 2
    steps: int = 4
    cause: HangCause = "stops"
    culprit: int = 0
    place: int = 5
    """Which of the culprit's collectives it is."""


def groups_of(job: HungJob) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each group; a rank is `stage * replicas + replica`."""
    found = {"world": tuple(range(job.replicas * job.stages))}
    found |= {
        f"replicas {stage}": tuple(stage * job.replicas + one for one in range(job.replicas))
        for stage in range(job.stages)
    }
    found |= {
        f"stages {replica}": tuple(stage * job.replicas + replica for stage in range(job.stages))
        for replica in range(job.replicas)
    }
    return {name: ranks for name, ranks in found.items() if len(ranks) > 1}


def hung_calls(job: HungJob) -> list[EnteredCollective]:
    """Return the collectives that the ranks have entered when all stand still."""
    groups = groups_of(job)
    chance = np.random.default_rng(job.seed)
    shared: list[tuple[str, str, int]] = []
    for _ in range(job.steps):
        shared += [("stages", "all_gather", 64), ("replicas", "reduce_scatter", int(chance.choice([128, 256]))),
                   ("replicas", "all_reduce", 32), ("world", "all_reduce", 1)]  # fmt: skip
    programs: dict[int, list[_Planned]] = {}
    for rank in range(job.replicas * job.stages):
        own = {"stages": f"stages {rank % job.replicas}", "replicas": f"replicas {rank // job.replicas}"}
        plan = [(own.get(kind, kind), operation, size) for kind, operation, size in shared]
        programs[rank] = [one for one in plan if one[0] in groups]
    mine = programs[job.culprit]
    place = job.place % len(mine)
    if job.cause == "stops":
        del mine[place:]
    elif job.cause == "skips":
        del mine[place]
    else:
        place = next(at % len(mine) for at in range(place, place + len(mine)) if "reduce" in mine[at % len(mine)][1])
        mine[place] = (mine[place][0], mine[place][1], mine[place][2] + 1)
    return _run(programs, groups)


def _run(programs: dict[int, list[_Planned]], groups: dict[str, tuple[int, ...]]) -> list[EnteredCollective]:
    """Let ranks enter what they can: one leaves a collective when all have entered its number alike."""
    entered: dict[tuple[str, int], list[EnteredCollective]] = defaultdict(list)
    counts: dict[tuple[int, str], int] = defaultdict(int)
    at, waits = dict.fromkeys(programs, 0), dict.fromkeys(programs, ("", 0))
    clock = count(1)
    moved = True
    while moved:
        moved = False
        for rank, program in programs.items():
            if waits[rank][0] or at[rank] == len(program):
                continue
            group, operation, size = program[at[rank]]
            counts[rank, group] += 1
            key = (group, counts[rank, group])
            entered[key].append(EnteredCollective(rank, *key, operation, ((size,),), entered_ns=next(clock)))
            waits[rank], moved = key, True
            calls = entered[key]
            if len(calls) == len(groups[group]) and len({(one.operation, one.sizes) for one in calls}) == 1:
                for one in calls:
                    waits[one.rank] = ("", 0)
                    at[one.rank] += 1
    return [call for calls in entered.values() for call in calls]
