"""Names of the things in a fabric and back: NICs, switches, links and optics.

A built fabric names by arithmetic (`Grid`), an imported one by what its file says (`NameList`). Both look the same from
here: families of dense ids. What is wired to what is `topology`'s business.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from weft.core.errors import UsageError
from weft.core.ids import Grid, IdError

Kind = Literal["nic", "switch", "link", "optic"]


@dataclass(frozen=True)
class NameList:
    """A family of dense ids from 0 whose names are free text."""

    kind: str
    """The word for one of them in messages."""
    names: tuple[str, ...]
    """The name of every id."""

    @cached_property
    def size(self) -> int:
        """Return the number of members."""
        return len(self.names)

    @cached_property
    def _ids(self) -> Mapping[str, int]:
        return {name: dense for dense, name in enumerate(self.names)}

    def name(self, dense: int) -> str:
        """Return the name of id `dense`."""
        return self.names[dense]

    def parse(self, name: str) -> int:
        """Return the id called `name`."""
        if name in self._ids:
            return self._ids[name]
        near = difflib.get_close_matches(name, self.names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise IdError(f"there is no {self.kind} called {name!r}{hint}")

    def owns(self, dense: int) -> bool:
        """Return whether id `dense` belongs to this family."""
        return 0 <= dense < self.size


@dataclass(frozen=True)
class Names:
    """The families of every kind of thing in one fabric."""

    families: Mapping[Kind, tuple[Grid | NameList, ...]]
    """Kind to its families, which together fill one dense id space."""

    def of(self, kind: Kind, dense: int) -> str:
        """Return the name of the thing of `kind` with id `dense`."""
        for family in self.families[kind]:
            if family.owns(dense):
                return family.name(dense)
        raise IdError(f"there is no {kind} with id {dense}")

    def find(self, name: str, kinds: tuple[Kind, ...]) -> tuple[Kind, int]:
        """Return kind and id of what is called `name` among `kinds`, or raise with what exists."""
        problem = ""
        for kind in kinds:
            for family in self.families[kind]:
                try:
                    return kind, family.parse(name)
                except IdError as error:
                    # The family that the name was meant for knows best what is wrong with it.
                    if name.partition("-")[0] == family.kind:
                        problem = str(error)
        raise UsageError(problem or f"there is no {_one_of(kinds)} called {name!r}; {self._examples(kinds)}")

    def _examples(self, kinds: tuple[Kind, ...]) -> str:
        shown = [
            repr(family.name(family.first if isinstance(family, Grid) else 0))
            for kind in kinds
            for family in self.families[kind]
            if family.size
        ]
        return f"names look like {', '.join(shown)}"


def _one_of(kinds: tuple[Kind, ...]) -> str:
    words = ["NIC" if kind == "nic" else kind for kind in kinds]
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
