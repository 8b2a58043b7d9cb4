"""The catalogue of GPU types: data sheets, and the share of them that real kernels reach.

Sites say which type they have; planning reads the shares here. A GPU that is not in the catalogue names one that is
(`like`), and gives its own data sheet in the site file.
"""

import difflib
from functools import cache
from pathlib import Path

from weft.core.errors import UsageError
from weft.core.spec import Spec
from weft.core.specfile import Library, load
from weft.specs.efficiency import EfficiencySpec
from weft.specs.site import GpuSpec, Name, ScaleUpSpec

GPUS = Library("gpu", Path(__file__).parent / "builtin" / "gpus")


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
