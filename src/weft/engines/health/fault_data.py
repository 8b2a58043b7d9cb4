"""Reads the catalogue of faults that is shipped, and which GPU has which PCI address on this machine."""

import functools
import tomllib
from importlib.resources import files
from pathlib import Path

from weft.cluster.health.faults import FaultCatalogue, catalogue_of

_NVIDIA = "0x10de"
_DISPLAYS = ("0x0300", "0x0302")
"""PCI classes of GPUs: with and without a display (PCI Code and ID Assignment Specification, class 03)."""


@functools.cache
def shipped_catalogue() -> FaultCatalogue:
    """Return the catalogue of `faults.toml`."""
    text = files("weft.engines.health").joinpath("faults.toml").read_text(encoding="utf-8")
    return catalogue_of(tomllib.loads(text))


def gpu_addresses(system: Path = Path("/sys")) -> list[str]:
    """Return the PCI addresses of the NVIDIA GPUs that the kernel knows, in the order of the bus."""
    found: list[str] = []
    for folder in sorted(system.glob("bus/pci/devices/*")):
        try:
            vendor = (folder / "vendor").read_text(encoding="ascii").strip()
            kind = (folder / "class").read_text(encoding="ascii").strip()
        except OSError:
            continue
        # A virtual function is a part of a GPU that has an address of its own.
        if vendor == _NVIDIA and kind[:6] in _DISPLAYS and not (folder / "physfn").exists():
            found.append(folder.name)
    return found
