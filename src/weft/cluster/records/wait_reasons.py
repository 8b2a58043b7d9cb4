"""Why a job waits: every rule that can block one, its code, its words, and what would change it."""

from enum import IntEnum


class Reason(IntEnum):
    """The rule that blocks a job; up to `LANE` the order is that in which rules are tried."""

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
    """None of the others."""
    LANE = 9
    """The fast lane is full."""
    GPUS = 10
    """Running jobs hold so many GPUs that those left are too few."""
    FRAGMENTS = 11
    """Enough GPUs are free, but not on the same nodes."""
    KEPT = 12
    """It would fit, but the GPUs that are free are kept for the first that is blocked."""
    RESERVE = 13
    """It would fit, but what is free is kept for small experiments, or as spares."""
    HEALTH = 14
    """It would fit if nodes that are out of service were back."""
    ORDER = 15
    """It would fit, but nobody may go before a blocked job under this policy."""
    TOPOLOGY = 16
    """Enough nodes are free, but not in the shape that it requires of the topology."""

    @property
    def code(self) -> str:
        """Return its name in actions and logs."""
        return self.name.lower()


ROOM = frozenset({
    Reason.BEHIND, Reason.GPUS, Reason.FRAGMENTS, Reason.KEPT, Reason.RESERVE, Reason.HEALTH, Reason.ORDER,
    Reason.TOPOLOGY,
})  # fmt: skip
"""Reasons that change from moment to moment: which of them holds is looked at once a minute, and written then."""
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
    Reason.GPUS: "too few GPUs are free",
    Reason.FRAGMENTS: "enough GPUs are free, but not on the same nodes",
    Reason.KEPT: "what is free is kept for a job before it",
    Reason.RESERVE: "what is free is kept for the fast lane or as spares",
    Reason.HEALTH: "nodes that it could use are out of service",
    Reason.ORDER: "nobody may start before a blocked job here",
    Reason.TOPOLOGY: "enough nodes are free, but not where it requires them",
}
REMEDIES = {
    Reason.TEAM: "name a team that there is",
    Reason.DEPENDENCY: "it starts once those jobs are done",
    Reason.ARRAY: "allow more members at once",
    Reason.QUOTA: "wait for jobs of the team, or raise its quota",
    Reason.SIZE: "ask for fewer nodes",
    Reason.POWER: "ask for fewer GPUs, or wait for jobs that draw much",
    Reason.NODES: "it starts as soon as jobs on its nodes end",
    Reason.BEHIND: "a higher priority",
    Reason.LANE: "it starts with the next GPU of the lane",
    Reason.GPUS: "fewer GPUs, or a higher priority",
    Reason.FRAGMENTS: "fewer GPUs on each node, or fewer nodes",
    Reason.KEPT: "a shorter time limit, or a higher priority",
    Reason.RESERVE: "a time limit that the fast lane takes, or fewer GPUs",
    Reason.HEALTH: "fewer nodes, or the repair of nodes",
    Reason.ORDER: "a policy with backfill",
    Reason.TOPOLOGY: "ask for smaller slices, or for no common place",
}
BY_CODE = {reason.code: reason for reason in Reason}
