"""How many processors there are for a process."""

import os


def processors() -> int:
    """Return how many processors this process may use: the machine's, or fewer where it is held to some of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
