"""One scheduling cycle: who starts where, who waits and why, who yields; backfill, placement, preemption, power."""
