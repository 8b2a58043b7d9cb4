"""The catalogue of GPU types: data sheets, and the share of them that real kernels reach.

Sites say which type they have; planning reads the shares here. A GPU that is not in the catalogue names one that is
(`like`), and gives its own data sheet in the site file.
"""

import difflib
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from weft.core.errors import UsageError
from weft.core.spec import Spec
from weft.core.specfile import Library, load
from weft.specs.site import GpuSpec, Name, ScaleUpSpec

Share = Annotated[float, Field(gt=0, le=1)]

GPUS = Library("gpu", Path(__file__).parent / "builtin" / "gpus")


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
    link: Share
    """Share of the scale-up bandwidth that a collective reaches."""
    nic: Share
    """Share of the NIC's payload rate that a collective reaches."""
    message_us: Annotated[float, Field(ge=0)]
    """Software and NIC time of one small message between nodes, besides the way, in microseconds."""
    kernel_us: Annotated[float, Field(ge=0)]
    """Time of the smallest kernel in microseconds."""
    usable: Share
    """Share of the memory that a job may fill: the rest is context, communication buffers and fragments."""
    source: str
    """Where these figures come from."""


class GpuTypeSpec(Spec):
    """A type of GPU: data sheet, usual scale-up domain, and what is reached of them."""

    name: Name
    """Name in the catalogue."""
    gpu: GpuSpec
    """Its data sheet."""
    scale_up: ScaleUpSpec
    """The domain in which it is usually sold."""
    efficiency: EfficiencySpec
    """What real kernels reach."""


def gpu_kinds() -> list[str]:
    """Return the names of all types in the catalogue."""
    return sorted(gpu_type_named(name).gpu.kind for name in GPUS.names())


@cache
def gpu_type_named(name: str) -> GpuTypeSpec:
    """Return the type whose file is called `name`."""
    return load(name, GpuTypeSpec, GPUS)


def gpu_type(kind: str) -> GpuTypeSpec:
    """Return the type called `kind`, in any case of letters, or raise with the nearest one."""
    if kind.lower() in GPUS.names():
        return gpu_type_named(kind.lower())
    near = difflib.get_close_matches(kind.lower(), GPUS.names(), n=1)
    hint = f"did you mean {gpu_type_named(near[0]).gpu.kind!r}?" if near else f"known are {', '.join(gpu_kinds())}"
    raise UsageError(f"there is no GPU called {kind!r} in the catalogue; {hint} Or write gpu.like = one of them")
