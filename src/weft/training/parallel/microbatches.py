"""Which micro-batches each rank computes in a step, and where their gradients stand in the tree of the sum.

Replicas of the whole model take runs of consecutive indices; the ranks of an expert group take neighbours at the same
time. Positions put the context and expert coordinates above the index, so that what a rank holds is a run of the tree.
Pure: no torch, no clock.
"""

from dataclasses import dataclass

from weft.training.parallel.load_balance import assign, reassign
from weft.training.parallel.mesh import Layout, MeshCoordinate


@dataclass(frozen=True)
class MicroBatchSplit:
    """One division of a step's micro-batches."""

    layout: Layout
    """Where ranks stand."""
    count: int
    """Micro-batches in a step."""
    runs: tuple[range, ...]
    """For each replica, its rounds; in a round, an expert group takes one micro-batch for each of its ranks."""

    @classmethod
    def even(cls, layout: Layout, count: int) -> "MicroBatchSplit":
        """Return the division among equally fast replicas."""
        plan = layout.plan
        return cls(layout, count, assign([1.0] * (plan.dp // plan.ep), count // plan.ep))

    def indices(self, place: MeshCoordinate) -> list[int]:
        """Return the micro-batches that the rank at `place` takes part in, in order."""
        replica, expert = divmod(place.dp, self.layout.plan.ep)
        return [number * self.layout.plan.ep + expert for number in self.runs[replica]]

    def positions(self, kind: str, place: MeshCoordinate) -> tuple[int, ...]:
        """Return where the gradients of the rank at `place` stand, for "dense" parameters or for "experts"."""
        plan = self.layout.plan
        replica, expert = divmod(place.dp, plan.ep)
        above = place.cp if kind == "experts" else place.cp * plan.ep + expert
        rounds = 1 << (self.count // plan.ep - 1).bit_length()
        return tuple(above * rounds + number for number in self.runs[replica])

    def group_positions(self, kind: str, place: MeshCoordinate) -> tuple[tuple[int, ...], ...]:
        """Return the positions of every rank that holds the same parameters as `place`, in the order of the group."""
        find = self.layout.expert_replica_ranks if kind == "experts" else self.layout.replica_ranks
        return tuple(self.positions(kind, self.layout.place(rank)) for rank in find(place))

    def balanced(self, seconds: list[float]) -> "MicroBatchSplit":
        """Return a division that suits replicas which took `seconds` for their runs; the same where that may not be."""
        plan = self.layout.plan
        if plan.shard > 1 or plan.ep > 1 or (plan.pp > 1 and plan.schedule not in ("gpipe", "1f1b")):
            return self
        runs = reassign(self.runs, seconds)
        least = plan.pp if plan.schedule == "1f1b" else 1
        return MicroBatchSplit(self.layout, self.count, runs) if all(len(run) >= least for run in runs) else self
