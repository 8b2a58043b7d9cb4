"""`weft scale`: fit a scaling law to finished runs, predict larger ones, find the best use of a budget."""

import contextlib
import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from weft.cli.output import JsonFlag, PlotFile, console, print_json, print_table, save_plot
from weft.core.errors import UsageError
from weft.core.provenance import provenance
from weft.core.quantity import significant
from weft.core.seeds import Seed
from weft.planning.scaling_laws import scaling
from weft.planning.scaling_laws.scaling import Fit, Form, Points, Prediction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

app = App(name="scale", help="Predict the loss of a large run from small ones.", help_format="plaintext")

_COLUMNS = ("params", "tokens", "loss")
_LARGEST_FILE_BYTES = 64 * 2**20
_LISTED = 10

SeedOption = Annotated[int, Parameter(help="Seed of the intervals.")]
LawOption = Annotated[Form, Parameter(help="The law: terms that add up (hoffmann), or the greater counts (kaplan).")]
DeltaOption = Annotated[float, Parameter(help="Log loss at which the Huber loss turns from squares to absolutes.")]


app.command(
    "weft.cli.planning.ladder:ladder", name="ladder", help="Predict a run from smaller ones that are trained for it."
)


@app.command
def fit(
    points: Path, /, *, law: LawOption = "hoffmann", delta: DeltaOption = scaling.DELTA, seed: SeedOption = 0,
    json: JsonFlag = False, plot: PlotFile = None,
) -> None:  # fmt: skip
    """Fit L(N, D) = E + A / N^alpha + B / D^beta to finished runs, with intervals.

    Parameters
    ----------
    points
        CSV file with columns params, tokens, loss: one finished run in each row.

    """
    found = fitted(points, law, delta, seed)
    save_plot(plot, lambda figure: _draw(figure, found))
    if json:
        print_json(_document(found.as_json(), points, delta, seed))
        return
    print_fit(found, str(points))


@app.command
def predict(
    points: Path, /, *,
    params: Annotated[float, Parameter(help="Parameters of the run.")],
    tokens: Annotated[float, Parameter(help="Tokens that it will see.")],
    law: LawOption = "hoffmann", delta: DeltaOption = scaling.DELTA, seed: SeedOption = 0, json: JsonFlag = False,
) -> None:  # fmt: skip
    """Predict the loss of a run from finished ones.

    Parameters
    ----------
    points
        CSV file with columns params, tokens, loss.

    """
    found = fitted(points, law, delta, seed)
    prediction = scaling.predict(found, params, tokens, Seed(seed))
    if json:
        print_json(_document({**prediction.as_json(), "fit": found.as_json()}, points, delta, seed))
        return
    print_prediction(prediction)


@app.command
def optimal(
    points: Path, /, *,
    flops: Annotated[float, Parameter(help="Operations that may be spent, as 1e21.")],
    law: LawOption = "hoffmann", delta: DeltaOption = scaling.DELTA, seed: SeedOption = 0, json: JsonFlag = False,
) -> None:  # fmt: skip
    """Find the parameters and tokens with the lowest loss for a number of operations.

    Parameters
    ----------
    points
        CSV file with columns params, tokens, loss.

    """
    found = fitted(points, law, delta, seed)
    best = scaling.optimal(found, flops, Seed(seed))
    if json:
        print_json(_document({**best.as_json(), "fit": found.as_json()}, points, delta, seed))
        return
    run = best.prediction
    rows = [
        ("parameters", counted(run.params), *(counted(value) for value in best.params)),
        ("tokens", counted(run.tokens), *(counted(value) for value in best.tokens)),
        ("loss", f"{run.loss:.4f}", f"{run.low:.4f}", f"{run.high:.4f}"),
    ]
    print_table(f"the best use of {flops:.3g} operations", ("", "best", "low", "high"), rows)
    console().print(f"{run.tokens / run.params:,.1f} tokens for each parameter")
    print_warnings(run.warnings)


def fitted(path: Path, law: Form = "hoffmann", delta: float = scaling.DELTA, seed: int = 0) -> Fit:
    """Return the law of the points in a file."""
    if not 0 < delta < 1:
        raise UsageError(f"--delta {delta:g}: write a number between 0 and 1, such as {scaling.DELTA:g}")
    if seed < 0:
        raise UsageError(f"--seed {seed}: write a number from 0 on")
    return scaling.fit(read_points(path), Seed(seed), form=law, delta=delta)


def read_points(path: Path) -> Points:
    """Return the points in a CSV file; names the line of the first mistake."""
    import numpy as np

    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise UsageError(f"{path} is larger than {_LARGEST_FILE_BYTES >> 20} MiB; that is no table of runs")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can not be read as a table: {error}") from None
    rows = csv.DictReader(text.splitlines())
    names = [name.strip() for name in rows.fieldnames or ()]
    missing = [name for name in _COLUMNS if name not in names]
    if missing:
        raise UsageError(f"{path} has no column {', '.join(missing)}; the first line must name params, tokens and loss")
    rows.fieldnames = names
    table = [[_number(path, rows.line_num, name, row[name]) for name in _COLUMNS] for row in rows]
    columns = np.array(table, dtype=np.float64).reshape(-1, len(_COLUMNS))
    return Points(columns[:, 0], columns[:, 1], columns[:, 2])


def _number(path: Path, line: int, name: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        raise UsageError(f"{path}:{line}  {name} = {text!r} is no number") from None
    if not 0 < value < float("inf"):
        raise UsageError(f"{path}:{line}  {name} = {text} is not a finite number above zero; correct or remove the row")
    return value


def _document(document: dict[str, Any], points: Path, delta: float, seed: int) -> dict[str, Any]:
    asked = {"points": points.read_text(encoding="utf-8-sig"), "delta": delta}
    asked["law"] = document.get("fit", document)["law"]
    return {**document, "provenance": provenance(asked, seed).as_json()}


def counted(value: float) -> str:
    """Return a number of parameters or tokens as people say it: 70 B, 1.4 T."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{significant(value / size)} {unit}"
    return significant(value)


def print_fit(found: Fit, name: str) -> None:
    """Print the constants, what was left out, and what to be careful about."""
    document = found.as_json()
    meanings = {
        "E": "what no run gets below", "A": "few parameters: A / N^alpha", "alpha": "", "B": "few tokens: B / D^beta",
        "beta": "",
    }  # fmt: skip
    if found.law.form == "kaplan":
        meanings |= {"A": "endless tokens: A / N^alpha", "B": "endless parameters: B / D^beta"}
    rows = [
        (key, f"{document[key]:,.5g}", f"{document[f'{key}_low']:,.5g}", f"{document[f'{key}_high']:,.5g}", meaning)
        for key, meaning in meanings.items()
    ]
    title = f"{scaling.FORMULAS[found.law.form]}, fitted to {len(found.points):,} runs of {name}"
    print_table(title, ("", "fitted", "low", "high", ""), rows, words=(0, 4))
    out = console()
    out.print(f"single runs scatter by {found.scale:.2%}; intervals hold nineteen in twenty of resampled fits")
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
    console().print(
        f"loss {prediction.loss:.4f}, nineteen in twenty between {prediction.low:.4f} and {prediction.high:.4f}:"
        f" {counted(prediction.params)} parameters, {counted(prediction.tokens)} tokens,"
        f" {prediction.flops:.3g} operations, {significant(prediction.factor)} times the largest run seen",
        soft_wrap=True,
    )
    print_warnings(prediction.warnings)


def print_warnings(warnings: tuple[str, ...]) -> None:
    """Print what to be careful about."""
    for warning in warnings:
        console().print(f"careful: {warning}", markup=False, soft_wrap=True)


def _draw(figure: "Figure", found: Fit) -> None:
    import numpy as np

    left, right = figure.subplots(1, 2)
    points, out = found.points, list(found.outliers)
    kept = np.delete(np.arange(len(points)), out)
    predicted = found.law.loss(points.params, points.tokens)
    span = (float(min(points.loss.min(), predicted.min())), float(max(points.loss.max(), predicted.max())))
    left.plot(span, span, color="0.6", linewidth=1)
    left.scatter(predicted[kept], points.loss[kept], s=12, label="runs")
    left.scatter(predicted[out], points.loss[out], s=24, marker="x", color="tab:red", label="left out")
    left.set(xlabel="loss by the law", ylabel="loss measured")
    left.legend()
    flops = np.geomspace(float(points.flops.min()), float(points.flops.max()) * 100, 80)
    right.scatter(points.flops[kept], points.loss[kept], s=12, color="0.5", label="runs")
    curves: list[Prediction] = []
    with contextlib.suppress(UsageError):
        curves = [scaling.optimal(found, float(value), Seed(0)).prediction for value in flops]
    if curves:
        right.plot(flops, [one.loss for one in curves], color="tab:orange", label="best use of the operations")
        lows, highs = [one.low for one in curves], [one.high for one in curves]
        right.fill_between(flops, lows, highs, color="tab:orange", alpha=0.2)
    right.set(xscale="log", xlabel="operations (6 N D)", ylabel="loss")
    right.legend()
