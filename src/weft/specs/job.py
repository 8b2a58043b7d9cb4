"""What can be written in a `job` file: one training, from its model to its place in the queue."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from weft.core.spec import Check, Duration, Spec
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds
from weft.specs.faults import RunFaultSpec
from weft.specs.site import Name
from weft.specs.software import SoftwareSpec

Count = Annotated[int, Field(ge=1, le=10**12)]
_LEAST_IN_GROUP = 2


def _groups_fit(experts: Any) -> str | None:
    if not experts.groups:
        return None
    if experts.count % experts.groups or experts.count // experts.groups < _LEAST_IN_GROUP:
        return f"{experts.groups} groups do not cut {experts.count} experts into equal parts of two and more"
    if not 1 <= experts.nodes <= experts.groups:
        return f"nodes = {experts.nodes} of {experts.groups} groups; write 1 to {experts.groups}"
    offered = experts.nodes * experts.count // experts.groups
    return None if experts.top_k <= offered else f"top_k = {experts.top_k} of the {offered} experts of a token's groups"


class ExpertsSpec(Spec):
    """Mixture-of-experts blocks."""

    count: Annotated[int, Field(ge=2, le=4096)]
    """Experts in a block."""
    top_k: Annotated[int, Field(ge=1, le=64)]
    """Experts that see each token."""
    ffn: Count
    """Inner width of one expert."""
    shared: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Inner width of what sees every token beside the experts; two shared experts are twice one's width."""
    dense_layers: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Blocks at the start that have the model's `ffn` and no experts."""
    nodes: Annotated[int, Field(ge=0, le=4096)] = 0
    """Most nodes that the experts of one token may be on (DeepSeek-V3's limited routing); 0 for no limit."""
    balance: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Weight of the load-balancing loss."""
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    """How the router's products become weights: over all experts, or each by itself (DeepSeek-V3)."""
    normalised: bool = True
    """Whether the weights of a token's experts are made to sum to one."""
    scale: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Factor on what the experts add."""
    correction: bool = False
    """Whether a bias counts where experts are chosen, not where they are weighted (DeepSeek-V3); it is not trained."""
    groups: Annotated[int, Field(ge=0, le=4096)] = 0
    """Equal groups of experts, of which a token may use `nodes`; 0 where experts are not grouped."""
    biases: bool = False
    """Whether experts' matrices have a bias (gpt-oss)."""
    clamped: bool = False
    """Whether what enters an expert's gate and product is clamped to a range first (gpt-oss)."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(("groups", "count", "nodes", "top_k"), _groups_fit),
        Check(
            ("top_k", "count"),
            lambda s: (
                None if s.top_k <= s.count else f"top_k = {s.top_k} of {s.count} experts; write at most {s.count}"
            ),
        ),
    )


class LatentSpec(Spec):
    """Latent attention (MLA): keys and values of all heads are made from one narrow vector."""

    kv_rank: Count
    """Width of that vector."""
    query_rank: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Width of the queries' own; 0 where queries come from the residual stream."""
    rope_width: Count
    """More width of each query and key, for the position; the model's head_width is without it."""
    value_width: Count
    """Width of a head's values."""


class RopeScalingSpec(Spec):
    """Rotary frequencies stretched for texts longer than the model first learned."""

    kind: Literal["llama3", "linear", "yarn"] = "llama3"
    """Llama 3.1's rule, all frequencies alike, or YaRN (arXiv 2309.00071)."""
    factor: Annotated[float, Field(ge=1)]
    """By how much the slow frequencies are stretched."""
    low: Annotated[float, Field(gt=0)] = 1.0
    """Fewest turns over the first length; frequencies below are stretched fully."""
    high: Annotated[float, Field(gt=0)] = 4.0
    """Turns over the first length from which frequencies stay as they are."""
    length: Count
    """Length in tokens that the model first learned; linear stretching does not ask."""
    gain: Annotated[float, Field(gt=0)] = 1.0
    """Factor on turned queries and keys (YaRN's attention factor)."""
    mscale_all_dim: Annotated[float, Field(ge=0)] = 0.0
    """How much latent attention's scores grow with the logarithm of the factor (DeepSeek)."""
    rounded: bool = True
    """Whether YaRN's blend begins and ends at whole planes."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            ("high", "low"),
            lambda s: None if s.low < s.high else f"high = {s.high} is not above low = {s.low}; write a larger one",
        ),
    )


def _heads_divide_width(model: Any) -> str | None:
    if model.head_width is not None or model.width % model.heads == 0:
        return None
    near = min((h for h in range(1, model.width + 1) if model.width % h == 0), key=lambda h: abs(h - model.heads))
    return f"{model.heads} heads do not divide a width of {model.width}; the nearest that do are {near}"


def _groups_divide_heads(model: Any) -> str | None:
    groups = model.kv_heads or model.heads
    return None if model.heads % groups == 0 else f"{groups} kv_heads do not divide {model.heads} heads"


def _heads_are_even(model: Any) -> str | None:
    if (model.head_width is None and model.width % model.heads) or model.learned_positions:
        return None  # the rule above speaks of it
    if model.latent is not None:
        return "latent.rope_width is odd, and positions are turned in pairs" if model.latent.rope_width % 2 else None
    each = model.head_width or model.width // model.heads
    if each % 2 == 0:
        return None
    return f"a head is {each} wide, and positions are turned in pairs; choose an even width"


def _gain_is_latent(model: Any) -> str | None:
    if model.rope_scaling is None or not model.rope_scaling.mscale_all_dim or model.latent is not None:
        return None
    return "rope_scaling.mscale_all_dim is latent attention's; leave it out"


class ModelSpec(Spec):
    """A decoder: its dimensions."""

    config: str | None = None
    """Path of a Hugging Face config.json, relative to this file, that gives the dimensions; keys written beside it win.
    Loading the file replaces it by what it says."""
    from_: str | None = Field(None, alias="from")
    """Folder of a Hugging Face model, relative to this file, whose weights the training begins with; its config.json
    gives the dimensions, and keys written beside it win. Loading the file replaces it by what it says."""
    layers: Annotated[int, Field(ge=1, le=10_000)]
    """Blocks."""
    width: Annotated[int, Field(ge=1, le=1_000_000)]
    """Width of the residual stream."""
    heads: Annotated[int, Field(ge=1, le=65_536)]
    """Attention heads."""
    kv_heads: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Heads of keys and values (grouped queries); all heads where absent."""
    head_width: Annotated[int, Field(ge=2, le=65_536)] | None = None
    """Width of one head; width / heads where absent."""
    ffn: Count
    """Inner width of the feed-forward block."""
    vocabulary: Annotated[int, Field(ge=2, le=10_000_000)] = 256
    """Tokens that exist; 256 for bytes."""
    tied: bool = True
    """Whether the output matrix is the embedding."""
    rope_base: Annotated[float, Field(gt=0)] = 10_000.0
    """Base of the rotary position encoding."""
    rope_scaling: RopeScalingSpec | None = None
    """How the rotary frequencies are stretched, where they are."""
    norm_epsilon: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """Added to the mean square in RMSNorm."""
    deviation: Annotated[float, Field(gt=0, le=1)] = 0.02
    """Standard deviation of matrices at the start; 0.02 suits widths of a thousand and more, narrow models start sooner
    with one over the root of the width."""
    qkv_bias: bool = False
    """Whether queries, keys and values have a bias (Qwen 2)."""
    qk_norm: bool = False
    """Whether each head's queries and keys pass an RMSNorm (Qwen 3)."""
    experts: ExpertsSpec | None = None
    """Mixture-of-experts blocks instead of dense ones."""
    gated: bool = True
    """Three feed-forward matrices (SwiGLU), or two (GPT)."""
    parallel: bool = False
    """Whether attention and feed-forward stand side by side on one input (PaLM, GPT-J)."""
    mtp: Annotated[int, Field(ge=0, le=16)] = 0
    """Further modules that predict one token more each (DeepSeek-V3)."""
    window: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Tokens that every other block sees (gpt-oss); 0 where all blocks see the whole text."""
    window_from: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """First block with a window: all from there on have it. Every other block where absent."""
    latent: LatentSpec | None = None
    """Latent attention instead of grouped queries."""
    norm: Literal["rms", "layer"] = "rms"
    """RMSNorm, or LayerNorm with a bias (GPT-2)."""
    biases: bool = False
    """Whether all matrices of a block have a bias (GPT-2)."""
    activation: Literal["silu", "gelu", "gelu_tanh", "relu"] = "silu"
    """Nonlinearity of the feed-forward block; gelu_tanh is GPT-2's, by the tangent."""
    learned_positions: Annotated[int, Field(ge=0, le=10**8)] = 0
    """Positions that have a learned vector (GPT-2); 0 for rotary ones."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of embeddings, attention weights and what blocks add that is dropped while it trains."""
    weights: str = ""
    """Folder of Hugging Face weights that the training begins with: what `from` has become."""
    planned: str = ""
    """Hugging Face's name of a kind of model that weft plans and does not train, where this is one."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            ("config",),
            lambda s: "config is read where a job file is loaded; give the dimensions themselves" if s.config else None,
        ),
        Check(
            ("from_",),
            lambda s: "from is read where a job file is loaded; write it in the file's [model]" if s.from_ else None,
        ),
        Check(("rope_scaling", "latent"), _gain_is_latent),
        Check(("heads", "width", "head_width"), _heads_divide_width),
        Check(("heads", "width", "head_width", "learned_positions", "latent"), _heads_are_even),
        Check(("kv_heads", "heads"), _groups_divide_heads),
        Check(
            ("experts", "layers"),
            lambda s: (
                f"experts.dense_layers = {s.experts.dense_layers} of {s.layers} layers; write fewer"
                if s.experts and s.experts.dense_layers >= s.layers
                else None
            ),
        ),
    )


class DataSpec(Spec):
    """What it learns from."""

    corpus: str = "python"
    """A file, or a folder of text files, rows (.jsonl, .parquet) or token files (.bin, .npy), relative to where the
    command runs; or "python": the sources of the standard library, which every machine has."""
    column: str = "text"
    """What a row of a JSONL or Parquet file calls its text; every row is a document of its own."""
    tokenizer: str = "bytes"
    """"bytes", or a tokenizer.json: a path, or a name in the corpus folder. Token files need none."""
    integers: Literal["uint16", "uint32"] = "uint16"
    """How .bin files hold their tokens, where no FILE.bin.json beside them says so."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the corpus that only evaluation sees."""


class BatchSpec(Spec):
    """What one step sees."""

    sequences: Count
    """Sequences in the global batch of a step."""
    micro: Count
    """Sequences in one micro-batch: the unit that is never split, whatever the number of ranks."""
    length: Count
    """Tokens in a sequence."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            ("sequences", "micro"),
            lambda s: (
                None
                if s.sequences % s.micro == 0
                else f"{s.sequences} sequences are not a whole number of micro-batches of {s.micro}"
            ),
        ),
    )


_NARROW_DECAY = 0.99


def _narrow_decays(optimizer: Any) -> str | None:
    if optimizer.state == "fp32" or optimizer.betas[1] <= _NARROW_DECAY:
        return None
    return (
        f"betas[1] = {optimizer.betas[1]} moves the second moment by less than bf16 can hold;"
        f" write at most {_NARROW_DECAY}, or state = 'fp32'"
    )


class OptimizerSpec(Spec):
    """AdamW, alone or with Muon, and the schedule."""

    kind: Literal["adamw", "muon"] = "adamw"
    """AdamW for everything, or Muon for the matrices of blocks and AdamW for the rest."""
    state: Literal["fp32", "bf16"] = "fp32"
    """What AdamW keeps its moments in; its arithmetic is fp32 either way."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Muon's momentum."""
    learning_rate: Annotated[float, Field(gt=0, le=10)] = 3e-4
    """Highest learning rate."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        (0.9, 0.95), strict=False
    )
    """Decay of the two moments."""
    epsilon: Annotated[float, Field(gt=0, lt=1)] = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Decoupled weight decay of matrices."""
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Largest norm of the gradient; 0 where it is not clipped."""
    warmup: Annotated[int, Field(ge=0)] = 0
    """Steps over which the learning rate rises."""
    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    """How it falls afterwards."""
    horizon: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Steps at which it has fallen to its end, counted from the first; the job's steps where absent. A run that goes on
    keeps the one that it was begun with, however many steps it is given."""
    final_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate at the end, as a share of the highest."""

    checks: ClassVar[tuple[Check, ...]] = (Check(("betas", "state"), _narrow_decays),)


class PlanSpec(Spec):
    """How the model is spread: sizes of the mesh axes, in ranks."""

    dp: Count = 1
    """Data-parallel replicas."""
    tp: Count = 1
    """Tensor-parallel ranks."""
    pp: Count = 1
    """Pipeline stages."""
    cp: Count = 1
    """Context-parallel ranks."""
    ep: Count = 1
    """Expert-parallel ranks; they are taken from the data-parallel ones, and where `[software] fold` says so from the
    tensor- and context-parallel ones too."""
    shard: Count = 1
    """Data-parallel ranks over which parameters are sharded: 1 replicates, dp shards fully, between is hybrid."""
    schedule: Literal["gpipe", "1f1b", "interleaved", "looped-bfs", "zero-bubble", "zbv", "dualpipev"] = "1f1b"
    """Order of the pipeline's micro-batches."""
    chunks: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Model chunks on each stage; what the schedule usually has where absent. Weft's trainer takes no other."""
    zero: Annotated[int, Field(ge=0, le=2)] = 0
    """What is sharded over all data-parallel ranks: 1 the optimizer's state, 2 gradients too; weights are `shard`'s."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations recomputed in the backward pass."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of the matrices; weights and sums stay in fp32."""
    exact: bool = True
    """Whether the bits must not depend on the number of data-parallel ranks."""
    compile: bool = False
    """Whether blocks and loss are compiled by torch: a slow first step, then a fifth more speed on a GPU."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            ("shard", "dp"),
            lambda s: None if s.dp % s.shard == 0 else f"shard = {s.shard} does not divide dp = {s.dp}",
        ),
        Check(
            ("ep", "dp", "tp", "cp"),
            lambda s: (
                None
                if s.dp * s.tp * s.cp % s.ep == 0
                else f"ep = {s.ep} does not divide the {s.dp * s.tp * s.cp} ranks of a stage (dp x tp x cp)"
            ),
        ),
    )

    @property
    def ranks(self) -> int:
        """Return the number of ranks that the plan needs."""
        return self.dp * self.tp * self.pp * self.cp


class CheckpointSpec(Spec):
    """What is kept."""

    every: Annotated[int, Field(ge=0)] = 100
    """Steps between checkpoints; 0 for none but the last."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 2
    """Complete checkpoints that stay."""
    patience: Duration = Picoseconds(30 * PICOSECONDS_PER_SECOND)
    """How long the last checkpoint is tried again where it cannot be written; then the run fails."""


class EvaluationSpec(Spec):
    """How it is judged."""

    every: Annotated[int, Field(ge=0)] = 0
    """Steps between evaluations; 0 for none."""
    sequences: Count = 16
    """Held-out sequences of one evaluation."""


class RecoverySpec(Spec):
    """What happens when a rank is lost."""

    policy: Literal["spare", "shrink", "wait"] = "shrink"
    """A spare takes over, the job goes on with one replica fewer, or it waits."""
    spares: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Ranks kept warm."""
    snapshots: Annotated[int, Field(ge=0)] = 10
    """Steps between snapshots in the memory of peers; 0 for none. Each costs a copy and digests of the whole state."""
    disk: Annotated[int, Field(ge=0)] = 10
    """Snapshots of which one also goes to the local disks; 0 for none."""
    domains: Annotated[int, Field(ge=1, le=100_000)] = 2
    """Failure domains into which the ranks on one machine are divided, as if they were nodes."""
    in_step: bool | None = None
    """Whether the others keep their processes and their state when one rank is lost, where replicas allow it. Unsaid,
    they do in `weft train`'s loop. Say true for a loop of one's own that keeps nothing which a late rank would lack."""
    restarts: Annotated[int, Field(ge=0, le=1_000_000)] = 100
    """Most restarts of one run; then it ends with an error that says so."""
    patience: Duration = Picoseconds(3600 * PICOSECONDS_PER_SECOND)
    """Longest wait for hardware to come back."""
    accept: tuple[str, ...] = Field((), strict=False)
    """Keys of the job, such as "optimizer.clip", that may have another value here than a run that is resumed was made
    with; from the resumed step on this value holds. A key that is not named here is refused."""


class GuardSpec(Spec):
    """What is checked while it trains."""

    checked: bool = False
    """Whether every collective is compared between ranks before it is made."""
    digest_every: Annotated[int, Field(ge=0)] = 0
    """Steps between comparisons of weights, optimizer, learning rate, seed and data over all ranks; 0 for none."""
    at_rest: bool = True
    """Whether, where digests are compared, state that changes between updates is found too."""
    replay_every: Annotated[int, Field(ge=0)] = 0
    """Steps between those in which micro-batches are recomputed by other replicas; 0 for none."""
    replay_batches: Annotated[int, Field(ge=0)] = 1
    """Micro-batches that are recomputed in such a step; 0 for all."""
    micro_test_every: Annotated[int, Field(ge=0)] = 0
    """Steps between small tests with a known answer; 0 for none."""
    abft: bool = False
    """Whether matrix products are checked by sums of their rows and columns."""


class JobSpec(Spec):
    """A training: model, data, batch, plan, what is kept, and its place in the queue."""

    name: Name
    """Short name; runs are called after it."""
    description: str = ""
    """One sentence for people."""
    team: Name = "default"
    """Team whose quota is charged."""
    priority: Annotated[int, Field(ge=0, le=1000)] = 100
    """Higher goes first."""
    time_limit: Duration | None = None
    """Most that it may run."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Root of everything random: weights, data order, dropout."""
    steps: Annotated[int, Field(ge=1, le=10**9)]
    """Steps of the whole training."""
    model: ModelSpec
    """What is trained."""
    data: DataSpec = DataSpec()
    """What it learns from."""
    batch: BatchSpec
    """What one step sees."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """How it learns."""
    plan: PlanSpec | Literal["auto"] = "auto"
    """How it is spread; "auto" lets the planner choose."""
    software: SoftwareSpec | None = None
    """Habits of the software that the planner assumes; our own trainer's where absent."""
    backend: Literal["auto", "mrc"] = "auto"
    """What carries bytes between ranks: "auto" takes gloo on CPUs and NCCL on GPUs; "mrc" takes weft's own transport
    over four planes on this machine, for CPUs."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """What is kept."""
    evaluation: EvaluationSpec = EvaluationSpec()
    """How it is judged."""
    recovery: RecoverySpec = RecoverySpec()
    """What happens when a rank is lost."""
    guard: GuardSpec = GuardSpec()
    """What is checked while it trains."""
    sinks: tuple[str, ...] = Field((), strict=False)
    """Where metrics go besides the run folder: "wandb", "mlflow", each where its package is installed."""
    faults: tuple[RunFaultSpec, ...] = Field((), strict=False)
    """What goes wrong on purpose; drawn from the job's seed where left open."""
