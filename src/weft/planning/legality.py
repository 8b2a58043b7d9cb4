"""Which plans are legal: what splits evenly, which schedules a pipeline can run, and what weft's trainer can start.

The planner asks for even splits alone, because a plan may be meant for any trainer: `tensor_sizes`, `context_sizes`,
`pipeline_sizes`, `schedules`. Weft's own trainer asks for more, and for less in two places; `problems` says what is
wrong with a plan, and what would be right. The two differ in exactly this:

- the trainer also splits key-value heads and the vocabulary over tp, and a sequence over tp x cp, and cannot do
  recomputation, compiled blocks or exact sums of shards with a backward pass in two parts, nor shards with experts, nor
  ZeRO 1 and 2, nor other numbers of chunks than its own;
- the trainer takes any number of replicas that leaves each a micro-batch, any number of context ranks, and stages of
  unequal length; for 1F1B it needs as many micro-batches as stages.
"""

import bisect
import math
from collections.abc import Sequence
from functools import cache

from weft.planning.cost_model.plans import SCHEDULES, SHARD_WEIGHTS, Dimensions, Plans, spec_of
from weft.specs.job import BatchSpec, JobSpec, ModelSpec, PlanSpec
from weft.specs.software import SoftwareSpec

CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "looped-bfs": 2, "zero-bubble": 2, "zbv": 2, "dualpipev": 2}
"""Pipeline stages that each rank of weft's trainer holds, by schedule."""
LARGEST_CONTEXT = 64
_DEEPEST_CHUNKS = 12
_SPLIT_BACKWARD = ("zero-bubble", "zbv", "dualpipev")


def divisors(number: int, most: int) -> list[int]:
    """Return the divisors of `number` up to `most`."""
    found = _all_divisors(number)
    return list(found[: bisect.bisect_right(found, most)])


@cache
def _all_divisors(number: int) -> tuple[int, ...]:
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return tuple(sorted({each for pair in small for each in (pair, number // pair)}))


def tensor_sizes(model: Dimensions, domain_gpus: int) -> list[int]:
    """Return the tensor-parallel sizes that split the model and a scale-up domain."""
    whole = [each for each in divisors(model.heads, domain_gpus) if model.ffn % each == 0]
    # What does not divide the domain would cut a group in two, or leave GPUs over.
    return [each for each in whole if domain_gpus % each == 0]


def context_sizes(length: int) -> list[int]:
    """Return the context-parallel sizes that split a sequence into two equal parts for each rank."""
    powers = [2**power for power in range(LARGEST_CONTEXT.bit_length())]
    return [each for each in powers if length % pieces_of_sequence(each) == 0]


def pipeline_sizes(layers: int) -> list[int]:
    """Return the numbers of stages that split the layers."""
    # Two slots more are the embedding and the output, each counted as a layer (Llama 3, arXiv 2407.21783, 3.3.2).
    both_ends = {each for each in divisors(layers + 2, layers) if each > 1}
    # Powers of two whose last stage is shorter, as runs of DeepSeek-V3's 61 layers have them.
    powers = {2**power for power in range(1, layers.bit_length())}
    short_end = {each for each in powers if -(-layers // each) * (each - 1) < layers}
    return sorted({*divisors(layers, layers), *both_ends, *short_end})


def schedules(layers: int, pp: int, rounds: int) -> list[tuple[int, Sequence[int]]]:
    """Return the schedules that a pipeline of `pp` stages can run with `rounds` micro-batches, with their chunks."""
    plain, interleaved, zero_bubble, v_shape = range(len(SCHEDULES))
    if pp == 1:
        return [(plain, (1,))]
    each = -(-layers // pp)
    found: list[tuple[int, Sequence[int]]] = [(plain, (1,)), (zero_bubble, (1,))]
    if rounds % pp == 0:
        found.append((interleaved, divisors(each, _DEEPEST_CHUNKS)[1:]))
    if each % 2 == 0 and rounds >= 2 * pp:
        found.append((v_shape, (2,)))
    return found


def pieces_of_sequence(cp: int) -> int:
    """Return into how many equal pieces context parallelism cuts a sequence: an early and a late one for each rank."""
    # A token sees all before it, so that one early and one late piece together make equal work.
    return 2 * cp if cp > 1 else 1


def _nearest(wanted: int, whole: int) -> int:
    """Return the divisor of `whole` that is nearest to `wanted`."""
    return min(divisors(whole, whole), key=lambda each: (abs(each - wanted), each))


def _model_problems(plan: PlanSpec, model: ModelSpec) -> list[str]:
    problems: list[str] = []
    stages = plan.pp * (CHUNKS[plan.schedule] if plan.pp > 1 else 1)
    if stages > model.layers:
        fits = model.layers // (stages // plan.pp)
        problems.append(
            f"pp = {plan.pp} with schedule {plan.schedule!r} needs {stages} stages but there are {model.layers} layers;"
            f" write pp = {fits} or less"
        )
    problems += _beyond_the_trainer(plan, model)
    inner = ("experts.ffn", model.experts.ffn) if model.experts else ("ffn", model.ffn)
    for what, size in (("heads", model.heads), ("kv_heads", model.kv_heads or model.heads), inner,
                       ("vocabulary", model.vocabulary)):  # fmt: skip
        if size % plan.tp:
            whole = f"{size} {what}" if what.endswith("heads") else f"{what} = {size}"
            problems.append(
                f"tp = {plan.tp} does not divide {whole}; the nearest that does is {_nearest(plan.tp, size)}"
            )
    if plan.ep > 1 and model.experts is None:
        problems.append(f"ep = {plan.ep} but the model has no experts; write ep = 1")
    elif model.experts is not None and model.experts.count % plan.ep:
        near = _nearest(plan.ep, model.experts.count)
        problems.append(
            f"ep = {plan.ep} does not divide {model.experts.count} experts; the nearest that does is {near}"
        )
    return problems


def _beyond_the_trainer(plan: PlanSpec, model: ModelSpec) -> list[str]:
    """Return what can be planned for other software and not be trained by weft's own."""
    experts = model.experts
    found = {
        f"models of type {model.planned}": bool(model.planned),
        "model.parallel": model.parallel,
        "model.mtp": model.mtp > 0,
        "model.window without window_from": model.window > 0 and model.window_from is None,
        "experts without gates": experts is not None and not model.gated,
        "experts with biases": experts is not None and (model.biases or experts.biases),
        "experts.clamped": experts is not None and experts.clamped,
        "experts.nodes without groups": experts is not None and experts.nodes > 0 and not experts.groups,
        "plan.zero (write plan.shard)": plan.zero > 0,
        f"plan.chunks other than {CHUNKS[plan.schedule]}": plan.chunks not in (None, CHUNKS[plan.schedule]),
    }
    problems = [f"weft's trainer does not have {what}; it can be planned only" for what, so in found.items() if so]
    problems += _unsplit(plan, model)
    if plan.dp % plan.ep:
        problems.append(f"ep = {plan.ep} does not divide dp = {plan.dp}, which weft's trainer needs")
    return problems


def _unsplit(plan: PlanSpec, model: ModelSpec) -> list[str]:
    """Return which of a model's parts weft's trainer has, and does not split over an axis of the plan."""
    plain = {
        "model.latent": model.latent is not None,
        "model.window": model.window > 0,
        "model.dropout": model.dropout > 0,
    }
    whole = {
        "model.learned_positions": model.learned_positions > 0,
        "model.biases": model.biases,
        "model.norm = 'layer'": model.norm == "layer",
        "experts.shared": model.experts is not None and model.experts.shared > 0,
    }
    axes = {"tp": plain | whole, "cp": plain, "pp": {"model.dropout": model.dropout > 0}}
    problems = [
        f"{axis} = {getattr(plan, axis)}, over which weft's trainer does not split {what}; write {axis} = 1"
        for axis, parts in axes.items()
        for what, so in parts.items()
        if so and getattr(plan, axis) > 1
    ]
    frozen = model.experts is not None and model.experts.correction
    if frozen and plan.pp > 1 and plan.schedule in _SPLIT_BACKWARD:
        problems.append(
            f"schedule {plan.schedule!r} runs backward in two parts, which experts.correction, being frozen, cannot;"
            " write schedule = 'interleaved'"
        )
    if model.dropout and plan.recompute != "none":
        problems.append(
            f"recompute = {plan.recompute!r} would draw model.dropout anew in backward; write recompute = 'none'"
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
    pieces = pieces_of_sequence(plan.cp) * plan.tp
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
    if plan.exact and plan.shard > 1 and plan.pp > 1 and plan.schedule in _SPLIT_BACKWARD:
        problems.append(
            f"shard > 1 under schedule {plan.schedule!r} sums in an order of its own; write schedule = 'interleaved',"
            " or exact = false"
        )
    if plan.pp > 1 and plan.recompute != "none" and plan.schedule in _SPLIT_BACKWARD:
        problems.append(
            f"schedule {plan.schedule!r} runs backward in two parts, which recompute = {plan.recompute!r} cannot;"
            " write recompute = 'none', or schedule = 'interleaved'"
        )
    if plan.pp > 1 and plan.compile and plan.schedule in _SPLIT_BACKWARD:
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
    if model.learned_positions and batch.length > model.learned_positions:
        most = model.learned_positions
        found.append(f"length = {batch.length}, but the model has {most} learned positions; write {most} or less")
    if ranks is not None and ranks != plan.ranks:
        product = f"dp {plan.dp} x tp {plan.tp} x pp {plan.pp} x cp {plan.cp} = {plan.ranks}"
        other, rest = divmod(ranks, plan.ranks // plan.dp)
        remedy = f"write dp = {other}" if other and not rest else f"start {plan.ranks} ranks"
        found.insert(0, f"the plan needs {product} ranks but {ranks} are there; {remedy}")
    return found


def refusals(plans: Plans, row: int, job: JobSpec, practice: SoftwareSpec) -> list[str]:
    """Return why weft's trainer does not run one of the planner's plans for a job, in that plan's micro-batches."""
    batch = job.batch.model_copy(update={"micro": int(plans.micro[row])})
    return problems(spec_of(plans, row, practice), job.model, batch)


def is_trained(plans: Plans, row: int, job: JobSpec, practice: SoftwareSpec) -> bool:
    """Return whether weft's trainer runs one of the planner's plans for a job."""
    # The first question is asked of a hundred thousand rows; it alone refuses most.
    return plans.zero[row] in (0, SHARD_WEIGHTS) and not refusals(plans, row, job, practice)
