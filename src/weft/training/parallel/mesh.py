"""From a plan to a mesh: which rank stands where, who talks to whom, and whether the plan fits at all.

Ranks are counted with the tensor axis fastest, then context, data, pipeline: neighbours in number are neighbours in the
axis that talks most. Expert-parallel ranks are consecutive data-parallel ones. The arithmetic and the checks need no
torch; `Mesh.build` makes the process groups.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from weft.core.errors import UsageError
from weft.specs.job import BatchSpec, JobSpec, ModelSpec, PlanSpec

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "looped-bfs": 2, "zero-bubble": 2, "zbv": 2, "dualpipev": 2}
"""Pipeline stages that each rank holds, by schedule."""


_SPLIT = ("zero-bubble", "zbv", "dualpipev")


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


def _nearest(wanted: int, whole: int) -> int:
    """Return the divisor of `whole` that is nearest to `wanted`."""
    return min((n for n in range(1, whole + 1) if whole % n == 0), key=lambda n: (abs(n - wanted), n))


def _model_problems(plan: PlanSpec, model: ModelSpec) -> list[str]:
    problems: list[str] = []
    stages = plan.pp * (CHUNKS[plan.schedule] if plan.pp > 1 else 1)
    if stages > model.layers:
        fits = model.layers // (stages // plan.pp)
        problems.append(
            f"pp = {plan.pp} with schedule {plan.schedule!r} needs {stages} stages but there are {model.layers} layers;"
            f" write pp = {fits} or less"
        )
    kv_heads = model.kv_heads or model.heads
    for heads, what in ((model.heads, "heads"), (kv_heads, "kv_heads")):
        if heads % plan.tp:
            problems.append(
                f"tp = {plan.tp} does not divide {heads} {what}; the nearest that does is {_nearest(plan.tp, heads)}"
            )
    inner, word = (model.experts.ffn, "experts.ffn") if model.experts else (model.ffn, "ffn")
    for size, what in ((inner, word), (model.vocabulary, "vocabulary")):
        if size % plan.tp:
            problems.append(
                f"tp = {plan.tp} does not divide {what} = {size}; the nearest that does is {_nearest(plan.tp, size)}"
            )
    if plan.ep > 1 and model.experts is None:
        problems.append(f"ep = {plan.ep} but the model has no experts; write ep = 1")
    elif model.experts is not None and model.experts.count % plan.ep:
        near = _nearest(plan.ep, model.experts.count)
        problems.append(
            f"ep = {plan.ep} does not divide {model.experts.count} experts; the nearest that does is {near}"
        )
    return problems


def _batch_problems(plan: PlanSpec, batch: BatchSpec) -> list[str]:
    problems: list[str] = []
    count = batch.sequences // batch.micro
    if count < plan.dp:
        problems.append(
            f"dp = {plan.dp} but a step has {count} micro-batches; write dp = {count} or less, or a smaller micro"
        )
    elif (plan.shard > 1 or plan.ep > 1) and count % plan.dp:
        word = "shard" if plan.shard > 1 else "ep"
        problems.append(
            f"{count} micro-batches do not divide over dp = {plan.dp}, which {word} > 1 needs;"
            f" the nearest that does is dp = {_nearest(plan.dp, count)}"
        )
    pieces = (2 * plan.cp if plan.cp > 1 else 1) * plan.tp
    if batch.length % pieces:
        down = batch.length - batch.length % pieces
        why = f"tp = {plan.tp}" if plan.cp == 1 else f"tp = {plan.tp} and cp = {plan.cp} in two halves"
        problems.append(
            f"length = {batch.length} does not divide by {pieces} ({why});"
            f" the nearest that do are {down or pieces} and {down + pieces}"
        )
    rounds = max(count // plan.dp // plan.pp, 1)
    if (
        plan.pp > 1
        and plan.schedule in ("interleaved", "zero-bubble")
        and (count % plan.dp or count // plan.dp % rounds)
    ):
        problems.append(
            f"schedule {plan.schedule!r} needs a number of micro-batches for each rank that divides into rounds of pp"
            f" = {plan.pp}; there are {count} over dp = {plan.dp}; write a multiple of {plan.dp * plan.pp}"
        )
    least = {"1f1b": plan.pp, "dualpipev": 2 * plan.pp}.get(plan.schedule, 1) if plan.pp > 1 else 1
    if plan.dp <= count < plan.dp * least:
        problems.append(
            f"schedule {plan.schedule!r} needs at least {least} micro-batches for each rank, there are"
            f" {count // plan.dp}; write dp = {max(1, count // least)} or less, or schedule = 'gpipe'"
        )
    return problems


def _joint_problems(plan: PlanSpec) -> list[str]:
    problems: list[str] = []
    if plan.exact and plan.shard > 1 and plan.pp > 1 and plan.schedule in _SPLIT:
        problems.append(
            f"shard > 1 under schedule {plan.schedule!r} sums in an order of its own; write schedule = 'interleaved',"
            " or exact = false"
        )
    if plan.pp > 1 and plan.recompute != "none" and plan.schedule in _SPLIT:
        problems.append(
            f"schedule {plan.schedule!r} runs backward in two parts, which recompute = {plan.recompute!r} cannot;"
            " write recompute = 'none', or schedule = 'interleaved'"
        )
    if plan.pp > 1 and plan.compile and plan.schedule in _SPLIT:
        problems.append(
            f"schedule {plan.schedule!r} runs backward in two parts, which compiled blocks cannot; write compile ="
            " false, or schedule = 'interleaved'"
        )
    if plan.shard > 1 and plan.ep > 1:
        problems.append(f"shard = {plan.shard} and ep = {plan.ep} do not go together; write one of them as 1")
    return problems


def problems(plan: PlanSpec, model: ModelSpec, batch: BatchSpec, ranks: int | None = None) -> list[str]:
    """Return every reason why `plan` does not fit, each with the nearest that would."""
    found = _model_problems(plan, model) + _batch_problems(plan, batch) + _joint_problems(plan)
    if ranks is not None and ranks != plan.ranks:
        product = f"dp {plan.dp} x tp {plan.tp} x pp {plan.pp} x cp {plan.cp} = {plan.ranks}"
        other, rest = divmod(ranks, plan.ranks // plan.dp)
        remedy = f"write dp = {other}" if other and not rest else f"start {plan.ranks} ranks"
        found.insert(0, f"the plan needs {product} ranks but {ranks} are there; {remedy}")
    return found


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
        members = {
            "ends": layout.end_ranks, "pp": layout.stage_ranks, "cp": layout.context_ranks, "tp": layout.tensor_ranks,
            "replicas": layout.replica_ranks, "ep": layout.expert_ranks, "expert_replicas": layout.expert_replica_ranks,
        }  # fmt: skip
        for name, find in members.items():
            mesh.groups[name] = None
            # Every rank takes part in the making of every group, in one order.
            for ranks in sorted({tuple(find(layout.place(other))) for other in range(layout.ranks)}):
                if len(ranks) == 1:
                    continue
                group = dist.new_group(list(ranks), group_desc=name)
                if isinstance(group, dist.ProcessGroup) and rank in ranks:
                    mesh.groups[name] = group
        return mesh
