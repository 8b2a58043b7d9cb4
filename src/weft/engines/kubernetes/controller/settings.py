"""How the engine runs, and the times that it reads."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from weft.cluster.records.snapshot import Power, SchedulingPolicy
from weft.engines.kubernetes.api.crds import DEFAULT_IMAGE
from weft.engines.policy_file import default_policy


class Now(NamedTuple):
    """The time of a pass."""

    ms: int
    """Milliseconds since 1970: what is written down and what decisions read."""
    s: float
    """Seconds of a clock that never goes back: for pauses of this process."""


@dataclass(frozen=True)
class Settings:
    """How the engine runs."""

    pool: str = "weft"
    """The pool whose nodes are ours: the value of the label cluster.weft/pool."""
    namespace: str | None = None
    """Where jobs are looked for; none for everywhere."""
    policy: SchedulingPolicy = field(default_factory=default_policy)
    """The rules of `weft.cluster`, until `policy_file` says otherwise."""
    policy_file: Path | None = None
    """A policy file; what changes in it is taken up."""
    decisions: Path | None = None
    """Folder of the logs of decisions; none for no logs."""
    power: Power = field(default_factory=Power)
    """What may be drawn."""
    pass_s: float = 0.03
    """Changes within this time are looked at together."""
    heart_s: float = 2.0
    """A pass is made at least this often: graces, limits and waves run out without any event."""
    resync_s: float = 15.0
    """Every gang is compared with its record at least this often."""
    silence_s: float = 90.0
    """A watch that says nothing for this long is opened again."""
    width: int = 32
    """Writes in flight: enough for 1,500 in a second that take 20 ms each, and few enough for a small job's to be
    answered soon."""
    rate_per_s: float = 2000.0
    """Most writes in a second."""
    test_s: float = 60.0
    """How long a node has to be heard, or not heard, before a test of it has an answer."""
    teams_s: float = 10.0
    """Time between two looks at what teams hold."""
    aggregator: str = ""
    """Where the programs inside pods report."""
    image: str = DEFAULT_IMAGE
    """The image that has weft in it."""


def system_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
