"""Collectives that are compared, timed, counted and can be disturbed, whatever backend carries them."""

from weft.training.checked.account import Account
from weft.training.checked.calls import Call, Hang, Standing, hang
from weft.training.checked.desk import HungError, MismatchError, PayloadError
from weft.training.checked.faults import WireFault
from weft.training.checked.group import BACKEND, CheckedGroup, Checks, Watch, register, watch_of

__all__ = [
    "BACKEND", "Account", "Call", "CheckedGroup", "Checks", "Hang", "HungError", "MismatchError", "PayloadError",
    "Standing", "Watch", "WireFault", "hang", "register", "watch_of",
]  # fmt: skip
