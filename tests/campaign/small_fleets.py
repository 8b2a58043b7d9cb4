"""Small fleets with much that breaks: sites and scenarios drawn for tests."""

from typing import Any

from hypothesis import strategies as st

from weft.campaign.arrivals import FleetFault
from weft.campaign.operation import FleetOperation
from weft.campaign.seeds_in_parallel import Question, operated
from weft.core.specfile import validate
from weft.specs import load_site
from weft.specs.campaign import CampaignSpec
from weft.specs.site import SiteSpec

QUIET: dict[str, Any] = {
    "components": {
        name: {"rate": "0 FIT"}
        for name in ("gpu", "hbm", "host", "nic", "optic", "cable", "switch", "rack", "shelf", "cooling")
    },
    "silent": {"rate": "0 FIT"},
    "software": {"rate": "0 FIT"},
    "alarms": {"rate": "0 FIT"},
    "network": {"nic_flap": "0 FIT", "core_flap": "0 FIT"},
    "lemons": {"share": 0},
    "second": 0,
}
"""A scenario in which nothing ever fails; a test adds what it is about."""


def merged(*tables: dict[str, Any]) -> dict[str, Any]:
    """Return tables put together, the later ones over the earlier ones."""
    found: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            below = found.get(key)
            found[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return found


def question(*tables: dict[str, Any], site: SiteSpec | str = "h100-400g-16k", script: Any = None) -> Question:
    """Return a campaign from tables of a scenario."""
    spec = validate(merged(*tables), CampaignSpec, "test")
    return Question(load_site(site) if isinstance(site, str) else site, spec, script=script)


def run(*tables: dict[str, Any], seed: int = 0, site: str = "h100-400g-16k", script: Any = None) -> FleetOperation:
    """Run one campaign."""
    return operated(question(*tables, site=site, script=script), seed)


def faults(*given: tuple[float, str, int]) -> tuple[FleetFault, ...]:
    """Return scripted faults: hours, class, unit."""
    return tuple(FleetFault(round(hours * 3_600_000), name, unit) for hours, name, unit in given)


rates = st.sampled_from(["0 FIT", "20000 FIT", "200000 FIT"])
shares = st.floats(0, 1)


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a scenario in which anything can be set, and much of it breaks."""
    names = ("gpu", "hbm", "host", "nic", "optic", "cable", "switch", "rack", "shelf", "cooling")
    nodes = draw(st.integers(36, 90))
    table: dict[str, Any] = {
        "duration": f"{draw(st.integers(1, 6))} d",
        "nodes": nodes,
        "spares": draw(st.integers(0, 4)),
        "gangs": [
            {
                "name": "one", "gpus": 72 * draw(st.integers(1, 2)), "fewest": draw(shares),
                "recovery": draw(st.sampled_from(["restart", "in-step"])),
                "checkpoint": {"interval": "20 min", "write": draw(st.sampled_from(["0 s", "30 s"]))},
            },
            {"name": "two", "gpus": 72, "priority": draw(st.integers(0, 1000))},
        ][: draw(st.integers(1, 2))],
        "experiments": {"per_day": draw(st.sampled_from([0, 5, 40])), "largest": 2, "room": 3},
        "serving": {"replicas": draw(st.integers(0, 2))},
        "components": {
            name: {
                "rate": draw(rates), "soft": draw(shares), "shape": draw(st.sampled_from([0.5, 1.0, 1.0, 3.0])),
                "age": draw(st.sampled_from(["0 s", "300 d"])),
            }
            for name in names
        },
        "silent": {"rate": draw(rates), "elusive": draw(shares), "production": draw(st.sampled_from(["0 s", "6 h"]))},
        "software": {"rate": draw(rates)},
        "alarms": {"rate": draw(rates)},
        "lemons": {"share": draw(st.floats(0, 0.3)), "factor": draw(st.floats(1, 50))},
        "detection": {"spread": draw(st.floats(0, 1))},
        "repair": {
            "crews": draw(st.integers(1, 5)), "shift": draw(st.sampled_from([8.0, 24.0])),
            "stock": draw(st.integers(0, 5)), "lead": "2 d", "failed": draw(st.floats(0, 0.5)),
            "elusive": draw(shares), "relapse": "3 h", "replace": "2 d",
        },
        "maintenance": {"every": "2 d", "nodes": draw(st.integers(0, 3))},
        "screening": {
            "mode": draw(st.sampled_from(["none", "idle", "scheduled", "replay"])), "every": "1 d", "takes": "15 min",
        },
        "ladder": {"unit": draw(st.sampled_from(["gpu", "tray"])), "defer": draw(st.sampled_from(["0 s", "12 h"]))},
        "power": {"demand_response": {"per_year": draw(st.sampled_from([0, 300])), "depth": draw(shares)}},
        "bursts": [{"name": "firmware", "per_year": 60.0, "scope": "all", "hits": draw(st.floats(0, 0.5)),
                    "spread": "4 h", "soft": draw(shares)}],
    }  # fmt: skip
    return table
