"""Figures of a rehearsal as people read them, by their unit: on the screen and on the page alike."""

import math
import re
from collections.abc import Callable

from weft.cli.screen.figures import counted_whole, joules, kilograms, kilowatt_hours, money, seconds, watts
from weft.core.quantity import RATE, SIZE, significant

_NEVER = {"%": "stops", "s": "none expected"}
_SMALLEST = 0.001
_CURRENCY = re.compile(r"^[A-Z]{3}$")


def shown(value: float | str | None, unit: str) -> str:
    """Return a figure with its unit; none stands for what is infinite."""
    if isinstance(value, str):
        return value
    if value is None or math.isinf(value):
        return _NEVER.get(unit, "without end")
    if _CURRENCY.match(unit):
        return money(value, unit)
    return _SHOWN[unit](value) if unit in _SHOWN else f"{_number(value)} {unit}".strip()


def _number(value: float) -> str:
    return f"under {_SMALLEST:g}" if 0 < abs(value) < _SMALLEST else counted_whole(float(value))


_SHOWN: dict[str, Callable[[float], str]] = {
    "s": seconds,
    "b/s": RATE.about,
    "B": SIZE.about,
    "W": watts,
    "W/s": lambda value: f"{watts(value)}/s",
    "J": lambda value: joules(value) if value else "none",
    "kWh": kilowatt_hours,
    "kg": kilograms,
    "%": lambda value: f"{significant(value) if not 0 < abs(value) < _SMALLEST else f'under {_SMALLEST:g}'} %",
}
