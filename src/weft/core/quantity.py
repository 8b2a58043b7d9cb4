"""Quantities as people write them: "800 Gb/s", "4 KiB", "12 us", "700 W", "3 /1e6 h".

Each `Dimension` knows its unit names, how many base units each one is, and how to read and write text without losing a
digit: `parse(format(x)) == x` for every integer x. Unit names are case-sensitive because "mW" is not "MW" and "Gb" is
not "GB"; where a wrong case is met, the message says which unit was probably meant.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

_NUMBER = r"[+-]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_QUANTITY = re.compile(rf"\s*(?P<number>{_NUMBER})\s*(?P<unit>\S.*?)?\s*")
_PER_HOURS = re.compile(rf"/\s*(?P<count>{_NUMBER})?\s*(?P<span>h|d|y)")
_HOURS = {"h": 1, "d": 24, "y": 8766}
_FIT_HOURS = 10**9
_LONGEST_TEXT = 64
_LARGEST_EXPONENT = 40


class QuantityError(ValueError):
    """The text is not a quantity of the wanted dimension; the message says what would be."""


@dataclass(frozen=True, eq=False)
class Dimension:
    """A kind of quantity: its name, its units and an example for messages."""

    name: str
    """The word used in messages: "rate", "size"."""
    example: str
    """A correct text, shown in messages."""
    units: Mapping[str, Fraction]
    """Unit name to number of base units."""
    shown: tuple[str, ...]
    """Units used for writing, largest first; the last one is the base unit."""
    rounds: bool = False
    """Whether a text between two base units is rounded instead of refused (rates of failure are estimates)."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spellings in use, to the unit that is meant."""

    def parse(self, text: str) -> int:
        """Return the number of base units that `text` stands for."""
        match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
        if match is None:
            raise QuantityError(f"{_quoted(text)} is not a {self.name}; write it as {self.example!r}")
        unit = match["unit"]
        if unit is None:
            raise QuantityError(f"{_quoted(text)} has no unit; write a {self.name} as {self.example!r}")
        amount = _number(match["number"], text) * self._scale(unit, text)
        if amount.denominator != 1 and not self.rounds:
            raise QuantityError(f"{_quoted(text)} is not a whole number of {self.shown[-1]}")
        return round(amount)

    def format(self, amount: int) -> str:
        """Return `amount` base units in the largest unit that shows it exactly with at most three decimals."""
        for unit in self.shown[:-1]:
            scaled = Fraction(amount) / self.units[unit]
            if abs(scaled) >= 1 and (scaled * 1000).denominator == 1:
                return f"{_decimal(scaled)} {unit}"
        return f"{amount} {self.shown[-1]}"

    def about(self, amount: float, digits: int = 3) -> str:
        """Return `amount` base units rounded to `digits` significant digits, for tables that people read."""
        for unit in self.shown:
            scale = float(self.units[unit])
            if abs(amount) >= scale or unit == self.shown[-1]:
                return f"{significant(amount / scale, digits)} {unit}"
        raise AssertionError("a dimension has at least one unit")

    def interval(self, low: float, middle: float, high: float) -> str:
        """Return both ends of an interval in the unit that its middle is written in: 7.55 to 10.2 s."""
        unit = self.about(middle).rpartition(" ")[2]
        scale = float(self.units[unit])
        return f"{significant(low / scale)} to {significant(high / scale)} {unit}"

    def _scale(self, unit: str, text: str) -> Fraction:
        unit = self.aliases.get(unit, unit)
        if unit in self.units:
            return self.units[unit]
        if "FIT" in self.units and (per := _PER_HOURS.fullmatch(unit)):
            hours = _number(per["count"] or "1", text) * _HOURS[per["span"]]
            if hours <= 0:
                raise QuantityError(f"{_quoted(text)} counts failures in no time at all")
            return Fraction(_FIT_HOURS) / hours
        meant = [known for known in self.units if known.lower() == unit.lower()]
        hint = f"; did you mean {' or '.join(meant)}?" if meant else f"; write it as {self.example!r}"
        raise QuantityError(f"{_quoted(text)}: {_quoted(unit)} is not a unit of {self.name}{hint}")


def significant(value: float, digits: int = 3) -> str:
    """Return `value` with `digits` significant digits, thousands separated, without an exponent or trailing zeros."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.{digits}g}")
    decimals = max(0, digits - 1 - int(f"{rounded:e}".partition("e")[2]))
    text = f"{rounded:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def counted(count: int, noun: str) -> str:
    """Return a number of things: "1 plane", "8 planes"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "...")


def _number(digits: str, text: str) -> Fraction:
    exponent = digits.lower().partition("e")[2]
    if exponent and abs(int(exponent)) > _LARGEST_EXPONENT:
        raise QuantityError(f"{_quoted(text)} is out of any range")
    return Fraction(digits)


def _decimal(value: Fraction) -> str:
    thousandths = value * 1000
    assert thousandths.denominator == 1
    whole, rest = divmod(abs(thousandths.numerator), 1000)
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}" + (f".{rest:03d}".rstrip("0") if rest else "")


def _scales(base: str, **powers: int) -> dict[str, Fraction]:
    return {f"{prefix}{base}": Fraction(10) ** power for prefix, power in powers.items()} | {base: Fraction(1)}


def _binary(base: str) -> dict[str, Fraction]:
    return {f"{prefix}i{base}": Fraction(1024) ** power for power, prefix in enumerate("KMGTP", start=1)}


_BITS = _scales("b/s", k=3, M=6, G=9, T=12, P=15)
_BYTE_RATES = {name: scale * 8 for name, scale in (_scales("B/s", k=3, M=6, G=9, T=12) | _binary("B/s")).items()}

RATE = Dimension(
    "rate",
    "800 Gb/s",
    _BITS | _BYTE_RATES,
    ("Pb/s", "Tb/s", "Gb/s", "Mb/s", "kb/s", "b/s"),
    aliases={f"{p}{form}": f"{p}b/s" for p in ("", "k", "M", "G", "T", "P") for form in ("bps", "bit/s")},
)
SIZE = Dimension(
    "size",
    "4 KiB",
    _scales("B", k=3, M=6, G=9, T=12, P=15) | _binary("B"),
    ("PiB", "PB", "TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "kB", "B"),
    aliases={"bytes": "B", "byte": "B"},
)
TIME = Dimension(
    "time",
    "12 us",
    {
        "d": Fraction(86_400 * 10**12),
        "h": Fraction(3_600 * 10**12),
        "min": Fraction(60 * 10**12),
        "s": Fraction(10**12),
        "ms": Fraction(10**9),
        "us": Fraction(10**6),
        "ns": Fraction(10**3),
        "ps": Fraction(1),
    },
    ("d", "h", "min", "s", "ms", "us", "ns", "ps"),
    aliases={"µs": "us", "μs": "us", "days": "d", "day": "d", "hours": "h", "hour": "h"},
)
POWER = Dimension(
    "power",
    "700 W",
    {"GW": Fraction(10**12), "MW": Fraction(10**9), "kW": Fraction(10**6), "W": Fraction(1000), "mW": Fraction(1)},
    ("GW", "MW", "kW", "W", "mW"),
)
ENERGY = Dimension(
    "energy",
    "65 J",
    {
        "GWh": Fraction(3_600 * 10**12),
        "MWh": Fraction(3_600 * 10**9),
        "kWh": Fraction(3_600 * 10**6),
        "Wh": Fraction(3_600 * 10**3),
        "GJ": Fraction(10**12),
        "MJ": Fraction(10**9),
        "kJ": Fraction(10**6),
        "J": Fraction(1000),
        "mJ": Fraction(1),
    },
    ("GJ", "MJ", "kJ", "J", "mJ"),
)
LENGTH = Dimension(
    "length",
    "30 m",
    {"km": Fraction(10**6), "m": Fraction(1000), "cm": Fraction(10), "mm": Fraction(1)},
    ("km", "m", "mm"),
)
FAILURE_RATE = Dimension("failure rate", "3 /1e6 h", {"FIT": Fraction(1)}, ("FIT",), rounds=True)
SPEED = Dimension(
    "speed",
    "989 TFLOP/s",
    _scales("FLOP/s", M=6, G=9, T=12, P=15, E=18),
    ("EFLOP/s", "PFLOP/s", "TFLOP/s", "GFLOP/s", "MFLOP/s", "FLOP/s"),
    aliases={f"{p}FLOPS": f"{p}FLOP/s" for p in ("", "M", "G", "T", "P", "E")},
)
MONEY = Dimension(
    "price",
    "950 USD",
    {"USD": Fraction(100), "cent": Fraction(1)},
    ("USD", "cent"),
    aliases={"cents": "cent", "dollars": "USD"},
)
