"""Policies by name, to be replayed side by side: built-in and written files, and the rules of plugins.

Rules of other distributions (`cluster.scheduling.rules`) are policies too: weft's numbers, their order and placement.
"""

from dataclasses import replace

from weft.cluster.from_policy import policy_of_spec, power_of_spec
from weft.cluster.records.snapshot import Power, SchedulingPolicy
from weft.cluster.scheduling.rules import BUILT_IN, rule_names
from weft.core.errors import UsageError
from weft.specs import POLICIES, load_policy

DEFAULT = BUILT_IN
"""The policy of replays and engines that are given no other."""
ORDER = ("weft", "fifo", "backfill-only", "no-preempt", "no-lane", "no-power")
"""The built-in policies, the fullest first."""


def policy_of(name: str, site: Power | None = None) -> tuple[SchedulingPolicy, Power]:
    """Return rules and budgets by the name of a policy, of a plugin's rules, or of a file."""
    if name in POLICIES.names() or name.endswith(".toml"):
        spec = load_policy(name)
        return policy_of_spec(spec), power_of_spec(spec, site)
    if name in rule_names():
        full, power = policy_of(DEFAULT, site)
        return replace(full, rules=name), power
    known = dict.fromkeys((*ORDER, *rule_names()))
    raise UsageError(f"there is no policy {name!r}; there are: {', '.join(known)}, or a file that ends in .toml")
