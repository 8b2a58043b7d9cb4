"""What real kernels and software reach of a data sheet: in the catalogue of GPU types, or measured for a site."""

from typing import Annotated

from pydantic import Field

from weft.core.spec import Spec

Share = Annotated[float, Field(gt=0, le=1)]


class EfficiencySpec(Spec):
    """What real kernels reach of a data sheet."""

    matmul: Share
    """Share of the matrix speed that a very large product reaches inside a training step."""
    small: Annotated[float, Field(ge=0)]
    """Size at which a product's shortest side halves its speed: share = matmul / (1 + small / shortest side)."""
    attention: Share
    """Share of the bf16 matrix speed that a fused attention kernel reaches."""
    memory: Share
    """Share of the memory bandwidth that element-wise kernels reach."""
    elementwise: Share = 1.0
    """Share of that which a block's element-wise work reaches, where kernels are not fused."""
    link: Share
    """Share of the scale-up bandwidth that a collective reaches."""
    nic: Share
    """Share of the NIC's payload rate that a collective reaches."""
    message_us: Annotated[float, Field(ge=0)]
    """Software and NIC time of one small message between nodes, besides the way, in microseconds."""
    kernel_us: Annotated[float, Field(ge=0)]
    """Time of the smallest kernel in microseconds."""
    block_us: Annotated[float, Field(ge=0)] = 0.0
    """Time of the software itself for one block and micro-batch, both passes, where compute does not hide it."""
    step_us: Annotated[float, Field(ge=0)] = 0.0
    """Time of the software itself for one step besides its blocks: input, loss, exchange, update, guards."""
    ranks_per_core: Annotated[float, Field(ge=1)] = 1.0
    """Ranks that share one processor, each measured while all are busy; a rank that waits then leaves it to others."""
    usable: Share
    """Share of the memory that a job may fill: the rest is context, communication buffers and fragments."""
    source: str
    """Where these figures come from."""
