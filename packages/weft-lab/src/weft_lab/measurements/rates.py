"""What a stream has carried, as rates: samples of a running count in, means, bins and stalls out. Pure."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """How many bytes had arrived at a time."""

    at_s: float
    """Seconds since the stream began."""
    bytes: int
    """All bytes until then."""


def carried_until(samples: Sequence[Sample], at_s: float) -> float:
    """Return the bytes that had arrived at a time, between samples in proportion."""
    place = bisect_right(samples, at_s, key=lambda sample: sample.at_s)
    if place == 0:
        return 0.0
    before = samples[place - 1]
    if place == len(samples):
        return float(before.bytes)
    after = samples[place]
    share = (at_s - before.at_s) / (after.at_s - before.at_s)
    return before.bytes + share * (after.bytes - before.bytes)


def mean_bps(samples: Sequence[Sample], from_s: float, to_s: float) -> float:
    """Return the mean rate between two times, in bits a second."""
    if to_s <= from_s:
        return 0.0
    return 8 * (carried_until(samples, to_s) - carried_until(samples, from_s)) / (to_s - from_s)


def binned_bps(samples: Sequence[Sample], until_s: float, bin_s: float) -> list[float]:
    """Return the mean rate of each `bin_s` from the beginning to `until_s`."""
    count = max(0, int(until_s / bin_s + 1e-9))
    return [mean_bps(samples, number * bin_s, (number + 1) * bin_s) for number in range(count)]


def reached_bps(samples: Sequence[Sample], from_s: float, to_s: float, bin_s: float) -> float:
    """Return the rate that a quarter of the bins between two times reach or exceed: what a busy machine lets through.

    A mean says what was carried; this says what could be, where other programs take the processor now and then.
    """
    count = int((to_s - from_s) / bin_s + 1e-9)
    rates = sorted(mean_bps(samples, from_s + n * bin_s, from_s + (n + 1) * bin_s) for n in range(count))
    return rates[3 * count // 4] if rates else 0.0


def longest_stall_s(samples: Sequence[Sample], from_s: float, to_s: float) -> float:
    """Return the longest time between two times in which nothing arrived, as far as samples can tell."""
    longest, since, last = 0.0, from_s, carried_until(samples, from_s)
    for sample in samples:
        if not from_s < sample.at_s <= to_s:
            continue
        if sample.bytes > last:
            # What came did so at some time before this sample; the stall had ended by then.
            last, since = sample.bytes, sample.at_s
        longest = max(longest, sample.at_s - since)
    if not samples or samples[-1].at_s < to_s:
        longest = max(longest, to_s - max(since, samples[-1].at_s if samples else from_s), longest)
    return longest
