"""IsoFLOP profiles: the best size for each budget that was tried, and how it grows with the budget.

The second approach of Hoffmann et al. (arXiv 2203.15556, section 3.2): among runs of one number of operations the loss
is a parabola in the logarithm of the parameters, and its lowest point is the best size; those follow a power law.
It believes no formula for the loss, so it stands beside the parametric fit of `scaling` as a check. Pure.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.seeds import Seed
from weft.planning.scaling_laws.scaling import FLOPS_PER_PARAMETER_AND_TOKEN, Floats, Points

SAME_BUDGET = 1.3
"""Runs whose operations differ by less than this factor belong to one budget."""
FEWEST_RUNS, FEWEST_BUDGETS = 4, 3
_REPLICATES = 200
_LOW, _HIGH = 2.5, 97.5


@dataclass(frozen=True)
class IsoFlopBudget:
    """Runs of about one number of operations."""

    flops: float
    """Their operations: the geometric mean."""
    params: float
    """The best number of parameters."""
    loss: float
    """The loss that it reaches."""
    runs: int
    """How many runs there are."""


@dataclass(frozen=True)
class IsoFlops:
    """How the best number of parameters grows with the budget: params = scale x flops^exponent."""

    budgets: tuple[IsoFlopBudget, ...]
    """Budgets whose best size lies between the sizes that were tried."""
    exponent: float
    """How fast it grows."""
    exponent_low: float
    """Lower end of the 95 % interval."""
    exponent_high: float
    """Upper end of it."""
    scale: float
    """Parameters at one operation."""

    def optimal(self, flops: float) -> tuple[float, float]:
        """Return the best parameters and tokens for a budget."""
        params = self.scale * flops**self.exponent
        return params, flops / FLOPS_PER_PARAMETER_AND_TOKEN / params

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "exponent": self.exponent, "exponent_low": self.exponent_low, "exponent_high": self.exponent_high,
            "scale": self.scale, "budgets": [vars(each) for each in self.budgets],
        }  # fmt: skip


def isoflops(points: Points, seed: Seed) -> IsoFlops | None:
    """Return the fit to the budgets in `points`; none where fewer than three budgets show their best size."""
    groups = _groups(points)
    budgets = [found for group in groups if (found := _lowest(points, group))]
    if len(budgets) < FEWEST_BUDGETS:
        return None
    exponent, scale = _power_law(budgets)
    chance = seed.stream("isoflop")
    drawn: list[float] = []
    for _ in range(_REPLICATES):
        again = [found for group in groups if (found := _lowest(points, chance.choice(group, len(group))))]
        if len(again) >= FEWEST_BUDGETS:
            drawn.append(_power_law(again)[0])
    low, high = np.percentile(drawn or [exponent], [_LOW, _HIGH])
    return IsoFlops(tuple(budgets), exponent, float(low), float(high), scale)


def _groups(points: Points) -> list[Floats]:
    """Return the rows of each budget, least first: a budget begins where the last one's first run is far below."""
    flops = points.flops
    groups: list[list[int]] = []
    for row in np.argsort(flops, kind="stable").tolist():
        if not groups or flops[row] > SAME_BUDGET * flops[groups[-1][0]]:
            groups.append([])
        groups[-1].append(row)
    return [np.array(group) for group in groups if len(group) >= FEWEST_RUNS]


def _lowest(points: Points, rows: Floats) -> IsoFlopBudget | None:
    """Return the lowest point of a budget's parabola; none where it has none between the sizes that were tried."""
    sizes, losses = np.log(points.params[rows]), points.loss[rows]
    if len(np.unique(sizes)) < FEWEST_RUNS:
        return None
    # Runs of a budget do not have exactly its operations; what a little more of them gives is taken out by slope.
    shift = np.log(points.flops[rows])
    middle, whole = sizes.mean(), shift.mean()
    columns = np.stack([np.ones_like(sizes), sizes - middle, (sizes - middle) ** 2, shift - whole], axis=1)
    wide = np.ptp(shift) > 1e-6 and len(rows) > columns.shape[1]  # noqa: PLR2004
    found = np.linalg.lstsq(columns if wide else columns[:, :3], losses, rcond=None)[0]
    level, slope, bend = found[:3]
    if bend <= 0:
        return None
    best = middle - slope / (2 * bend)
    if not sizes.min() < best < sizes.max():
        return None
    loss = float(level - slope**2 / (4 * bend))
    return IsoFlopBudget(float(np.exp(whole)), float(np.exp(best)), loss, len(rows))


def _power_law(budgets: list[IsoFlopBudget]) -> tuple[float, float]:
    """Return exponent and scale of the line through the best sizes, in logarithms."""
    flops, params = (np.log([getattr(each, name) for each in budgets]) for name in ("flops", "params"))
    slope, level = np.polyfit(flops, params, 1)
    return float(slope), float(np.exp(level))
