"""The policy file that an engine watches: read when it has changed, refused in one sentence where it is wrong.

A shell around `cluster.from_policy`: it looks at the file's time and size; what a changed file says is for the engine
to take up. A file that has become wrong changes nothing: the rules that hold go on.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from weft.cluster.from_policy import policy_of_spec, power_of_spec
from weft.cluster.records.snapshot import Power, SchedulingPolicy, Snapshot
from weft.core.errors import WeftError
from weft.specs import PolicySpec, load_policy


def default_policy() -> SchedulingPolicy:
    """Return the rules of an engine that is given no others: those of the built-in policy."""
    return policy_of_spec(PolicySpec())


def with_policy(snapshot: Snapshot, spec: PolicySpec) -> Snapshot:
    """Return a state under the rules and budgets of a policy file; what its ramps are busy with stays."""
    busy = snapshot.power
    blank = Power(
        ramp_free_ms=busy.ramp_free_ms, lane_free_ms=busy.lane_free_ms, fall_free_ms=busy.fall_free_ms,
        fall_lane_free_ms=busy.fall_lane_free_ms,
    )  # fmt: skip
    return replace(snapshot, policy=policy_of_spec(spec), power=power_of_spec(spec, blank))


class PolicyFile:
    """A policy file and when it was last read."""

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        """Watch `path`, which need not be there; `complain` gets what is wrong with it, once for each change."""
        self.path, self._complain = path, complain
        self._seen: tuple[int, int] | None = None

    def changed(self) -> PolicySpec | None:
        """Return what the file says where it has changed since the last look and is right; nothing otherwise."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        seen = (found.st_mtime_ns, found.st_size)
        if seen == self._seen:
            return None
        self._seen = seen
        try:
            spec = load_policy(str(self.path))
            policy_of_spec(spec)
        except (WeftError, OSError) as error:
            self._complain(f"the policy stays as it was: {error}")
            return None
        return spec
