"""Transports by name: weft's own, and those that other distributions add.

A transport can be added in one file outside of weft. Its distribution names it in its `pyproject.toml`:

    [project.entry-points."weft.transports"]
    my-transport = "my_package.my_transport:transport"

What is named there is called with the scenario's `weft.specs.rivals.TransportsSpec` and returns a
`weft.netsim.transports.base.Transport`: its name, what it wants of switches, the sizes of its frames, and `open`, which
returns all NICs of a run. To run on the compiled simulator, the latter are a `ColumnEndpoints`. Where MRC's
acknowledgements and recovery are kept and only the choice of paths differs, a subclass of
`weft.netsim.transports.sprayed.SprayedTransport` needs nothing but `protocol` and `spray`.
"""

from collections.abc import Callable
from typing import cast

from weft.core import plugins
from weft.core.errors import UsageError
from weft.netsim.transports.adaptive import Adaptive
from weft.netsim.transports.base import Transport
from weft.netsim.transports.mrc import Mrc
from weft.netsim.transports.random import RandomSpray
from weft.netsim.transports.reps import Reps
from weft.netsim.transports.roce import Roce
from weft.netsim.transports.uet import Uet
from weft.specs.rivals import MOST_QUEUE_PAIRS, TransportsSpec

GROUP = "weft.transports"
"""Entry points that are looked up besides `NAMES`."""
NAMES = ("mrc", "uet", "random", "roce", "reps", "adaptive")
"""Weft's own transports; `roce:8` is RoCE with eight queue pairs for a flow."""


def transport_named(name: str, spec: TransportsSpec, denied: frozenset[int] = frozenset()) -> Transport:
    """Return the transport called `name`, set as `spec` says; no EV of MRC crosses the links in `denied`."""
    own: dict[str, Callable[[], Transport]] = {
        "mrc": lambda: Mrc(spec.mrc, spec.fit, spec.forwarding, denied),
        "uet": lambda: Uet(spec.uet, spec.fit),
        "random": lambda: RandomSpray(spec.random, spec.fit, spec.forwarding),
        "adaptive": lambda: Adaptive(spec.adaptive, spec.fit, spec.forwarding),
        "reps": lambda: Reps(spec.reps, spec.fit, spec.forwarding),
    }
    plain, _, count = name.partition(":")
    if plain == "roce":
        return Roce(spec.roce, _queue_pairs(name, count))
    if name in own:
        return own[name]()
    found = plugins.entry_point(GROUP, name)
    if found is None:
        known = ", ".join((*NAMES, *plugins.names(GROUP)))
        raise UsageError(f"there is no transport called {name!r}; there are {known}")
    return cast("Callable[[TransportsSpec], Transport]", found)(spec)


def _queue_pairs(name: str, count: str) -> int:
    """Return the number behind the colon of a transport's name."""
    if not count:
        return 1
    if not count.isdecimal() or not 1 <= int(count) <= MOST_QUEUE_PAIRS:
        raise UsageError(f"{name!r} asks for {count!r} queue pairs; write roce:1 to roce:{MOST_QUEUE_PAIRS}")
    return int(count)
