"""From a plan to a mesh: which rank stands where, who talks to whom, and whether the plan fits at all.

Ranks are counted with the tensor axis fastest, then context, data, pipeline: neighbours in number are neighbours in the
axis that talks most. Expert-parallel ranks are consecutive data-parallel ones. The arithmetic and the checks need no
torch; `Mesh.build` makes the process groups.
"""

import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from weft.core.errors import UsageError
from weft.planning.legality import problems
from weft.specs.job import JobSpec, PlanSpec

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh


GROUPS = ("ends", "pp", "cp", "tp", "replicas", "ep", "expert_replicas")
"""What process groups of a mesh are for."""


@dataclass(frozen=True)
class MeshCoordinate:
    """One rank's coordinates."""

    pp: int
    """Pipeline rank."""
    dp: int
    """Data-parallel rank."""
    cp: int
    """Context-parallel rank."""
    tp: int
    """Tensor-parallel rank."""


@dataclass(frozen=True)
class Layout:
    """The arithmetic of a plan's ranks."""

    plan: PlanSpec
    """Sizes of the axes."""

    @cached_property
    def ranks(self) -> int:
        """Return how many ranks there are."""
        return self.plan.ranks

    def place(self, rank: int) -> MeshCoordinate:
        """Return where `rank` stands."""
        rest, tp = divmod(rank, self.plan.tp)
        rest, cp = divmod(rest, self.plan.cp)
        pp, dp = divmod(rest, self.plan.dp)
        return MeshCoordinate(pp, dp, cp, tp)

    def rank(self, place: MeshCoordinate) -> int:
        """Return who stands at `place`."""
        return ((place.pp * self.plan.dp + place.dp) * self.plan.cp + place.cp) * self.plan.tp + place.tp

    def stage_ranks(self, place: MeshCoordinate) -> list[int]:
        """Return the pipeline that `place` belongs to, first stage first."""
        return [self.rank(MeshCoordinate(pp, place.dp, place.cp, place.tp)) for pp in range(self.plan.pp)]

    def end_ranks(self, place: MeshCoordinate) -> list[int]:
        """Return the first and the last rank of `place`'s pipeline, as often as they differ."""
        stages = self.stage_ranks(place)
        return [stages[0]] if len(stages) == 1 else [stages[0], stages[-1]]

    def context_ranks(self, place: MeshCoordinate) -> list[int]:
        """Return the ranks that share `place`'s sequences."""
        return [self.rank(MeshCoordinate(place.pp, place.dp, cp, place.tp)) for cp in range(self.plan.cp)]

    def tensor_ranks(self, place: MeshCoordinate) -> list[int]:
        """Return the ranks that share `place`'s matrices."""
        return [self.rank(MeshCoordinate(place.pp, place.dp, place.cp, tp)) for tp in range(self.plan.tp)]

    def replica_ranks(self, place: MeshCoordinate) -> list[int]:
        """Return the ranks that hold the same dense parameters as `place`: data and context axes together."""
        return [
            self.rank(MeshCoordinate(place.pp, dp, cp, place.tp))
            for dp in range(self.plan.dp)
            for cp in range(self.plan.cp)
        ]

    def expert_ranks(self, place: MeshCoordinate) -> list[int]:
        """Return the ranks among which `place`'s tokens find their experts."""
        first = place.dp - place.dp % self.plan.ep
        return [self.rank(MeshCoordinate(place.pp, first + ep, place.cp, place.tp)) for ep in range(self.plan.ep)]

    def expert_replica_ranks(self, place: MeshCoordinate) -> list[int]:
        """Return the ranks that hold the same experts as `place`."""
        same = range(place.dp % self.plan.ep, self.plan.dp, self.plan.ep)
        return [self.rank(MeshCoordinate(place.pp, dp, cp, place.tp)) for dp in same for cp in range(self.plan.cp)]


def check(job: JobSpec, plan: PlanSpec, ranks: int | None = None) -> None:
    """Raise with every reason why `plan` does not fit the job."""
    found = problems(plan, job.model, job.batch, ranks)
    if found:
        raise UsageError(
            f"the plan of job {job.name!r} does not fit\n" + "\n".join(f"  {problem}" for problem in found)
        )


@dataclass
class Mesh:
    """The process groups of one rank."""

    layout: Layout
    """The arithmetic."""
    rank: int
    """This rank's number."""
    groups: "dict[str, dist.ProcessGroup | None]" = field(default_factory=dict)
    """Groups by what they are for; none where this rank would be alone."""
    devices: "DeviceMesh | None" = None
    """torch's mesh with the axes pp, replicate, shard (the context axis in it) and tp; none where there is one rank."""
    experts: "DeviceMesh | None" = None
    """The same ranks with the axes pp, replicate, ep, cp, tp, where experts are spread."""

    @property
    def place(self) -> MeshCoordinate:
        """Return where this rank stands."""
        return self.layout.place(self.rank)

    @property
    def plan(self) -> PlanSpec:
        """Return the plan."""
        return self.layout.plan

    def regroup(self, rank: int, device: str) -> None:
        """Make every group anew, `rank` being this one's number; all ranks call it together."""
        made = Mesh.build(self.plan, rank, device)
        self.rank, self.devices, self.experts = rank, made.devices, made.experts
        self.groups.update(made.groups)
        if self.layout.ranks > 1:
            self._compile_for_this_rank_alone()

    def _compile_for_this_rank_alone(self) -> None:
        """Keep what torch compiles for this rank, by whoever's wish, from being loaded by another one.

        Names of process groups and this rank's offsets in a sharded tensor are constants of the compiled code, and
        torch's key of a distributed tensor names neither (pytorch issue 188390): with a warm cache another rank's code
        is taken.
        """
        from torch.compiler import config

        own = os.environ.get("TORCH_COMPILE_CACHE_KEY_TAG", "")
        meshes = [one for one in (self.devices, self.experts) if one is not None]
        names = [group.group_name for one in meshes for group in one.get_all_groups()]
        names += [group.group_name for group in self.groups.values() if group is not None]
        axes = [f"{axis} {getattr(self.plan, axis)}" for axis in ("pp", "dp", "shard", "cp", "tp", "ep")]
        config.cache_key_tag = " ".join([own, f"rank {self.rank}", *axes, *names])

    @classmethod
    def build(cls, plan: PlanSpec, rank: int, device: str = "cpu") -> "Mesh":
        """Make every group that the plan needs; all ranks call it together."""
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        layout = Layout(plan)
        mesh = cls(layout, rank)
        if layout.ranks > 1:
            sizes = (plan.pp, plan.dp // plan.shard, plan.shard * plan.cp, plan.tp)
            mesh.devices = init_device_mesh(device, sizes, mesh_dim_names=("pp", "replicate", "shard", "tp"))
        if plan.ep > 1:
            sizes = (plan.pp, plan.dp // plan.ep, plan.ep, plan.cp, plan.tp)
            mesh.experts = init_device_mesh(device, sizes, mesh_dim_names=("pp", "replicate", "ep", "cp", "tp"))
        members = (
            layout.end_ranks, layout.stage_ranks, layout.context_ranks, layout.tensor_ranks, layout.replica_ranks,
            layout.expert_ranks, layout.expert_replica_ranks,
        )  # fmt: skip
        for name, find in zip(GROUPS, members, strict=True):
            mesh.groups[name] = None
            # Every rank takes part in the making of every group, in one order.
            for ranks in sorted({tuple(find(layout.place(other))) for other in range(layout.ranks)}):
                if len(ranks) == 1:
                    continue
                group = dist.new_group(list(ranks), group_desc=name)
                if isinstance(group, dist.ProcessGroup) and rank in ranks:
                    mesh.groups[name] = group
        return mesh
