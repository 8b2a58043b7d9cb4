"""What keeps a run alive: it starts the ranks, watches them, and puts right what goes wrong without asking anybody.

`cluster.survival` decides; `supervisor` is the thin shell that waits on processes and pipes and carries the actions
out; `domains` are the failure domains with their memory, `memory` knows what can be restored, `records` writes down
what it cost, `chaos` makes things go wrong on purpose.
"""

from weft.engines.supervisor.supervisor import Supervisor, survive

__all__ = ["Supervisor", "survive"]
