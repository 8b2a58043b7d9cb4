"""What can be written in a job file's `[software]` table: habits of the training software that a plan is made for.

The planner reads them; weft's own trainer has habits of its own and does not. A preset names a published code base and
year; keys beside it win. Presets say what papers and recipes say, and nothing here is fitted to one run.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from weft.core.spec import Check, Spec

Precision = Literal["fp32", "bf16", "fp8", "fp8-block", "mxfp8", "nvfp4"]
"""Arithmetic of the products: fp8 with one scale for a tensor, fp8 in blocks (DeepSeek-V3), and MX or NV formats."""
PresetName = Literal[
    "weft", "megatron-2021", "megatron-2022", "megatron-2024", "megascale", "torchtitan", "nemo-2025", "megatron-2026"
]


class SoftwareSpec(Spec):
    """Habits of the training software: facts about a code base, the same for every size of run."""

    preset: PresetName | None = None
    """A published code base whose habits are taken; the keys beside it win."""
    precision: Precision | None = None
    """Arithmetic of the blocks' products, where it is not the plan's own; attention and the output stay in bf16."""
    flash: bool = True
    """Attention in one fused, causal kernel that keeps no scores."""
    lean: bool = False
    """Neither norms' outputs nor activations' products are kept: fused backward kernels make them again."""
    fused_loss: bool = False
    """The loss keeps no copy of the logits in full precision."""
    sequence_parallel: bool = True
    """Norms and dropout are split over the tensor-parallel ranks."""
    dropout: bool = False
    """Dropout after both blocks, with masks kept for the backward pass."""
    overlap_tensor: bool = True
    """Tensor-parallel communication runs under the products next to it, in pieces."""
    overlap_tensor_backward: bool = True
    """In the backward pass, communication runs under the products for the weights."""
    overlap_context: bool = True
    """Keys and values travel around the ring while attention works on those that have come."""
    overlap_data: bool = True
    """Gradients are reduced and weights gathered while other layers compute."""
    overlap_pipeline: bool = True
    """Stages send while they compute; only the first and last sends of a step are waited for."""
    overlap_expert: bool = False
    """The exchange of experts runs under the compute of another micro-batch (DeepSeek-V3's DualPipe)."""
    overlap_far_expert: bool = False
    """The same, only where experts leave their scale-up domain: inside one, recipes leave the exchange exposed."""
    gradient_bytes: Annotated[int, Field(ge=2, le=4)] = 4
    """Bytes of a gradient that is kept and reduced."""
    fused_sums: bool = False
    """The product that makes a weight's gradient adds it to what is there; otherwise the gradient is made, turned into
    the precision that is kept, and added."""
    fused_experts: bool = True
    """Biases and clamps of experts go with the kernels beside them. Megatron clamps apart, and adds each expert's bias
    to its own rows in full precision and puts the rows together again (Megatron-LM, transformer/moe/experts.py,
    `_apply_bias`, and fusions/fused_bias_geglu.py)."""
    cuda_graphs: bool = False
    """Kernels are launched by a recorded graph, so that the software's own time does not show."""
    host_us: Annotated[float, Field(ge=0)] = 0.0
    """Time in which the software launches one block's kernels, both passes: a block takes no less, unless a graph was
    recorded. Megatron takes 5 ms (Llama 3 70B, tensor-parallel over 8 B200, SimuMax 1.2, November 2026)."""
    host_expert_us: Annotated[float, Field(ge=0)] = 0.0
    """The same, more, for a block with experts: router, permutations, and one product after the other. A block of
    DeepSeek-V2 takes Megatron 19.5 ms in all (8 B200, SimuMax 1.2); what is above a dense block's is halved between
    experts and latent attention, which have about as many kernels."""
    host_latent_us: Annotated[float, Field(ge=0)] = 0.0
    """The same, more, for latent attention: its narrow products, norms and copies."""
    fold: bool = False
    """Expert-parallel ranks are taken from all ranks of a stage, tensor-parallel ones too, and experts are not cut."""
    dispatch_bytes: Annotated[int, Field(ge=1, le=4)] = 2
    """Bytes of a value on its way to its expert (1: fp8 dispatch); answers come back in two."""
    deduplicate: bool = False
    """A token crosses the fabric once to each scale-up domain that has experts of it, and is handed on inside (DeepEP,
    HybridEP; DeepSeek-V3, arXiv 2412.19437, section 3.2.2); otherwise once for each expert."""
    imbalance: Annotated[float, Field(ge=0, le=100)] = 0.2
    """By how much the busiest expert-parallel rank has more tokens than the average one, as a share. Default: steps of
    DeepSeek-V2 and V3 on 8 B200 (SimuMax 1.2, November 2026)."""
    one_nic: bool = False
    """Collectives between nodes use one NIC of each node, not all."""
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.004
    """Tail of one rank's step time, as a share: the slowest of N takes longer by this times the logarithm of N."""
    price: Annotated[float, Field(ge=0, le=1)] = 0.15
    """What hidden traffic costs the compute above it, as a share of its time: it takes cores and memory bandwidth."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            ("gradient_bytes",),
            lambda s: "gradient_bytes = 3 is no format; write 2 or 4" if s.gradient_bytes == 3 else None,  # noqa: PLR2004
        ),
    )

    @property
    def fp32(self) -> bool:
        """Return whether everything is in full precision: weights are their own master copy."""
        return self.precision == "fp32"

    @property
    def quantised(self) -> bool:
        """Return whether the blocks' products take values of a byte or less."""
        return self.precision not in (None, "fp32", "bf16")

    @property
    def gathered_bytes(self) -> float:
        """Return the bytes of an activation that tensor-parallel ranks gather: as the product takes it, with scales.

        TransformerEngine gathers what is rounded already (pytorch/distributed.py, `_all_gather_fp8`, `_mxfp8`,
        `_nvfp4`); what products give is summed in half precision.
        """
        narrow = {"fp8": 1.0, "fp8-block": 1.03, "mxfp8": 1.03, "nvfp4": 0.56}
        return narrow.get(self.precision or "bf16", float(self.value_bytes))

    @property
    def value_bytes(self) -> int:
        """Return the bytes of a weight or an activation outside of quantised products."""
        return 4 if self.fp32 else 2

    @property
    def optimizer_bytes(self) -> int:
        """Return the bytes that AdamW keeps for a parameter: two moments, and an fp32 copy of a narrower weight."""
        return 8 if self.fp32 else 12

    def resolved(self) -> "SoftwareSpec":
        """Return the habits with the preset's values where nothing is written."""
        if self.preset is None:
            return self
        own = {name: getattr(self, name) for name in self.model_fields_set}
        return PRESETS[self.preset].model_copy(update=own)


_BARE_2021 = SoftwareSpec(
    precision="bf16", flash=False, sequence_parallel=False, dropout=True, overlap_tensor=False,
    overlap_tensor_backward=False, overlap_context=False, overlap_data=False, overlap_pipeline=False, fused_sums=True,
)  # fmt: skip

_NEMO_2025 = SoftwareSpec(
    precision="bf16", gradient_bytes=2, fold=True, fused_loss=True, fused_sums=True, deduplicate=True,
    fused_experts=False, host_us=5000.0, host_expert_us=7000.0, host_latent_us=7500.0,
)  # fmt: skip

PRESETS: dict[str, SoftwareSpec] = {
    "weft": SoftwareSpec(),
    # Narayanan 2021 (arXiv 2104.04473, section 4): fused softmax and GeLU, nothing hidden, fp16 gradients.
    "megatron-2021": _BARE_2021.model_copy(update={"gradient_bytes": 2}),
    # Korthikanti 2022 (arXiv 2205.05198): fp32 gradients (18 bytes a parameter); with sequence parallelism the
    # backward pass hides what the weights' products do not wait for (section 4.2.2).
    "megatron-2022": _BARE_2021.model_copy(update={"sequence_parallel": True, "overlap_tensor_backward": True}),
    # Llama 3 (arXiv 2407.21783, section 3.3.2) and Megatron-Core's defaults of that year: gradients overlapped,
    # asynchronous sends, tensors freed as soon as nothing needs them; tensor-parallel communication is not hidden.
    "megatron-2024": SoftwareSpec(
        precision="bf16",
        lean=True,
        overlap_tensor=False,
        overlap_tensor_backward=False,
        overlap_context=False,
        fold=True,
        fused_sums=True,
        fused_experts=False,
        host_us=5000.0,
        host_expert_us=7000.0,
        host_latent_us=7500.0,
    ),
    # MegaScale (arXiv 2402.15627, section 3.2): communication of all three axes hidden, fp32 gradients.
    "megascale": SoftwareSpec(precision="bf16", fused_sums=True, host_us=5000.0),
    # torchtitan (arXiv 2410.06511): FSDP2 with prefetch and fp32 reduction, compiled blocks; async TP is an option.
    "torchtitan": SoftwareSpec(precision="bf16", lean=True, overlap_tensor=False, overlap_tensor_backward=False),
    # NVIDIA's recipes of 2025: overlap for tensor, data and pipeline communication, bf16 gradients, fused loss, DeepEP.
    "nemo-2025": _NEMO_2025,
    # Megatron-Bridge's recipes since 25.11 (scripts/performance/configs): attention, router and permutations are
    # recorded in graphs, experts' products are not (cuda_graph_scope); far exchanges hide (moe_a2a_overlap).
    "megatron-2026": _NEMO_2025.model_copy(update={"overlap_far_expert": True, "host_us": 0.0, "host_latent_us": 0.0}),
}
"""Habits by name."""
