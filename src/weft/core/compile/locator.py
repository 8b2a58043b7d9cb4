"""Where numba stores one compiled rule: in the folder that is named by the digest of all sources, wherever weft lies.

By itself numba names folders by the path of a source file and believes its time stamp. Both differ between a checkout,
its clone and an installed wheel, although the code is the same; the digest in the folder's name says more than either.
Loaded by numba by its name (`rules.compiled`), so that nothing else imports numba.
"""

from types import FunctionType
from typing import Any

from numba import config
from numba.core import caching

# The base of every locator: numba has no public one, and its methods return nothing by their types.
_Locator: Any = caching.__dict__["_CacheLocator"]


class DigestLocator(_Locator):
    """Names stored code by module and line, below the folder that `use_cache` has set."""

    def __init__(self, function: FunctionType) -> None:
        self._place = f"{function.__module__}-{function.__code__.co_firstlineno}"

    def get_cache_path(self) -> str:
        """Return the folder."""
        return config.__dict__["CACHE_DIR"]

    def get_source_stamp(self) -> str:
        """Return the same for ever: other sources make another folder."""
        return "the digest of all sources names the folder"

    def get_disambiguator(self) -> str:
        """Return what tells rules of one name apart."""
        return self._place

    @classmethod
    def from_function(cls, py_func: FunctionType, _file: str) -> "DigestLocator | None":
        """Return the place of a rule; none where the folder cannot be written, and numba then stores nothing."""
        locator = cls(py_func)
        try:
            locator.ensure_cache_path()
        except OSError:
            return None
        return locator
