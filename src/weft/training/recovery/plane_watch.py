"""Which planes of the fabric carry nothing from this rank any more, as its own transport has found out.

A lost plane stops nothing, so nobody would tell of it: the rank looks once a step, and says when a plane goes and when
it is back, with what the step that met it took longer than those before. Only the `mrc` backend has planes.
"""

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

_REMEMBERED = 16


class EndpointPlanes:
    """The planes of this process's endpoint: which of them carry nothing."""

    def __init__(self) -> None:
        """Nothing was heard yet."""
        self._heard: dict[int, int] = {}

    def __call__(self) -> tuple[frozenset[int], int]:
        """Return the planes that are out, and how many there are.

        A plane is out where some peer cannot be reached on it and nobody was heard on it since the last look. Peers to
        whom nothing was sent meanwhile know nothing against it, and one peer's dead port is not a dead plane of ours.
        """
        if "weft.transport.torch_backend" not in sys.modules:
            return frozenset(), 0
        from weft.mrc.columns import ASSUMED_BAD
        from weft.transport.torch_backend import links_of

        links = links_of()
        if links is None or not links.pairs:
            return frozenset(), 0
        state, planes = links.endpoint.state, links.endpoint.underlay.planes
        lost: set[int] = set()
        for pair in links.pairs.values():
            evs = state.sender.evs[pair.index]
            used = evs[evs["value"] >= 0]
            good = set(used["plane"][used["state"] < ASSUMED_BAD].tolist())
            lost |= set(used["plane"].tolist()) - good
        newest = state.heard_on[[pair.index for pair in links.pairs.values()]].max(axis=0).tolist()
        heard = {plane for plane in range(planes) if self._heard.get(plane) != newest[plane]}
        self._heard = dict(enumerate(newest))
        return frozenset(lost - heard), planes


@dataclass
class PlaneWatch:
    """What one rank has seen of its planes."""

    tell: Callable[[str, float], object]
    """Called with the message, and the seconds that it cost."""
    look: Callable[[], tuple[frozenset[int], int]] = field(default_factory=EndpointPlanes)
    """Returns the planes that are out, and how many there are."""
    out: frozenset[int] = frozenset()
    """Planes that carried nothing at the last look."""
    _since_s: float | None = None
    _steps: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def stepped(self) -> None:
        """Look, at the end of a step."""
        now = time.monotonic()
        took = 0.0 if self._since_s is None else now - self._since_s
        self._since_s = now
        out, count = self.look()
        cost = max(0.0, took - statistics.median(self._steps)) if self._steps else 0.0
        for plane in sorted(out - self.out):
            self.tell(f"plane {plane} carries nothing; goes on over {count - len(out)} of {count} planes", cost)
        for plane in sorted(self.out - out):
            self.tell(f"plane {plane} carries again; goes on over {count - len(out)} of {count} planes", 0.0)
        self.out = out
        if took:
            self._steps.append(took)
