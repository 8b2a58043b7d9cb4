"""`weft run`: any command on every rank, supervised as trainings are, without a change of its code.

`command_ranks` starts and hears processes in torchrun's environment, `command_supervisor` has
`cluster.recovery.machine` decide about them, `checkpoint_guard` looks after the files that they store.
"""
