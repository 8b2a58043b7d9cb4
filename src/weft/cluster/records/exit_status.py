"""Exit statuses that mean something to weft: what processes say by them, and what engines read out of them."""

import signal

NOT_FOUND, NOT_STARTED = 127, 126
"""A command that is not there, or could not be started, as shells say it."""
BY_SIGNAL = 128
"""A process that a signal ended has this much more than the signal's number as its status, as in a shell."""
STOPPED = BY_SIGNAL + signal.SIGINT
"""A program that somebody interrupted."""
TRY_AGAIN = 75
"""An attempt that ended through no fault of its own and can go on elsewhere (EX_TEMPFAIL of sysexits.h).

A training that was asked to leave ends with it, and an agent in a pod that has lost the others of its gang."""
UNFIT = 69
"""A gang's preflight that found its node unfit (EX_UNAVAILABLE of sysexits.h)."""
