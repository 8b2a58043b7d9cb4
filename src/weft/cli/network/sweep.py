"""`weft simulate sweep`: a scenario over many values, into one table."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.output import print_json, print_table, save_plot, writing
from weft.core.errors import UsageError
from weft.core.specfile import Library, load
from weft.netsim.sweeps import rows_of
from weft.specs.sweep import SweepSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NONE_BUILT_IN = Library("sweep", Path(__file__).parent / "none")


def run_sweep(file: str | None, out: Path | None, *, json: bool, plot: Path | None) -> None:
    """Run the sweep of `file`, resuming it where rows are there, and write its table."""
    if file is None:
        raise UsageError("name the sweep's file: weft simulate sweep FILE")
    spec = load(file, SweepSpec, _NONE_BUILT_IN)
    target = out or Path(f"{spec.name}.parquet")
    if target.suffix != ".parquet":
        raise UsageError(f"--out {target}: write a name that ends in .parquet")
    rows = rows_of(spec, target.with_suffix(".rows"), watch=_watch if sys.stderr.isatty() else None)
    import polars

    with writing(target) as part:
        polars.DataFrame(rows).write_parquet(part)
    if plot is not None:
        save_plot(plot, lambda figure: _draw(figure, spec, rows))
    if json:
        print_json({"sweep": spec.name, "runs": len(rows), "file": str(target), "rows": rows})
        return
    columns = ("gpus", "size", "load", "transport", "failed_links", "seed", "fct_mean_us", "fct_p99_us", "fct_max_us")
    table = [tuple("-" if row[name] is None else str(row[name]) for name in columns) for row in rows]
    print_table(f"{spec.name}: {len(rows)} runs, in {target}", columns, table)


def _watch(done: int, total: int) -> None:
    sys.stderr.write(f"\r{done} of {total} runs" + ("\n" if done == total else ""))


def _draw(figure: "Figure", spec: SweepSpec, rows: list[dict[str, Any]]) -> None:
    """Draw p99 and mean completion over the first value that is varied, one colour a transport."""
    from weft.cli.pictures import COLOURS

    varied = next((name for name in ("gpus", "size", "load", "failed_links") if len(getattr(spec, name)) > 1), "seed")
    axes = figure.subplots()
    for colour, transport in zip(COLOURS, sorted({row["transport"] for row in rows}), strict=False):
        for name, style in (("fct_mean_us", "o-"), ("fct_p99_us", "s--")):
            mine = [row for row in rows if row["transport"] == transport and row[name] is not None]
            places = sorted({row[varied] for row in mine})
            means = [_mean([row[name] for row in mine if row[varied] == place]) for place in places]
            axes.plot(places, means, style, color=colour, label=f"{transport} {name[4:-3]}")
    axes.set(title=spec.name, xlabel=varied, ylabel="completion time, us", ylim=(0, None))
    axes.legend()


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
