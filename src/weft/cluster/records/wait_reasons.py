"""Why a job waits: every rule that can block one, its code and its words."""

from enum import IntEnum


class Reason(IntEnum):
    """The rule that blocks a job; the order is that in which rules are tried."""

    NONE = 0
    """Nothing was said yet."""
    TEAM = 1
    """Its team is not known."""
    DEPENDENCY = 2
    """A job that must be done before it is not."""
    ARRAY = 3
    """As many members of its array run as may."""
    QUOTA = 4
    """Its team has as much as it may have, borrowed GPUs included."""
    SIZE = 5
    """More nodes than are in service."""
    POWER = 6
    """Its draw would break a budget."""
    NODES = 7
    """It is the first that does not fit; nodes are kept for it as they become free."""
    BEHIND = 8
    """Starting it now would delay a job that is before it, or there is no room."""
    LANE = 9
    """The fast lane is full."""

    @property
    def code(self) -> str:
        """Return its name in actions and logs."""
        return self.name.lower()


TEXTS = {
    Reason.TEAM: "its team is not known here",
    Reason.DEPENDENCY: "a job that it comes after is not done",
    Reason.ARRAY: "as many members of its array run as may at once",
    Reason.QUOTA: "its team has all that it may have, borrowed GPUs included",
    Reason.SIZE: "it needs more nodes than are in service",
    Reason.POWER: "its draw would break a power budget",
    Reason.NODES: "it is next; too few nodes are free",
    Reason.BEHIND: "backfilling it would delay a job before it, or it does not fit",
    Reason.LANE: "the fast lane is full and there is no room beside it",
}
BY_CODE = {reason.code: reason for reason in Reason}
