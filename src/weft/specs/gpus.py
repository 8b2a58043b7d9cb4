"""The catalogue of GPU types: data sheets, and the share of them that real kernels reach.

Sites say which type they have; planning reads the shares here. A type that is not built in stands in a folder `gpus`
beside the site file, in the same form. Or the site file gives the data sheet, and names a type of the catalogue whose
shares it has (`like`).
"""

import difflib
from functools import cache
from pathlib import Path
from typing import Any

from weft.core.errors import UsageError
from weft.core.spec import Spec
from weft.core.specfile import Library, Pointer, load
from weft.specs.efficiency import EfficiencySpec
from weft.specs.site import GpuSpec, Name, ScaleUpSpec, SiteSpec

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


def is_known(kind: str) -> bool:
    """Return whether the catalogue has a type called `kind`."""
    return kind.lower() in GPUS.names()


def gpu_type(kind: str) -> GpuTypeSpec:
    """Return the type called `kind`, in any case of letters, or raise with the nearest one."""
    if is_known(kind):
        return gpu_type_named(kind.lower())
    near = difflib.get_close_matches(kind.lower(), GPUS.names(), n=1)
    hint = f"did you mean {gpu_type_named(near[0]).gpu.kind!r}?" if near else f"known are {', '.join(gpu_kinds())}"
    raise UsageError(
        f"there is no GPU called {kind!r} in the catalogue; {hint} Or write gpu.like = one of them, or describe it in "
        f"gpus/{kind.lower()}.toml beside the site file"
    )


def _own_type(folder: Path, kind: str) -> GpuTypeSpec | None:
    """Return the type that a folder `gpus` in `folder` describes, where it has one of that kind."""
    path = folder / "gpus" / f"{kind.lower()}.toml"
    return load(str(path), GpuTypeSpec, GPUS) if path.is_file() else None


def _data_sheet(folder: Path, kind: str) -> dict[str, Any]:
    own = _own_type(folder, kind)
    if own is None and is_known(kind):
        own = gpu_type_named(kind.lower())
    return {"kind": kind} if own is None else own.gpu.as_written()


DATA_SHEET = Pointer("gpu", "kind", _data_sheet)
"""A site that names a type of the catalogue, or one that is described beside it, need not repeat the data sheet; and a
site that extends another one and names another type has none of the other's figures. Keys beside the name win."""


def with_own_efficiency(site: SiteSpec, folder: Path) -> SiteSpec:
    """Return `site` with the efficiency of its GPU's type in `folder`; what the site says itself wins."""
    own = _own_type(folder, site.gpu.like or site.gpu.kind) if site.efficiency is None else None
    return site if own is None else site.model_copy(update={"efficiency": own.efficiency})
