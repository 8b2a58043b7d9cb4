"""Figures as people write them: 1,900 t, 4.85 GWh, 162 M USD, 28.5 M, 41 days. One form of each for all commands."""

from collections.abc import Callable, Mapping

from weft.core.quantity import ENERGY, POWER, TIME, significant

NO_CHANGE = "0.0%"
_SECONDS_PER_DAY = 86_400
_SECONDS_PER_YEAR = 365.25 * _SECONDS_PER_DAY
_LONG_S = 3 * _SECONDS_PER_YEAR
"""From here on times are written in years."""
_CENT = 0.01
_WHOLE_MONEY = 100
"""Below this, cents are written."""
_KG_PER_TONNE = 1_000
_MILLION = 1e6
_COUNTLESS = 1e16
"""From here on a number has no name that people know."""


def scaled(value: float, units: Mapping[str, float], *, below: Callable[[float], str] = significant) -> str:
    """Return a number in the first of `units` (largest first) that it reaches, three digits and the unit: 28.5 M."""
    for name, size in units.items():
        if value >= size:
            return f"{significant(value / size)} {name}"
    return below(value)


def thousands(value: float) -> str:
    """Return a large number: 28.5 M."""
    if value >= _COUNTLESS:
        return f"{value:.3g}"
    return scaled(value, {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3})


def counted_whole(value: float) -> str:
    """Return a count with all of its digits up to ten million, in millions beyond that."""
    return f"{value:,.0f}" if value.is_integer() and value < 10 * _MILLION else thousands(value)


def seconds(value: float) -> str:
    """Return a time given in seconds."""
    if value == 0:
        return "0 s"
    if value >= _LONG_S:
        return f"{significant(value / _SECONDS_PER_YEAR)} years"
    return TIME.about(value * 1e12)


def days(value: float) -> str:
    """Return a duration given in days."""
    return seconds(value * _SECONDS_PER_DAY)


def second_range(low: float, middle: float, high: float) -> str:
    """Return an interval of times given in seconds; both ends in the unit of its middle."""
    if middle >= _LONG_S:
        return f"{significant(low / _SECONDS_PER_YEAR)} to {significant(high / _SECONDS_PER_YEAR)} years"
    return TIME.interval(low * 1e12, middle * 1e12, high * 1e12)


def day_range(low: float, middle: float, high: float) -> str:
    """Return an interval of durations given in days; both ends in the unit of its middle."""
    return second_range(*(each * _SECONDS_PER_DAY for each in (low, middle, high)))


def watts(value: float) -> str:
    """Return a power given in watts."""
    if value == 0:
        return "0 W"
    return POWER.about(value * 1000)


def joules(value: float) -> str:
    """Return an energy given in joules."""
    return ENERGY.about(value * 1000)


def kilowatt_hours(value: float) -> str:
    """Return an energy that is paid for: 4.85 GWh."""
    for unit, size in (("TWh", 1e9), ("GWh", 1e6), ("MWh", 1e3), ("kWh", 1.0), ("Wh", 1e-3)):
        if value >= size or unit == "Wh":
            return _at_least(value / size, unit)
    raise AssertionError("the last unit takes any value")


def money(value: float, currency: str) -> str:
    """Return an amount of money: 1.21 bn USD, 162 M EUR, 12,300 USD, 24.70 USD, 0.31 USD."""
    if 0 < value < _CENT:
        return f"under 0.01 {currency}"
    if 0 < value < _WHOLE_MONEY:
        return f"{value:.2f} {currency}"
    return f"{scaled(value, {'bn': 1e9, 'M': 1e6})} {currency}"


def usd(value: float) -> str:
    """Return an amount in USD, which the parts of fabrics are priced in."""
    return money(value, "USD")


def kilograms(value: float) -> str:
    """Return a mass: 1,900 t, 12.5 kg, 0.4 g."""
    if value >= _KG_PER_TONNE:
        return f"{significant(value / _KG_PER_TONNE)} t"
    return f"{significant(value)} kg" if value >= 1 or value == 0 else _at_least(value * 1000, "g")


def _at_least(value: float, unit: str) -> str:
    """Return an amount in the smallest unit that is in use for it; what is below a hundredth of it is said so."""
    return f"under 0.01 {unit}" if 0 < value < _CENT else f"{significant(value)} {unit}"


def share(change: float) -> str:
    """Return a change with its sign, +5.4%, as a factor from twice on, x 57.7; without a sign where it is nothing."""
    if change >= 1:
        return f"x {significant(1 + change)}"
    text = f"{change:+.1%}"
    return NO_CHANGE if text in {"+0.0%", "-0.0%"} else text
