"""Places in a document, and how what stands there is written: every figure of the page names the place it came from.

A figure is `{"value", "unit"}`, a sentence `{"text", "figures"}` (`planning.summary.wording`). What is written carries
the JSON pointer (RFC 6901) in `data-path` and the value in full, so that a program can hold page and document together.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from weft.cli.planning.page.formats import shown

_BRACES = re.compile(r"\{(\w+)\}")


def escaped(text: str) -> str:
    """Return a text as it stands in HTML, in attributes too."""
    return html.escape(text, quote=True)


@dataclass(frozen=True)
class DocumentPlace:
    """A value of a document, and where it stands."""

    value: Any
    """What stands there."""
    path: str = ""
    """JSON pointer to it."""

    def __getitem__(self, key: str | int) -> "DocumentPlace":
        """Return what stands below a key or an index."""
        step = str(key).replace("~", "~0").replace("/", "~1")
        return DocumentPlace(self.value[key], f"{self.path}/{step}")

    def __iter__(self) -> "Iterator[DocumentPlace]":
        """Yield what a list holds."""
        return (self[number] for number in range(len(self.value)))

    def __contains__(self, key: str) -> bool:
        """Return whether something stands below a key."""
        return self.value is not None and self.value.get(key) is not None

    @property
    def words(self) -> str:
        """Return a figure or a sentence as plain text; any other value as it is."""
        if isinstance(self.value, dict) and "text" in self.value:
            figures = self["figures"]
            return _BRACES.sub(lambda found: figures[found[1]].words, self.value["text"])
        if isinstance(self.value, dict):
            return shown(self.value["value"], self.value["unit"])
        return str(self.value)

    @property
    def attributes(self) -> str:
        """Return what marks an element as this figure."""
        held = self.value["value"] if isinstance(self.value, dict) else self.value
        return f'data-path="{escaped(self.path)}" data-value="{escaped(_exact(held))}"'

    @property
    def figure(self) -> str:
        """Return a figure, or words, as an element."""
        return f'<data {self.attributes} value="{escaped(_exact(self._held))}">{escaped(self.words)}</data>'

    @property
    def sentence(self) -> str:
        """Return a sentence as an element, with its figures as elements inside."""
        figures = self["figures"]
        parts = _BRACES.split(self.value["text"])
        written = [figures[part].figure if number % 2 else escaped(part) for number, part in enumerate(parts)]
        return f'<span data-sentence="{escaped(self.path)}">{"".join(written)}</span>'

    @property
    def _held(self) -> Any:
        return self.value["value"] if isinstance(self.value, dict) else self.value


def mark(figures: "list[DocumentPlace]", tip: str) -> str:
    """Return the attributes of a chart's mark: the figures that it stands for, and what it says when pointed at."""
    paths = escaped(" ".join(each.path for each in figures))
    return f'data-paths="{paths}" data-tip="{escaped(tip)}" aria-label="{escaped(tip)}" role="img"'


def _exact(value: Any) -> str:
    return repr(value) if isinstance(value, float) else "" if value is None else str(value)
