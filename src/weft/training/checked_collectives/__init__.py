"""Collectives that are compared, timed, counted and can be disturbed, whatever backend carries them."""

from weft.training.checked_collectives.call_statistics import CallStatistics
from weft.training.checked_collectives.call_store import HungError, MismatchError, PayloadError
from weft.training.checked_collectives.calls import CallStatus, CollectiveCall, Hang, hang
from weft.training.checked_collectives.checked_group import (
    BACKEND,
    CheckedGroup,
    Checks,
    Watch,
    mark_step,
    register,
    watch_of,
)
from weft.training.checked_collectives.payload_faults import WireFault

__all__ = [
    "BACKEND",
    "CallStatistics",
    "CallStatus",
    "CheckedGroup",
    "Checks",
    "CollectiveCall",
    "Hang",
    "HungError",
    "MismatchError",
    "PayloadError",
    "Watch",
    "WireFault",
    "hang",
    "mark_step",
    "register",
    "watch_of",
]  # fmt: skip
