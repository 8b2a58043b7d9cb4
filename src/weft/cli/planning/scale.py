"""`weft scale`: fit a scaling law to finished runs, predict larger ones, find the best use of a budget."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from weft.cli.output import JsonFlag, PlotFile, print_json, print_table, save_picture, say, seed_option
from weft.cli.screen.figures import scaled
from weft.core.errors import UsageError
from weft.core.input_files import read_text
from weft.core.provenance import provenance
from weft.core.quantity import significant
from weft.core.seeds import Seed
from weft.planning.scaling_laws import scaling
from weft.planning.scaling_laws.isoflop import IsoFlops, isoflops
from weft.planning.scaling_laws.scaling import Fit, Form, Points, Prediction
from weft.training.finished_losses import LARGEST_FILE_BYTES, read_points

app = App(name="scale", help="Predict the loss of a large run from small ones.", help_format="plaintext")

_LISTED = 10

PointsFile = Annotated[Path, Parameter(help="CSV file with columns params, tokens, loss: one finished run per row.")]
SeedOption = Annotated[int, seed_option("Random seed of the intervals.")]
LawOption = Annotated[Form, Parameter(help="Scaling law: additive (hoffmann, as Chinchilla) or max (kaplan).")]
DeltaOption = Annotated[float, Parameter(help="Huber delta of the fit, in log loss.")]
KeepOption = Annotated[
    list[str] | None,
    Parameter(name="--keep", negative="", help="Count a row though it is an outlier: its number, largest, or all."),
]


app.command(
    "weft.cli.planning.ladder:ladder", name="ladder", help="Predict a run from smaller ones that are trained for it."
)


@app.command
def fit(
    points: PointsFile, /, *, law: LawOption = "hoffmann", delta: DeltaOption = scaling.DELTA, seed: SeedOption = 0,
    keep: KeepOption = None, json: JsonFlag = False, plot: PlotFile = None,
) -> None:  # fmt: skip
    """Fit L(N, D) = E + A / N^alpha + B / D^beta to finished runs, with intervals, and IsoFLOP profiles beside it."""
    found = fitted(points, law, delta, seed, keep)
    save_picture(plot, "draw_fit", found)
    profiles = isoflops(found.points, Seed(seed))
    if json:
        document = {**found.as_json(), "isoflop": None if profiles is None else profiles.as_json()}
        print_json(_document(document, points, delta, seed))
        return
    print_fit(found, str(points))
    _print_isoflops(found, profiles)


@app.command
def predict(
    points: PointsFile, /, *,
    params: Annotated[float, Parameter(help="Parameters of the run.")],
    tokens: Annotated[float, Parameter(help="Tokens that it trains on.")],
    law: LawOption = "hoffmann", delta: DeltaOption = scaling.DELTA, seed: SeedOption = 0, keep: KeepOption = None,
    json: JsonFlag = False,
) -> None:  # fmt: skip
    """Predict the loss of a run from finished ones."""
    found = fitted(points, law, delta, seed, keep)
    prediction = scaling.predict(found, params, tokens, Seed(seed))
    if json:
        print_json(_document({**prediction.as_json(), "fit": found.as_json()}, points, delta, seed))
        return
    print_prediction(prediction)


@app.command
def optimal(
    points: PointsFile, /, *,
    flops: Annotated[float, Parameter(help="Compute budget in FLOPs, as 1e21.")],
    law: LawOption = "hoffmann", delta: DeltaOption = scaling.DELTA, seed: SeedOption = 0, keep: KeepOption = None,
    json: JsonFlag = False,
) -> None:  # fmt: skip
    """Find the compute-optimal parameters and tokens of a FLOP budget."""
    found = fitted(points, law, delta, seed, keep)
    best = scaling.optimal(found, flops, Seed(seed))
    profiles = isoflops(found.points, Seed(seed))
    beside = None if profiles is None else dict(zip(("params", "tokens"), profiles.optimal(flops), strict=True))
    if json:
        print_json(_document({**best.as_json(), "isoflop": beside, "fit": found.as_json()}, points, delta, seed))
        return
    run = best.prediction
    rows = [
        ("parameters", counted(run.params), *(counted(value) for value in best.params)),
        ("tokens", counted(run.tokens), *(counted(value) for value in best.tokens)),
        ("loss", f"{run.loss:.4f}", f"{run.low:.4f}", f"{run.high:.4f}"),
    ]
    if beside is not None:
        rows += [(f"{name}, IsoFLOP", counted(beside[key]), "", "")
                 for name, key in (("parameters", "params"), ("tokens", "tokens"))]  # fmt: skip
    print_table(f"compute-optimal for {flops:.3g} FLOPs", ("", "best", "low", "high"), rows)
    say(f"{run.tokens / run.params:,.1f} tokens per parameter")
    print_warnings(found.warnings)
    print_warnings(run.warnings)


def fitted(
    path: Path, law: Form = "hoffmann", delta: float = scaling.DELTA, seed: int = 0, keep: Sequence[str] | None = None
) -> Fit:
    """Return the law of the points in a file."""
    if not 0 < delta < 1:
        raise UsageError(f"--delta {delta:g}: write a number between 0 and 1, such as {scaling.DELTA:g}")
    points = read_points(path)
    return scaling.fit(replace(points, keep=_kept(keep or (), points)), Seed(seed), form=law, delta=delta)


def _kept(keep: Sequence[str], points: Points) -> frozenset[int]:
    """Return the rows that --keep names, counted from 0."""
    rows: set[int] = set()
    for text in keep:
        if text == "all":
            rows |= set(range(len(points)))
        elif text == "largest":
            rows.add(int(points.flops.argmax()))
        elif text.isdecimal() and 1 <= int(text) <= len(points):
            rows.add(int(text) - 1)
        else:
            raise UsageError(f"--keep {text}: write a row from 1 to {len(points):,}, largest, or all")
    return frozenset(rows)


def _print_isoflops(found: Fit, profiles: IsoFlops | None) -> None:
    """Print what profiles of equal budgets say of the best size, beside the parametric law."""
    if profiles is None:
        say("IsoFLOP profiles: fewer than three budgets with four sizes around their best one")
        return
    both = found.law.alpha + found.law.beta
    rows = [(f"{each.flops:.3g}", f"{each.runs}", counted(each.params), f"{each.loss:.4f}")
            for each in profiles.budgets]  # fmt: skip
    print_table("IsoFLOP profiles", ("FLOPs", "runs", "best size", "loss"), rows)
    say(
        f"best size ~ FLOPs^{profiles.exponent:.3f} (95 % {profiles.exponent_low:.3f} to {profiles.exponent_high:.3f}) "
        f"by IsoFLOP profiles, FLOPs^{found.law.beta / both:.3f} by the fitted law"
    )


def _document(document: dict[str, Any], points: Path, delta: float, seed: int) -> dict[str, Any]:
    asked = {"points": read_text(points, LARGEST_FILE_BYTES, "utf-8-sig"), "delta": delta}
    asked["law"] = document.get("fit", document)["law"]
    return {**document, "provenance": provenance(asked, seed).as_json()}


def counted(value: float) -> str:
    """Return a number of parameters or tokens as people say it: 70 B, 1.4 T."""
    return scaled(value, {"T": 1e12, "B": 1e9, "M": 1e6, "k": 1e3})


def print_fit(found: Fit, name: str) -> None:
    """Print the constants, outliers and warnings."""
    document = found.as_json()
    meanings = {
        "E": "irreducible loss", "A": "A / N^alpha, limited parameters", "alpha": "", "B": "B / D^beta, limited tokens",
        "beta": "",
    }  # fmt: skip
    if found.law.form == "kaplan":
        meanings |= {"A": "A / N^alpha, unlimited tokens", "B": "B / D^beta, unlimited parameters"}
    rows = [
        (key, f"{document[key]:,.5g}", f"{document[f'{key}_low']:,.5g}", f"{document[f'{key}_high']:,.5g}", meaning)
        for key, meaning in meanings.items()
    ]
    title = f"{scaling.FORMULAS[found.law.form]}, fitted to {len(found.points):,} runs of {name}"
    print_table(title, ("", "fitted", "low", "high", ""), rows, words=(0, 4))
    say(f"residual scatter of a run {found.scale:.2%}; low and high are 95 % intervals (bootstrap)")
    if found.outliers:
        rows = [
            (str(row + 1), counted(float(found.points.params[row])), counted(float(found.points.tokens[row])),
             f"{found.points.loss[row]:.4f}", f"{-found.residuals[row]:+.2%}")
            for row in found.outliers[:_LISTED]
        ]  # fmt: skip
        more = f", the first {_LISTED}" if len(found.outliers) > _LISTED else ""
        columns = ("row", "parameters", "tokens", "loss", "from the fit")
        print_table(f"{len(found.outliers)} outliers left out{more}: {found.rule()}", columns, rows)
    print_warnings(found.warnings)


def print_prediction(prediction: Prediction) -> None:
    """Print what a run will reach, and how far that is from what was seen."""
    say(
        f"loss {prediction.loss:.4f}, 95 % interval {prediction.low:.4f}-{prediction.high:.4f}:"
        f" {counted(prediction.params)} parameters, {counted(prediction.tokens)} tokens,"
        f" {prediction.flops:.3g} FLOPs, {significant(prediction.factor)} times the largest run in the fit"
    )
    print_warnings(prediction.warnings)


def print_warnings(warnings: tuple[str, ...]) -> None:
    """Print warnings."""
    for warning in warnings:
        say(f"warning: {warning}")
