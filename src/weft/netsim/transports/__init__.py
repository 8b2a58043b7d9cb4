"""Transports by name, one file each behind the base in `base`."""

from weft.core.errors import UsageError
from weft.netsim.transports.adaptive import Adaptive
from weft.netsim.transports.base import Transport
from weft.netsim.transports.mrc import Mrc
from weft.netsim.transports.random import RandomSpray
from weft.netsim.transports.reps import Reps
from weft.netsim.transports.roce import Roce
from weft.netsim.transports.uet import Uet
from weft.specs.rivals import MOST_QUEUE_PAIRS, TransportsSpec

NAMES = ("mrc", "uet", "random", "roce", "reps", "adaptive")
"""Every transport; `roce:8` is RoCE with eight queue pairs for a flow."""


def transport_named(name: str, spec: TransportsSpec, denied: frozenset[int] = frozenset()) -> Transport:
    """Return the transport called `name`, set as `spec` says."""
    if name == "mrc":
        return Mrc(spec.mrc, spec.fit, denied, spec.forwarding)
    if name == "uet":
        return Uet(spec.uet, spec.fit)
    if name == "random":
        return RandomSpray(spec.random, spec.fit, forwarding=spec.forwarding)
    if name == "adaptive":
        return Adaptive(spec.adaptive, spec.fit, forwarding=spec.forwarding)
    if name == "reps":
        return Reps(spec.reps, spec.fit, forwarding=spec.forwarding)
    plain, _, count = name.partition(":")
    if plain == "roce":
        return Roce(spec.roce, _queue_pairs(name, count))
    raise UsageError(f"there is no transport called {name!r}; there are {', '.join(NAMES)}")


def _queue_pairs(name: str, count: str) -> int:
    """Return the number behind the colon of a transport's name."""
    if not count:
        return 1
    if not count.isdecimal() or not 1 <= int(count) <= MOST_QUEUE_PAIRS:
        raise UsageError(f"{name!r} asks for {count!r} queue pairs; write roce:1 to roce:{MOST_QUEUE_PAIRS}")
    return int(count)
