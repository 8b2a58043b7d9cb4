"""What people write: the `site`, `job`, `scenario`, `policy` and `campaign` files, their tables, and the built-in ones.

Just above `core` and below everything that decides, so that every layer can speak of a site without importing another
layer. Data only: nothing here computes, and nothing heavy is imported.
"""

from weft.specs.campaign import CampaignSpec
from weft.specs.files import (
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
from weft.specs.job import JobSpec
from weft.specs.policy import PolicySpec
from weft.specs.scenario import ScenarioSpec
from weft.specs.site import SiteSpec

__all__ = [
    "CAMPAIGNS",
    "JOBS",
    "POLICIES",
    "SCENARIOS",
    "SITES",
    "CampaignSpec",
    "JobSpec",
    "PolicySpec",
    "ScenarioSpec",
    "SiteSpec",
    "load_campaign",
    "load_capacity",
    "load_job",
    "load_policy",
    "load_scenario",
    "load_site",
]
