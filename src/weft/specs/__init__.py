"""What people write: the `site`, `job`, `scenario`, `policy` and `campaign` files, their tables, and the built-in ones.

Just above `core` and below everything that decides, so that every layer can speak of a site without importing another
layer. Data only: nothing here computes, and nothing heavy is imported. A name loads its module when it is
first used: the tables of a fleet take a tenth of a second, which a simulation need not wait for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.specs.campaign import CampaignSpec  # noqa: F401
    from weft.specs.files import (  # noqa: F401
        CAMPAIGNS,
        JOBS,
        POLICIES,
        SCENARIOS,
        SITES,
        load_campaign,
        load_capacity,
        load_job,
        load_policy,
        load_scenario,
        load_site,
    )
    from weft.specs.job import JobSpec  # noqa: F401
    from weft.specs.policy import PolicySpec  # noqa: F401
    from weft.specs.scenario import ScenarioSpec  # noqa: F401
    from weft.specs.site import SiteSpec  # noqa: F401

_HOMES = {
    "CampaignSpec": "campaign",
    "JobSpec": "job",
    "PolicySpec": "policy",
    "ScenarioSpec": "scenario",
    "SiteSpec": "site",
}
"""Where a name lives that is not in `files`."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name.startswith("_"):
        raise AttributeError(f"module 'weft.specs' has no attribute {name!r}")
    part = getattr(importlib.import_module(f"weft.specs.{_HOMES.get(name, 'files')}"), name)
    globals()[name] = part
    return part
