"""weft: rehearse a 131,072-GPU training run on your laptop, then run it.

`import weft` is light: each public name loads what it needs when it is first used.
"""

import importlib
from typing import Any

from weft.core.version import VERSION

__version__ = VERSION

_HOMES = {
    "compare": "weft.api",
    "design": "weft.api",
    "plan": "weft.api",
}
"""Public name to the module that defines it."""

__all__ = ["__version__", "compare", "design", "plan"]


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
