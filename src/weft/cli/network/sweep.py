"""`weft simulate sweep`: a scenario over many values, into one table."""

from functools import partial
from pathlib import Path

from weft.cli.output import print_json, print_table, progress, save_picture, writing
from weft.core.errors import UsageError
from weft.core.specfile import Library, load
from weft.netsim.sweeps import rows_of
from weft.specs.scenario import SweepSpec

_NONE_BUILT_IN = Library("sweep", Path(__file__).parent / "none")


def run_sweep(file: str | None, out: Path | None, *, json: bool, plot: Path | None) -> None:
    """Run the sweep of `file`, resuming it where rows are there, and write its table."""
    if file is None:
        raise UsageError("name the sweep's file: weft simulate sweep FILE")
    spec = load(file, SweepSpec, _NONE_BUILT_IN)
    target = out or Path(f"{spec.name}.parquet")
    if target.suffix != ".parquet":
        raise UsageError(f"--out {target}: write a name that ends in .parquet")
    with progress() as watch:
        rows = rows_of(spec, target.with_suffix(".rows"), watch=partial(watch, spec.name))
    import polars

    with writing(target) as part:
        polars.DataFrame(rows).write_parquet(part)
    save_picture(plot, "draw_sweep", spec, rows)
    if json:
        print_json({"sweep": spec.name, "runs": len(rows), "file": str(target), "rows": rows})
        return
    plain = ("gpus", "size", "load", "transport", "failed_links")
    columns = (*plain, *spec.vary, "seed", "fct_mean_us", "fct_p99_us", "fct_max_us")
    table = [tuple("-" if row[name] is None else str(row[name]) for name in columns) for row in rows]
    print_table(f"{spec.name}: {len(rows)} runs, in {target}", columns, table)
