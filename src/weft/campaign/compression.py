"""A cluster's state without the nodes about which nothing is to be decided.

A gang of 30,000 nodes has a few that are sick and many that are well. Those are alike to every decision: which of them
a gang holds changes no action. So only some of each gang's units stand in the state that `cluster.decide` sees (its
seats); the others are folded away, and a folded unit that falls sick first changes places with a well one that is seen.
What a decision reads of sizes (the brake's share of the pool, quotas) is given for the whole fleet. Below
`WHOLE_UNITS` nothing is folded, and the state is the fleet's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.cluster.log import RecordedState
from weft.cluster.records.job import Job, Team
from weft.cluster.records.node import Node, NodeState
from weft.cluster.records.snapshot import SchedulingPolicy, Snapshot
from weft.core.errors import WeftError

WHOLE_UNITS = 2048
"""Fleets up to this size are not folded."""
SEEN_UNITS = 256
"""Units of a folded gang that stand in the state besides those by which it may become narrower."""


class SeatsExhaustedError(WeftError):
    """More units of a folded gang are sick at once than stand in the state; the fleet must be run whole."""


@dataclass(frozen=True, slots=True)
class StandingGang:
    """A gang of the standing demand: who it is and how many units it wants and needs."""

    name: str
    units: int
    fewest: int
    step: int
    team: str


def brake_for(policy: SchedulingPolicy, units: int) -> SchedulingPolicy:
    """Return a policy whose brake allows in any pool what it allows in one of `units`."""
    allowance = min(max(int(policy.brake_share * units), policy.brake_least), policy.brake_most)
    return replace(policy, brake_share=0.0, brake_least=allowance, brake_most=allowance)


class FoldedCluster:
    """A cluster's state over seats, and which unit of the fleet sits on each; one owner."""

    def __init__(
        self, records: Sequence[Node], gangs: Sequence[StandingGang], teams: Sequence[Team], policy: SchedulingPolicy,
        whole_units: int = WHOLE_UNITS,
    ) -> None:  # fmt: skip
        """Fold what can be folded and open the state without jobs."""
        self.folded: dict[str, list[int]] = {gang.name: [] for gang in gangs}
        """Units of each gang that are not seen."""
        self._fold_of: dict[int, tuple[str, int]] = {}
        first = 0
        if len(records) > whole_units:
            for gang in gangs:
                seen = gang.units - gang.fewest + SEEN_UNITS
                hidden = range(first, first + max(0, gang.units - seen))
                self.folded[gang.name] = list(hidden)
                self._fold_of |= {unit: (gang.name, at) for at, unit in enumerate(hidden)}
                first += gang.units
        self.unit_of: list[int] = [number for number in range(len(records)) if number not in self._fold_of]
        """The unit that sits on each seat."""
        self._seat_of = {unit: seat for seat, unit in enumerate(self.unit_of)}
        self._away: dict[int, Node] = {}
        self._records = records
        seats = tuple(replace(records[unit], number=seat) for seat, unit in enumerate(self.unit_of))
        less = {team.name: 0 for team in teams}
        for gang in gangs:
            less[gang.team] += len(self.folded[gang.name]) * records[0].gpus
        left = tuple(
            replace(
                team, quota_gpus=team.quota_gpus - less[team.name],
                most_gpus=None if team.most_gpus is None else team.most_gpus - less[team.name],
            )
            for team in teams
        )  # fmt: skip
        self.state = RecordedState(
            Snapshot(seats, teams=left, policy=brake_for(policy, len(records))), recording=False
        )  # fmt: skip
        self.holder: list[str] = [""] * len(seats)
        """The job that holds each seat."""
        self._next = 0

    def is_folded(self, unit: int) -> str:
        """Return the gang in which a unit is folded away, or nothing."""
        found = self._fold_of.get(unit)
        return found[0] if found else ""

    def holder_of(self, unit: int) -> str:
        """Return the job that holds a unit, or nothing."""
        return self.is_folded(unit) or self.holder[self._seat_of[unit]]

    def node_of(self, unit: int) -> Node:
        """Return the record of a unit that is seen."""
        return self.state.pool.nodes[self._seat_of[unit]]

    def seat(self, unit: int, busy: "set[int]") -> int:
        """Return the seat of a unit; one that is folded away first changes places with a well one, not in `busy`."""
        fold = self._fold_of.get(unit)
        if fold is None:
            return self._seat_of[unit]
        gang, at = fold
        seat = self._well_seat(gang, busy)
        other = self.unit_of[seat]
        del self._fold_of[unit], self._seat_of[other]
        self.folded[gang][at] = other
        self._fold_of[other] = (gang, at)
        self.unit_of[seat] = unit
        self._seat_of[unit] = seat
        nodes = self.state.pool.nodes
        self._away[other] = nodes[seat]
        back = self._away.pop(unit, self._records[unit])
        nodes[seat] = replace(back, number=seat, state=NodeState.READY)
        self.state.pool.update(nodes[seat])
        return seat

    def _well_seat(self, gang: str, busy: "set[int]") -> int:
        """Return a seat of a gang, or a free one while it waits, on which nothing is known to be wrong."""
        state = self.state
        held = state.nodes_of.get(gang)
        seats = held if held is not None else [at for at, name in enumerate(self.holder) if not name]
        for _ in range(len(seats)):
            self._next += 1
            seat = int(seats[self._next % len(seats)])
            node = state.pool.nodes[seat]
            if node.state is NodeState.READY and not node.evidence and not node.degraded \
                    and self.unit_of[seat] not in busy:  # fmt: skip
                return seat
        raise SeatsExhaustedError(f"every one of the {len(seats):,} units of {gang} that are seen is sick")

    def units_of(self, job: Job) -> int:
        """Return how many units a job holds, those that are folded away included."""
        assert job.placement is not None, "only a job that runs holds units"
        return len(job.placement.nodes) + len(self.folded.get(job.id, ()))
