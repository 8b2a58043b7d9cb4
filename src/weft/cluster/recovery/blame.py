"""Who holds up a run that stands still, from what was found about each rank. Pure; what follows is `machine`'s."""

from weft.cluster.recovery.events import Cause, HangEvidence
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds

GRACE_PS = Picoseconds(PICOSECONDS_PER_SECOND // 2)
"""How long evidence is gathered once something is suspect: a dead rank is seen within a tenth of it."""


def blame(evidence: tuple[HangEvidence, ...], text: str) -> Cause:
    """Return who holds up a run that stands still: the frozen rank, else the silent one, else the furthest behind."""
    frozen = [one for one in evidence if one.frozen]
    if frozen:
        return Cause("stopped", frozen[0].rank, f"rank {frozen[0].rank} is stopped: {text}")
    silent = [one for one in evidence if one.silent_ps > GRACE_PS * 4]
    if silent and len(silent) < len(evidence):
        most = max(silent, key=lambda one: one.silent_ps)
        seconds = most.silent_ps / PICOSECONDS_PER_SECOND
        return Cause("hung", most.rank, f"rank {most.rank} has been silent for {seconds:.1f} s: {text}")
    behind = [one for one in evidence if one.place == min(other.place for other in evidence)]
    if len(behind) == 1 and len(evidence) > 1:
        return Cause("hung", behind[0].rank, f"rank {behind[0].rank} is behind all others: {text}")
    return Cause("hung", None, text)
