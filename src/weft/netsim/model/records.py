"""What a run keeps: counters, what faults took, and everything over time in bins."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.netsim.model.faults import LinkFaultChange


@dataclass(frozen=True)
class Timeline:
    """What a run is given besides its network and flows: bins, its end, and the faults that begin and end."""

    bin_ps: int
    """Length of a bin."""
    until_ps: int | None = None
    """When the run ends at the latest."""
    changes: Sequence[LinkFaultChange] = ()
    """Faults that begin and end, in order of time."""
    faults: int = 0
    """How many faults there are."""
    links: bool = False
    """Whether every port counts what it carries."""

    def fault_records(self) -> "list[FaultRecord]":
        """Return an empty record for every fault."""
        first = {change.fault: change.at_ps for change in reversed(self.changes)}
        return [FaultRecord(first.get(number, 0)) for number in range(self.faults)]


@dataclass
class FaultRecord:
    """What one fault took, and how long it took to be made good."""

    begins_ps: int
    """When it first began."""
    lost: int = 0
    """Packets of any kind lost to it."""
    data_lost: int = 0
    """Data packets among them."""
    first_ps: dict[int, int] = field(default_factory=dict)
    """Queue pair to the time of its first loss."""
    recovered_ps: dict[int, int] = field(default_factory=dict)
    """Queue pair to the time at which the last packet lost so far had arrived after all."""
    open: dict[tuple[int, int], int] = field(default_factory=dict)
    """Queue pair and packet number to the time of a loss that has not been made good."""

    def lose(self, pair: int, time_ps: int) -> None:
        """Note the loss of a data packet."""
        self.data_lost += 1
        self.first_ps.setdefault(pair, time_ps)

    def arrive(self, pair: int, sequence: int, time_ps: int) -> None:
        """Note that a data packet arrived that may have been lost before."""
        if self.open.pop((pair, sequence), None) is not None:
            self.recovered_ps[pair] = time_ps


class Miss(NamedTuple):
    """A data packet that a fault took, until the round is over: another copy of it may arrive by then."""

    fault: int
    """Which."""
    pair: int
    """Its queue pair."""
    sequence: int
    """Its number."""
    time_ps: int
    """When."""


class Counts(NamedTuple):
    """Packets counted up to the end of a bin."""

    packet_hops: int
    """Ports crossed."""
    trimmed: int
    """Cut to their header."""
    marked: int
    """Data that arrived with a mark."""
    dropped: int
    """Refused by a full queue."""
    lost: int
    """Taken by faults, of any kind."""


@dataclass
class RunRecords:
    """Everything that a run keeps besides the counters of its endpoints."""

    stages: int
    """Ports on the longest path."""
    injected: int = 0
    """Packets put on the wire by NICs."""
    delivered: int = 0
    """Packets, whole or trimmed, that reached their NIC."""
    dropped: int = 0
    """Packets that found a queue full."""
    lost: int = 0
    """Packets lost to faults."""
    trimmed: int = 0
    """Packets whose payload was cut off."""
    marked: int = 0
    """Data packets that arrived with a mark."""
    hops: int = 0
    """Ports crossed by packets."""
    trace: int = 0
    """Sum over all arrivals of what, where and when."""
    faults: list[FaultRecord] = field(default_factory=list)
    """What each fault took."""
    bin_ends_ps: list[int] = field(default_factory=list)
    """Ends of the bins."""
    received: list[NDArray[np.int64]] = field(default_factory=list)
    """Bytes that each queue pair had received at the end of each bin."""
    queue_peaks: list[list[int]] = field(default_factory=list)
    """Deepest data queue of every stage in each bin, in bytes."""
    lost_by: list[int] = field(default_factory=list)
    """Data packets lost to faults up to the end of each bin."""
    counts: list[Counts] = field(default_factory=list)
    """What had been counted at the end of each bin."""
    peaks: list[int] = field(default_factory=list)
    """The deepest queues in the bin that is open."""

    def __post_init__(self) -> None:
        """Open the first bin."""
        self.peaks = [0] * self.stages

    @property
    def is_sampled(self) -> bool:
        """Return whether invariants are checked at the end of the last bin: often at first, then ever more rarely."""
        bins = len(self.bin_ends_ps)
        # x & (x - 1) is 0 for powers of two: twenty checks in a million bins, and those of every 1024th.
        return bins & (bins - 1) == 0 or bins % 1024 == 0

    def close_bin(self, end_ps: int, received: NDArray[np.int64], counts: Counts) -> None:
        """Close a bin."""
        self.counts.append(counts)
        self.bin_ends_ps.append(end_ps)
        self.received.append(received)
        self.queue_peaks.append(self.peaks)
        self.lost_by.append(sum(fault.data_lost for fault in self.faults))
        self.peaks = [0] * self.stages
