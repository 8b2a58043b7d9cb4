"""Figures and sentences as plain values, so that a page, a terminal and a program say the same.

A figure is a value with its unit. A sentence is a text with figures in braces; whoever shows it formats them.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

Plain: TypeAlias = dict[str, Any]


def figure(value: float | str | None, unit: str = "") -> Plain:
    """Return a value with its unit; none where it is infinite, which JSON does not have."""
    endless = isinstance(value, float) and not math.isfinite(value)
    return {"value": None if endless else value, "unit": unit}


def sentence(text: str, **figures: tuple[float | str, str]) -> Plain:
    """Return a text with the figures (value and unit) that stand in its braces."""
    return {"text": text, "figures": {name: figure(value, unit) for name, (value, unit) in figures.items()}}


def joined(text: str, figures: Mapping[str, Plain]) -> Plain:
    """Return a sentence of figures that have been made already."""
    return {"text": text, "figures": dict(figures)}


def named(what: str, value: float | str, unit: str = "") -> Plain:
    """Return a figure with its name."""
    return {"what": what, **figure(value, unit)}
