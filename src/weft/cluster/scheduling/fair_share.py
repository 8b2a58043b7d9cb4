"""Teams as columns: what each holds, may hold, and has used lately.

Use decays: after a half-life it counts half. Among equal priorities the team that used the least for its quota goes
first. Knows nothing of nodes or queues.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from weft.cluster.records.job import Team
from weft.cluster.records.snapshot import FAR_MS, SchedulingPolicy


class Shares:
    """Columns over teams; one owner."""

    def __init__(self, teams: Sequence[Team], policy: SchedulingPolicy) -> None:
        """Begin with nothing held."""
        self.policy = policy
        self.teams: list[Team] = []
        self.index: dict[str, int] = {}
        self.held = np.zeros(0, dtype=np.int64)
        """GPUs that each team holds."""
        self.quota = np.zeros(0, dtype=np.int64)
        self.most = np.zeros(0, dtype=np.int64)
        """GPUs that each may hold with what it borrows."""
        self.used_gpu_ms = np.zeros(0, dtype=np.float64)
        """Decayed use of each at `at_ms`."""
        self.at_ms = max((team.used_at_ms for team in teams), default=0)
        for team in teams:
            self.set(team)

    def set(self, team: Team) -> None:
        """Take in a new or changed team."""
        if team.name not in self.index:
            self.index[team.name] = len(self.teams)
            self.teams.append(team)
            self.held, self.quota, self.most = (np.append(each, 0) for each in (self.held, self.quota, self.most))
            kept = self._kept(max(0, self.at_ms - team.used_at_ms))
            self.used_gpu_ms = np.append(self.used_gpu_ms, team.used_gpu_ms * kept)
        number = self.index[team.name]
        self.teams[number] = team
        self.quota[number] = team.quota_gpus
        beyond = FAR_MS if team.most_gpus is None else team.most_gpus
        self.most[number] = beyond if self.policy.borrow else team.quota_gpus

    def hold(self, team: str, gpus: int) -> None:
        """Note that a team has got `gpus` more, or fewer; call `advance` first."""
        self.held[self.index[team]] += gpus

    def advance(self, now_ms: int) -> None:
        """Reckon every team's use up to `now_ms`."""
        if now_ms > self.at_ms:
            kept = self._kept(now_ms - self.at_ms)
            rate = math.log(2) / self.policy.half_life_ms
            self.used_gpu_ms = self.used_gpu_ms * kept + self.held * ((1 - kept) / rate)
            self.at_ms = now_ms

    def ratios(self) -> list[float]:
        """Return each team's use over its quota; who has no quota comes last."""
        used, quotas = self.used_gpu_ms.tolist(), self.quota.tolist()
        return [use / quota if quota else math.inf for use, quota in zip(used, quotas, strict=True)]

    def records(self) -> tuple[Team, ...]:
        """Return the teams as frozen records."""
        used = self.used_gpu_ms.tolist()
        return tuple(
            replace(team, used_gpu_ms=use, used_at_ms=self.at_ms) for team, use in zip(self.teams, used, strict=True)
        )

    def _kept(self, span_ms: int) -> float:
        return math.exp(-math.log(2) / self.policy.half_life_ms * span_ms)
