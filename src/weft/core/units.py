"""The integer units that every number in weft is written in.

One distinct type per physical dimension, always in its smallest useful unit, so that sums are exact and a rate cannot
be passed where a size is expected. The unit is also the last word of every name that holds one (`delay_ps`,
`rate_bps`). Text such as "800 Gb/s" becomes one of these in `quantity`; nothing here parses or prints.
"""

from typing import NewType

BitsPerSecond = NewType("BitsPerSecond", int)
"""A data rate in bits per second; decimal prefixes, as on a cable."""

Bytes = NewType("Bytes", int)
"""An amount of data in bytes."""

Picoseconds = NewType("Picoseconds", int)
"""A time span, or an instant since the start of a run, in picoseconds: fine enough for one bit at 1 Tb/s."""

Milliwatts = NewType("Milliwatts", int)
"""Electric power in thousandths of a watt."""

Millijoules = NewType("Millijoules", int)
"""Energy in thousandths of a joule."""

Millimetres = NewType("Millimetres", int)
"""Length in millimetres; light in fibre needs about 4.9 ps for one."""

Fit = NewType("Fit", int)
"""A failure rate in failures per 10^9 unit-hours."""

FlopsPerSecond = NewType("FlopsPerSecond", int)
"""Arithmetic speed in floating-point operations per second."""

Cents = NewType("Cents", int)
"""Money in hundredths of a US dollar."""

PICOSECONDS_PER_SECOND = 10**12


def transfer_ps(size_bytes: int, rate_bps: int) -> Picoseconds:
    """Return the time that `size_bytes` take on a link of `rate_bps`, rounded up to a whole picosecond."""
    bits = size_bytes * 8
    return Picoseconds(-(-bits * PICOSECONDS_PER_SECOND // rate_bps))
