"""Transports by name, one file each behind the base in `base`."""

from weft.core.errors import UsageError
from weft.netsim.transports.base import Transport
from weft.netsim.transports.mrc import Mrc
from weft.netsim.transports.random import RandomSpray
from weft.netsim.transports.uet import Uet
from weft.specs.rivals import TransportsSpec

NAMES = ("mrc", "uet", "random")
"""Every transport."""


def transport_named(name: str, spec: TransportsSpec, denied: frozenset[int] = frozenset()) -> Transport:
    """Return the transport called `name`, set as `spec` says."""
    if name == "mrc":
        return Mrc(spec.mrc, spec.fit, denied)
    if name == "uet":
        return Uet(spec.uet, spec.fit)
    if name == "random":
        return RandomSpray(spec.random, spec.fit)
    raise UsageError(f"there is no transport called {name!r}; there are {', '.join(NAMES)}")
