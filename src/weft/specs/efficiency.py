"""What real kernels and software reach of a data sheet: in the catalogue of GPU types, or measured for a site."""

from typing import Annotated

from pydantic import Field

from weft.core.spec import Spec

Share = Annotated[float, Field(gt=0, le=1)]
Ratio = Annotated[float, Field(gt=0)]
Microseconds = Annotated[float, Field(ge=0)]


class ProductsSpec(Spec):
    """Measured matrix products (m x k)(k x n) of one precision, in the form that fits them.

    Time = operations / (peak x data sheet) + what is read and written beside them + launch.
    """

    peak: Share
    """Share of the data sheet's speed that an endless product reaches by itself."""
    left: Annotated[float, Field(ge=0)]
    """Time for each value of m x k, in bytes at the memory's full rate."""
    right: Annotated[float, Field(ge=0)]
    """Time for each value of k x n, likewise."""
    out: Annotated[float, Field(ge=0)]
    """Time for each value of m x n, likewise."""
    launch_us: Microseconds
    """Time of the smallest one."""
    error: Annotated[float, Field(ge=0)]
    """Mean relative error of this form over the measured products."""


class EfficiencySpec(Spec):
    """What real kernels reach of a data sheet."""

    bf16: ProductsSpec | None = None
    """Measured products in bf16; where absent, `matmul` and `small` say what is known."""
    fp8: ProductsSpec | None = None
    """Measured products in fp8 with one scale for a tensor."""
    fp8_block: ProductsSpec | None = None
    """Measured products in fp8 with scales for blocks."""
    nvfp4: ProductsSpec | None = None
    """Measured products in fp4 with scales for blocks."""
    sustained: Share = 1.0
    """Share of the speed of single measured products that lasts inside a training step: clocks fall under the power
    limit, and kernels do not follow each other without gaps."""
    pace: Ratio = 1.0
    """Time of a step's compute on this site over what the rest says, as `weft calibrate` finds it from a run."""
    quantise: Annotated[float, Field(ge=0)] = 7.5
    """Memory traffic, in bytes at the full rate, with which one value is measured, scaled, rounded and turned for a
    quantised product and its gradients."""
    matmul: Share
    """Share of the matrix speed that a very large product reaches inside a training step."""
    small: Annotated[float, Field(ge=0)]
    """Size at which a product's shortest side halves its speed: share = matmul / (1 + small / shortest side)."""
    attention: Share
    """Share of the bf16 matrix speed that a fused attention kernel reaches, forward, in long texts."""
    attention_backward: Share | None = None
    """The same of the backward pass; as forward where absent."""
    attention_half: Annotated[float, Field(ge=0)] = 0.0
    """Length of text at which the forward kernel reaches half of its share; the backward pass takes twice that."""
    memory: Share
    """Share of the memory bandwidth that element-wise kernels reach."""
    elementwise: Ratio = 1.0
    """Speed of a block's element-wise work and of the loss as a ratio of that: below 1 where kernels are not fused,
    above where caches hold what they work on."""
    update: Ratio = 1.0
    """Speed of what is done for each parameter, the update and sums of gradients, as a ratio of the same."""
    sums_bytes: Annotated[float, Field(ge=0)] = 0.0
    """Memory traffic for one parameter with which the gradient of each micro-batch is taken and added, where the
    products do not do it themselves."""
    link: Share
    """Share of the scale-up bandwidth that a collective reaches."""
    near_us: Microseconds = 0.0
    """Software time of one round of a collective inside the scale-up domain, besides the link's latency."""
    pieces_us: Annotated[float, Field(ge=0)] = 0.0
    """Cost of cutting a collective into pieces there: it takes the root of this times its bare time longer."""
    nic: Share
    """Share of the NIC's payload rate that a collective reaches."""
    message_us: Microseconds
    """Software and NIC time of one small message between nodes, besides the way."""
    kernel_us: Microseconds
    """Time of the smallest kernel."""
    block_us: Microseconds = 0.0
    """Time of the software itself for one block and micro-batch, both passes, where compute does not hide it."""
    token_us: Microseconds = 0.0
    """Time of one token in one block, one pass, besides its bytes: norms and rotations go by rows, however short they
    are. Embedding and loss take it once more."""
    tensor_us: Microseconds = 0.0
    """Time of the software, more, for a block whose matrices are cut over tensor-parallel ranks; embedding and head
    take it once."""
    tensor_bytes: Annotated[float, Field(ge=0)] = 0.0
    """Memory traffic there for one value of the residual stream, besides the exchange itself: copies into buffers and
    out of them."""
    shard_us: Microseconds = 0.0
    """Time of the software, more, for a block whose weights are gathered and gradients scattered with each micro-batch
    (ZeRO 3); embedding and head take it once."""
    shard_bytes: Annotated[float, Field(ge=0)] = 0.0
    """Memory traffic for one parameter with which its weights are gathered and its gradient is scattered for each
    micro-batch, besides the exchange itself: copies into buffers and out of them, and sums."""
    stage_us: Microseconds = 0.0
    """Time of the software for one slot of a pipeline's schedule: a micro-batch comes, and another one goes."""
    crowding: Annotated[float, Field(ge=0)] = 0.0
    """How much longer a block's software and element-wise work take, as a share, where stages of a pipeline take turns
    on a processor and its caches."""
    micro_us: Microseconds = 0.0
    """Time of the software itself for one micro-batch besides its blocks: input, embedding, loss."""
    update_us: Microseconds = 0.0
    """Time of the software itself for one block and step: its tensors are updated, measured and summed one by one."""
    spread_us: Microseconds = 0.0
    """The same, more, where its tensors are cut or in shards: the software looks up for each how it is spread."""
    step_us: Microseconds = 0.0
    """Time of the software itself for one step besides its micro-batches: small exchanges, update, metrics."""
    overlaps: bool = True
    """Whether communication runs beside compute; not where a processor does both."""
    ranks_per_core: Annotated[float, Field(ge=1)] = 1.0
    """Ranks that share one processor, each measured while all are busy; a rank that waits then leaves it to others."""
    usable: Share
    """Share of the memory that a job may fill: the rest is context, communication buffers and fragments."""
    source: str
    """Where these figures come from."""
