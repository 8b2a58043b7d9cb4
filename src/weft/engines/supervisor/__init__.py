"""What keeps a run alive: it starts the ranks, watches them, and puts right what goes wrong without asking anybody.

`cluster.recovery.machine` decides; `rank_supervisor` is the thin shell that waits and carries the actions out through a
`rank_host`: here `fork_server_host`. `failure_domains` are the emulated nodes with their memory, `snapshots` knows what
can be restored, `incidents` writes down what each failure cost, `chaos` injects faults.
"""

from weft.engines.supervisor.rank_supervisor import Supervisor, survive

__all__ = ["Supervisor", "survive"]
