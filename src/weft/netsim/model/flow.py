"""A flow: who writes how many bytes to whom, when, and after what; or, without bytes, a time that others wait for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flow:
    """One write, or a wait: a flow of no bytes crosses nothing and is over as soon as it may begin."""

    name: str
    """What it is called."""
    source: int
    """NIC that sends."""
    destination: int
    """NIC that receives."""
    size: int
    """Bytes."""
    at_ps: int
    """When it may begin: from the start, or from the arrival of the last flow that it waits for."""
    after: tuple[int, ...] = ()
    """Numbers of the flows that it waits for."""
    uplinks: tuple[int, ...] = ()
    """Paths that it may take; all where empty."""
    lane: int = 0
    """Which of the queue pairs between its two NICs carries it."""
    after_sent: tuple[int, ...] = ()
    """Numbers of the flows whose senders must know that everything has arrived before it begins."""
    counted: bool = True
    """Whether it is a part of what is measured and waited for, and not background."""

    @property
    def is_wait(self) -> bool:
        """Return whether it only stands for time."""
        return self.size == 0
