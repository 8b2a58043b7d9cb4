"""From a policy file to the rules and budgets that decisions read, and back: for replays and every engine alike.

A file and a `SchedulingPolicy` say the same; this is the one place that knows which key is which field. Pure.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from weft.cluster.records.snapshot import Power, SchedulingPolicy
from weft.cluster.scheduling.rules import rules_of
from weft.specs.policy import PolicySpec

_PS_PER_MS = 10**9
_MW_PER_W = 1000
_PLAIN = {
    "rules": ("order", "rules"), "priorities": ("order", "priorities"), "fair": ("order", "fair"),
    "borrow": ("order", "borrow"), "lane_share": ("lane", "share"), "lane_nodes": ("lane", "nodes"),
    "lane_most_nodes": ("lane", "largest"), "backfill": ("backfill", "enabled"), "give_way": ("backfill", "give_way"),
    "preempt": ("preemption", "enabled"),
    "preempt_gap": ("preemption", "gap"), "spare_nodes": ("spares", "nodes"), "test_at_once": ("idle_tests", "at_once"),
    "power": ("power", "enabled"), "brake_share": ("health", "brake", "share"),
    "brake_least": ("health", "brake", "least"), "brake_most": ("health", "brake", "most"),
    "lemon_outs": ("health", "lemon_outs"), "repairs_most": ("health", "repairs"),
}  # fmt: skip
_DURATIONS = {
    "half_life_ms": ("order", "half_life"), "aged_ms": ("order", "aged"), "lane_limit_ms": ("lane", "limit"),
    "assumed_ms": ("backfill", "assumed"), "patience_ms": ("preemption", "patience"),
    "grace_most_ms": ("preemption", "grace"), "reclaim_ms": ("preemption", "reclaim"),
    "test_every_ms": ("idle_tests", "every"), "brake_window_ms": ("health", "brake", "window"),
    "brake_rest_ms": ("health", "brake", "rest"), "forget_ms": ("health", "forget"), "pause_ms": ("health", "pause"),
    "drain_ms": ("health", "drain"), "lemon_ms": ("health", "lemon_window"), "limit_default_ms": ("limits", "default"),
    "limit_most_ms": ("limits", "most"),
}  # fmt: skip
_WATTS = {
    "site_w": "site", "feeder_w": "feeder", "rack_w": "rack", "ramp_w_per_s": "ramp_per_second",
    "node_idle_w": "node_idle", "gpu_rise_w": "gpu_rise",
}  # fmt: skip


def policy_of_spec(spec: PolicySpec) -> SchedulingPolicy:
    """Return the rules that a policy file describes; raises where nobody provides the ones it names."""
    rules_of(spec.order.rules)
    plain = {field: _at(spec, keys) for field, keys in _PLAIN.items()}
    times: dict[str, Any] = {field: _ms(_at(spec, keys)) for field, keys in _DURATIONS.items()}
    return SchedulingPolicy(**plain, **times)


def power_of_spec(spec: PolicySpec, site: Power | None = None) -> Power:
    """Return the budgets that a policy file describes; what it leaves open is as `site` has it."""
    written = {field: getattr(spec.power, key) for field, key in _WATTS.items()}
    return replace(site or Power(), **{field: mw // _MW_PER_W for field, mw in written.items() if mw is not None})


def as_tables(policy: SchedulingPolicy) -> dict[str, Any]:
    """Return rules in the form of a policy file, durations in seconds: what a report says that it was decided by."""
    found: dict[str, Any] = {}
    seconds = {name: None if (ms := getattr(policy, name)) is None else ms / 1000 for name in _DURATIONS}
    for field, keys in (_PLAIN | _DURATIONS).items():
        table = found
        for key in keys[:-1]:
            table = table.setdefault(key, {})
        last = keys[-1] if field in _PLAIN else f"{keys[-1]}_s"
        table[last] = seconds[field] if field in seconds else getattr(policy, field)
    return found


def differences(tables: dict[str, Any]) -> str:
    """Return in one line what differs from the built-in policy."""
    return ", ".join(_differing(tables, as_tables(policy_of_spec(PolicySpec())), ""))


def _differing(found: dict[str, Any], usual: dict[str, Any], above: str) -> Iterator[str]:
    for key, value in found.items():
        if isinstance(value, dict):
            yield from _differing(value, usual[key], f"{above}{key}.")
        elif value != usual[key]:
            yield f"{above}{key} {value}"


def _at(spec: PolicySpec, keys: tuple[str, ...]) -> Any:
    found: Any = spec
    for key in keys:
        found = getattr(found, key)
    return found


def _ms(duration_ps: int | None) -> int | None:
    return None if duration_ps is None else duration_ps // _PS_PER_MS
