"""What is done to queue pairs before anything is sent: every half gets its chance and its EVs, and some are denied."""

from typing import Any

from weft.core.compile.rules import rule
from weft.mrc.columns import DENIED
from weft.mrc.rules.evs import DENY, Paths, ev_event
from weft.mrc.rules.receiver import start_receiver
from weft.mrc.rules.sender import start_sender


@rule
def start_pairs(h: Any, words: Any, paths: Any, stride: int, scratch: Any) -> None:
    """Make the halves of every pair ready; a row of `words` is the chance of its three halves."""
    for i in range(len(paths)):
        start_sender(h.s, i, words[i, 0], 0, Paths(paths[i], stride, scratch))
        start_sender(h.b, i, words[i, 1], 0, Paths(paths[i], stride, scratch))
        start_receiver(h.r, i, words[i, 2], 0)


@rule
def deny(h: Any, i: int, half: int, e: int) -> None:
    """Deny EV `e` of a half, as an operator's denylist does; no answer takes it either."""
    if half:
        _deny(h.b, i, e)
    else:
        _deny(h.s, i, e)


@rule
def _deny(s: Any, i: int, e: int) -> None:
    """Deny EV `e` of a sending half, and take another for answers in its plane."""
    ev_event(s, i, e, DENY)
    plane = s.evs[i, e]["plane"]
    if s.planes[i, plane]["reverse"] != e:
        return
    s.planes[i, plane]["reverse"] = -1
    for other in range(s.params[0]["evs"]):
        ev = s.evs[i, other]
        if ev["plane"] == plane and ev["state"] != DENIED and s.planes[i, plane]["reverse"] < 0:
            s.planes[i, plane]["reverse"] = other
