"""weft: rehearse a 131,072-GPU training run on your laptop, then run it."""

from weft.core.version import VERSION

__version__ = VERSION

__all__ = ["__version__"]
