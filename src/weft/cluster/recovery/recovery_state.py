"""Where a run stands: the states of `machine`. Data only."""

from enum import StrEnum


class RecoveryState(StrEnum):
    """Where a run stands."""

    REFORMING = "reforming"
    """Ranks are being started and find each other."""
    RESTORING = "restoring"
    """They load the newest state that can be proved."""
    VERIFYING = "verifying"
    """What they loaded is held against what was agreed."""
    RUNNING = "running"
    """Steps are taken."""
    SUSPECT = "suspect"
    """Something is wrong; evidence is gathered for a moment, so that the right part is blamed."""
    REPLACING = "replacing"
    """One rank is gone; the others let go of their groups, so that another can take its place."""
    FENCING = "fencing"
    """Every process of the generation is being ended, so that none can act on what it knew."""
    WAITING = "waiting"
    """There is too little hardware to go on."""
    FINISHED = "finished"
    """All ranks have done their work."""
    FAILED = "failed"
    """It ended without that."""


ACTIVE = frozenset(
    {
        RecoveryState.REFORMING,
        RecoveryState.RESTORING,
        RecoveryState.VERIFYING,
        RecoveryState.RUNNING,
        RecoveryState.SUSPECT,
        RecoveryState.REPLACING,
    }
)
"""Where ranks exist."""
OPEN = ACTIVE | {RecoveryState.FENCING, RecoveryState.WAITING}
"""Where it has not ended."""
