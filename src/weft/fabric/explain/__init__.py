"""Why the fabric's decisions work: one topic per file, each a pure function from a site and a seed to an `Explanation`.

The decisions go against habit, so each is shown with its mathematics in the site's own numbers and with a simulation
beside every formula. Printing and drawing are left to the faces.
"""

import difflib
from collections.abc import Callable

from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.fabric.explain import lossy, planes, spraying, static_routing, tail
from weft.fabric.explain.base import ClosedFormCheck, Explanation, Panel, PlotSeries, Table
from weft.specs.site import SiteSpec

TOPICS: dict[str, Callable[[SiteSpec, Seed], Explanation]] = {
    "planes": planes.explain,
    "spraying": spraying.explain,
    "static-routing": static_routing.explain,
    "lossy": lossy.explain,
    "tail": tail.explain,
}
"""What can be explained, by name."""

__all__ = ["TOPICS", "ClosedFormCheck", "Explanation", "Panel", "PlotSeries", "Table", "explain"]


def explain(topic: str, site: SiteSpec, seed: Seed) -> Explanation:
    """Return the explanation of `topic` for `site`."""
    if topic not in TOPICS:
        wanted = topic.lower().replace("_", "-")
        begins = [name for name in TOPICS if wanted and name.startswith(wanted)]
        near = begins or difflib.get_close_matches(wanted, TOPICS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"there is no topic {topic!r}; {hint or 'topics are ' + ', '.join(TOPICS)}")
    return TOPICS[topic](site, seed)
