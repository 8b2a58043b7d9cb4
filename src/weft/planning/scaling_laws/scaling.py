"""Scaling laws: what loss a larger run will reach, predicted from small ones, and how sure that is.

Two laws, of N parameters and D tokens. Hoffmann et al. (arXiv 2203.15556, section 3.3) add both wants up: L(N, D) = E +
A / N^alpha + B / D^beta. Kaplan et al. (arXiv 2001.08361, equation 1.5) let the greater want count the most; with
Hoffmann's floor it is L(N, D) = E + ((A / N^alpha)^(1 / beta) + B^(1 / beta) / D)^beta. Constants minimise the Huber
loss of the logarithms; `descent` does the minimising. Pure: points in, constants out, with randomness given as a
`Seed`. Which runs to make is `ladder`'s question, which law to believe `selftest`'s; reading files is the caller's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.planning.scaling_laws.descent import PRIOR_MIDDLE, Surface, descend, polish

Floats = NDArray[np.float64]
Form = Literal["hoffmann", "kaplan"]
"""Which of the two laws."""
FORMULAS: dict[Form, str] = {
    "hoffmann": "L = E + A / N^alpha + B / D^beta",
    "kaplan": "L = E + ((A / N^alpha)^(1 / beta) + B^(1 / beta) / D)^beta",
}
"""How each is written."""

FLOPS_PER_PARAMETER_AND_TOKEN = 6
"""C = 6 N D: two for the forward pass, four for the backward one (Kaplan et al., arXiv 2001.08361, section 2.1)."""
DELTA = 1e-3
"""Huber delta in log loss (Hoffmann et al., section 3.3)."""
OUTLIER_SCALES = 5.0
"""A point farther from the fit than this many robust standard deviations is left out, and listed."""
LARGEST_OUTLIER_SHARE = 0.2
"""More than this is no set of outliers: another law holds, and nothing is left out."""
RULED_POINTS = 20
"""From so many points on there is an outlier rule: among fewer, five constants can follow any point."""
REPLICATES = 500
"""Fits to points drawn anew, from which the intervals come."""
LOW, HIGH = 2.5, 97.5
"""Percentiles of the replicates that bound the 95 % interval of a constant."""
MOST_POINTS = 20_000
LEAST_POINTS = 6
LEAST_VALUES = 3
FAR_FLOPS, FAR_EITHER = 100.0, 30.0
"""Beyond these factors of the largest (or below the smallest) point a prediction is a guess, and is called one."""
WIDE = 0.05
"""A prediction whose interval is wider than this share on either side decides little."""

_MAD = 1.4826
_FEWEST_SAMPLES = 40
_ROUNDS = 4
_SCALE_FLOOR = 1e-6
_NAMES = ("E", "A", "B", "alpha", "beta")


@dataclass(frozen=True)
class Points:
    """Finished runs: their parameters, tokens and losses, one row each."""

    params: Floats
    """Parameters of each model."""
    tokens: Floats
    """Tokens that each has seen."""
    loss: Floats
    """The loss that each has reached."""
    keep: frozenset[int] = frozenset()
    """Rows that count, however far from the law they are."""

    def __len__(self) -> int:
        return len(self.loss)

    def without(self, rows: tuple[int, ...]) -> "Points":
        """Return the points but for `rows`."""
        kept = np.ones(len(self), dtype=bool)
        kept[list(rows)] = False
        return Points(self.params[kept], self.tokens[kept], self.loss[kept])

    @property
    def flops(self) -> Floats:
        """Return the operations that each run took."""
        return FLOPS_PER_PARAMETER_AND_TOKEN * self.params * self.tokens


@dataclass(frozen=True)
class Law:
    """The five constants, or columns of them."""

    E: Any
    """What no model gets below."""
    A: Any
    """What few parameters cost, at one parameter."""
    B: Any
    """What few tokens cost, at one token."""
    alpha: Any
    """How fast that falls with parameters."""
    beta: Any
    """How fast that falls with tokens."""
    form: Form = "hoffmann"
    """Which law they are constants of."""

    def loss(self, params: Any, tokens: Any) -> Any:
        """Return the loss of a model of `params` parameters after `tokens` tokens."""
        if self.form == "kaplan":
            few, short = np.log(self.A) - self.alpha * np.log(params), np.log(self.B) - self.beta * np.log(tokens)
            return self.E + np.exp(self.beta * np.logaddexp(few / self.beta, short / self.beta))
        return self.E + self.A * params**-self.alpha + self.B * tokens**-self.beta

    def optimal(self, flops: float) -> tuple[Any, Any]:
        """Return the parameters and tokens that reach the lowest loss with `flops` (Hoffmann et al., equation 4)."""
        both = self.alpha + self.beta
        ratio = (self.alpha * self.A / (self.beta * self.B)) ** (1 / both)
        if self.form == "kaplan":
            # What is raised to beta is a sum of the same kind, with both exponents divided by beta.
            ratio = ((self.alpha / self.beta) ** self.beta * self.A / self.B) ** (1 / both)
        params = ratio * (flops / FLOPS_PER_PARAMETER_AND_TOKEN) ** (self.beta / both)
        return params, flops / FLOPS_PER_PARAMETER_AND_TOKEN / params


@dataclass(frozen=True)
class Fit:
    """A law, how sure it is, and what it was made from."""

    law: Law
    """The constants."""
    samples: Law
    """The constants of every replicate."""
    points: Points
    """All points that were given."""
    outliers: tuple[int, ...]
    """Rows that were left out, counted from 0."""
    residuals: Floats
    """Predicted less measured log loss of every point, those left out included."""
    scale: float
    """Robust standard deviation of the log residuals."""
    objective: float
    """Sum of the Huber losses of the points that were kept."""
    starts: int
    """From how many places the search began."""
    agreed: int
    """How many of the best of them ended in the same place."""
    delta: float = DELTA
    """Huber delta."""
    warnings: tuple[str, ...] = field(default=())
    """What to be careful about, in words."""

    def rule(self) -> str:
        """Return the outlier rule in words."""
        if len(self.points) < RULED_POINTS:
            return f"fewer than {RULED_POINTS} points: none is left out"
        return (
            f"a point farther than {OUTLIER_SCALES:g} robust standard deviations"
            f" ({OUTLIER_SCALES * self.scale:.2%}) from the fit is left out"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the fit as plain values."""
        document: dict[str, Any] = {}
        for name in _NAMES:
            low, high = _interval(getattr(self.samples, name))
            document |= {name: float(getattr(self.law, name)), f"{name}_low": low, f"{name}_high": high}
        return document | {
            "law": self.law.form,
            "points": len(self.points),
            "outliers": len(self.outliers),
            "objective": self.objective,
            "outlier_rows": [row + 1 for row in self.outliers],
            "outlier_rule": self.rule(),
            "noise": self.scale,
            "delta": self.delta,
            "replicates": len(self.samples.E),
            "starts": self.starts,
            "starts_agreed": self.agreed,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class Prediction:
    """The loss of a run that was not made."""

    params: float
    """Its parameters."""
    tokens: float
    """Its tokens."""
    loss: float
    """What is expected."""
    low: float
    """Lower end of the 95 % interval of single runs."""
    high: float
    """Upper end: the law's uncertainty and the scatter of single runs together."""
    factor: float
    """Its operations, in those of the largest point."""
    warnings: tuple[str, ...]
    """Why it may be wrong."""

    @property
    def flops(self) -> float:
        """Return the operations of the run."""
        return FLOPS_PER_PARAMETER_AND_TOKEN * self.params * self.tokens

    def as_json(self) -> dict[str, Any]:
        """Return the prediction as plain values."""
        return {
            "params": self.params, "tokens": self.tokens, "flops": self.flops, "loss": self.loss,
            "loss_low": self.low, "loss_high": self.high, "times_largest": self.factor,
            "warnings": list(self.warnings),
        }  # fmt: skip


class ExponentPrior(NamedTuple):
    """How published exponents weigh in a fit to few points (see `descent`)."""

    noise: float = 0.0
    """Scatter to expect of log losses; with none, the points decide alone."""
    middle: float = PRIOR_MIDDLE
    """What exponents are weakly pulled to."""


NO_PRIOR = ExponentPrior()


def fit(
    points: Points, seed: Seed, *, form: Form = "hoffmann", delta: float = DELTA, replicates: int = REPLICATES,
    prior: ExponentPrior = NO_PRIOR,
) -> Fit:  # fmt: skip
    """Return the constants that fit `points` best, without its outliers, and their 95 % intervals."""
    _refuse(points)
    surface = replace(_surface(points, delta, form), noise=prior.noise, prior=prior.middle)
    starts = _starts(points)
    found = descend(surface, starts)
    best, agreed = found.best, found.agreed
    outliers: tuple[int, ...] = ()
    warnings: list[str] = []
    for _ in range(_ROUNDS):
        residuals = surface.residuals(best)
        scale = _scale(residuals, outliers)
        far = tuple(
            int(row)
            for row in np.flatnonzero(np.abs(residuals) > OUTLIER_SCALES * scale)
            if int(row) not in points.keep
        )
        if len(points) < RULED_POINTS:
            far = ()
        if len(far) > LARGEST_OUTLIER_SHARE * len(points):
            warnings.append(f"{len(far)} of {len(points)} points are far from any law of this form; none is left out")
            far = ()
        if far == outliers:
            break
        outliers = far
        best = polish(_surface(points.without(outliers), delta, form, surface), found.candidates)
    residuals = surface.residuals(best)
    kept = _surface(points.without(outliers), delta, form, surface)
    samples = _replicates(kept, best, seed, replicates)
    law, spread = _law(surface, best), _law(surface, samples)
    found_fit = Fit(
        law, spread, points, outliers, residuals, _scale(residuals, outliers), float(kept.objective(best)),
        len(starts), agreed, delta, (*warnings, *_cautions(law, spread)),
    )  # fmt: skip
    return replace(found_fit, warnings=(*found_fit.warnings, *_largest_run(found_fit, seed)))


def predict(fitted: Fit, params: float, tokens: float, seed: Seed) -> Prediction:
    """Return the loss that a run of `params` and `tokens` will reach."""
    return blend(((1.0, fitted),), params, tokens, seed)


def blend(
    weighed: Sequence[tuple[float, Fit]], params: float, tokens: float, seed: Seed, *, bias: float = 0.0
) -> Prediction:
    """Return the weighted mean of what several fits to the same points say; `bias` is their own error, as a share.

    The weights add up to one, the mean is that of logarithms, and the first fit says how single runs scatter.
    """
    if not (params > 0 and tokens > 0 and np.isfinite(params) and np.isfinite(tokens)):
        raise UsageError(f"a run needs parameters and tokens above zero, not {params:g} and {tokens:g}")
    fitted = weighed[0][1]
    expected = float(np.exp(sum(weight * np.log(one.law.loss(params, tokens)) for weight, one in weighed)))
    samples = np.exp(sum(weight * np.log(one.samples.loss(params, tokens)) for weight, one in weighed))
    # A run scatters about the law by itself: the interval of its loss is wider than that of the law.
    noise = np.exp(np.hypot(fitted.scale, bias) * seed.stream("prediction").standard_normal(len(samples)))
    low, high = _interval(samples * noise)
    known = fitted.points.without(fitted.outliers)
    flops = FLOPS_PER_PARAMETER_AND_TOKEN * params * tokens
    warnings = [
        _how_far(name, value, column, far)
        for name, value, column, far in (
            ("operations", flops, known.flops, FAR_FLOPS),
            ("parameters", params, known.params, FAR_EITHER),
            ("tokens", tokens, known.tokens, FAR_EITHER),
        )
    ]
    if max(high / expected, expected / max(low, 1e-300)) > 1 + WIDE:
        warnings.append(
            f"the interval reaches {max(high / expected - 1, 1 - low / expected):.0%} from what is expected"
        )
    factor = flops / float(known.flops.max())
    return Prediction(params, tokens, expected, low, high, factor, tuple(text for text in warnings if text))


@dataclass(frozen=True)
class Optimum:
    """The best use of a number of operations."""

    prediction: Prediction
    """The run."""
    params: tuple[float, float]
    """Between which its parameters lie."""
    tokens: tuple[float, float]
    """Between which its tokens lie."""

    def as_json(self) -> dict[str, Any]:
        """Return the optimum as plain values."""
        document = self.prediction.as_json()
        for name, (low, high) in (("params", self.params), ("tokens", self.tokens)):
            document |= {f"{name}_low": low, f"{name}_high": high}
        return document | {"tokens_per_param": self.prediction.tokens / self.prediction.params}


def optimal(fitted: Fit, flops: float, seed: Seed) -> Optimum:
    """Return the run of `flops` operations with the lowest loss."""
    if not (flops > 0 and np.isfinite(flops)):
        raise UsageError(f"a run takes more than zero operations, not {flops:g}")
    law = fitted.law
    if not (law.alpha > 0 and law.beta > 0 and law.A > 0 and law.B > 0):
        raise UsageError("the fitted loss does not fall with both parameters and tokens, so no run is the best one")
    params, tokens = law.optimal(flops)
    with np.errstate(all="ignore"):
        many_params, many_tokens = fitted.samples.optimal(flops)
    return Optimum(predict(fitted, float(params), float(tokens), seed), _interval(many_params), _interval(many_tokens))


def _refuse(points: Points) -> None:
    """Refuse points from which five constants cannot be fitted."""
    for name in ("params", "tokens", "loss"):
        column: Floats = getattr(points, name)
        wrong = np.flatnonzero(~(np.isfinite(column) & (column > 0)))
        if wrong.size:
            raise UsageError(f"row {wrong[0] + 1} has {name} = {column[wrong[0]]:g}; write a finite number above zero")
    if not LEAST_POINTS <= len(points) <= MOST_POINTS:
        raise UsageError(
            f"there are {len(points):,} points; five constants need at least {LEAST_POINTS}, and at most"
            f" {MOST_POINTS:,} are fitted"
        )
    for name in ("params", "tokens"):
        values = len(np.unique(getattr(points, name)))
        if values < LEAST_VALUES:
            raise UsageError(
                f"the points have {values} different {name}; the law's bend shows from {LEAST_VALUES} on, so add runs"
            )


def _surface(points: Points, delta: float, form: Form, like: Surface | None = None) -> Surface:
    columns = (np.log(points.params), np.log(points.tokens), np.log(points.loss))
    return Surface.of(*columns, delta, joint=form == "kaplan", like=like)


def _starts(points: Points) -> Floats:
    """Return where the search begins: shares of the loss for E, A and B at the middle of the points, and exponents.

    The grid of Hoffmann et al. is over the raw constants, where most places are nonsense; here all of them are near.
    """
    lowest, middle = float(points.loss.min()), float(np.exp(np.log(points.loss).mean()))
    shares, exponents, splits = (0.05, 0.3, 0.6, 0.8, 0.95), (0.1, 0.3, 0.5, 0.9), (0.2, 0.5, 0.8)
    grid = [
        (np.log(share * lowest), np.log((middle - share * lowest) * split),
         np.log((middle - share * lowest) * (1 - split)), alpha, beta)
        for share in shares for split in splits for alpha in exponents for beta in exponents
    ]  # fmt: skip
    return np.array(grid)


def _scale(residuals: Floats, outliers: tuple[int, ...]) -> float:
    kept = np.delete(residuals, list(outliers))
    return max(_SCALE_FLOOR, _MAD * float(np.median(np.abs(kept - np.median(kept)))))


def _replicates(surface: Surface, best: Floats, seed: Seed, count: int) -> Floats:
    """Return the constants fitted to `count` draws of the points, each as many as there are, with repetition."""
    size = surface.size
    drawn = seed.stream("bootstrap").multinomial(size, np.full(size, 1 / size), size=count).astype(np.float64)
    return descend(surface, np.repeat(best[None, :], count, axis=0), weights=drawn).ends


def _law(surface: Surface, theta: Floats) -> Law:
    raw = surface.uncentred(np.atleast_2d(theta))
    columns: list[Any] = [np.exp(raw[:, 0]), np.exp(raw[:, 1]), np.exp(raw[:, 2]), raw[:, 3], raw[:, 4]]
    still, few, short, alpha, beta = [float(column[0]) for column in columns] if theta.ndim == 1 else columns
    return Law(still, few, short, alpha, beta, "kaplan" if surface.joint else "hoffmann")


def _cautions(law: Law, samples: Law) -> list[str]:
    found = []
    for name, word in (("alpha", "parameters"), ("beta", "tokens")):
        if getattr(law, name) <= 0:
            found.append(f"{name} is not above zero: in these points the loss does not fall with {word}")
        elif _interval(getattr(samples, name))[0] <= 0:
            found.append(f"{name} may be zero: these points hardly say how the loss falls with {word}")
    low, high = _interval(samples.E)
    if high - low > law.E:
        found.append("E is hardly known: no run comes near what cannot be improved")
    return found


def _largest_run(fitted: Fit, seed: Seed) -> list[str]:
    """Return a warning where the largest known run is not where the law has it: that is the end that is predicted."""
    if len(fitted.samples.E) < _FEWEST_SAMPLES:
        return []
    row = int(np.argmax(fitted.points.flops))
    loss = float(fitted.points.loss[row])
    there = predict(fitted, float(fitted.points.params[row]), float(fitted.points.tokens[row]), seed)
    if there.low <= loss <= there.high:
        return []
    left = ", and was left out as an outlier (--keep largest counts it)" if row in fitted.outliers else ""
    return [
        f"the largest known run (row {row + 1}, {fitted.points.flops[row]:.3g} FLOPs) has a loss of {loss:.4f}, "
        f"outside the 95 % interval {there.low:.4f} to {there.high:.4f} of this fit{left}: do not rely on it beyond"
    ]


def _how_far(name: str, value: float, column: Floats, far: float) -> str:
    above, below = value / float(column.max()), float(column.min()) / value
    if above > far:
        return f"{above:,.0f} times the {name} of the largest point: too far to rely on (more than {far:g} times)"
    if below > far:
        return f"1/{below:,.0f} of the {name} of the smallest point: too far to rely on (less than 1/{far:g})"
    return ""


def _interval(column: Floats) -> tuple[float, float]:
    usable = column[np.isfinite(column)]
    low, high = np.percentile(usable, [LOW, HIGH]) if usable.size else (float("nan"), float("nan"))
    return float(low), float(high)
