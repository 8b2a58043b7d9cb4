"""`weft capacity`: which limit binds when, as demand grows and hardware, power and floor come."""

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from weft.campaign.capacity import LIMITS, forecast
from weft.cli.output import JsonFlag, PlotFile, print_json, print_table, save_plot, say, seed_option
from weft.core.errors import UsageError
from weft.core.provenance import provenance
from weft.core.quantity import POWER, SPEED
from weft.core.seeds import Seed
from weft.specs import load_capacity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_FUTURES = 100_000


def capacity(
    file: Annotated[str, Parameter(help="Capacity file, or a built-in name: frontier.")] = "frontier",
    /,
    *,
    futures: Annotated[int, Parameter(help="Futures that are drawn; intervals come from them.")] = 400,
    seed: Annotated[int, seed_option("Random seed.")] = 0,
    json: JsonFlag = False,
    plot: PlotFile = None,
) -> None:
    """Say which limit binds when: power, floor, delivery or money, with intervals."""
    if not 1 <= futures <= MOST_FUTURES:
        raise UsageError(f"--futures {futures}: draw 1 to {MOST_FUTURES:,}")
    spec = load_capacity(file)
    found = forecast(spec, futures, Seed(seed))
    document = {**found, "provenance": provenance(spec.as_written(), seed).as_json()}
    save_plot(plot, lambda figure: _draw(figure, found), size=(10.0, 7.0))
    if json:
        print_json(document)
        return
    rows = [
        (f"{row['year']:.2f}", SPEED.about(row["wanted"]["median"]), SPEED.about(row["had"]["median"]),
         SPEED.interval(row["had"]["p5"], row["had"]["median"], row["had"]["p95"]),
         POWER.about(1000 * row["power_w"]["median"]), f"{row['racks']['median']:,.0f}",
         ", ".join(f"{name} {share:.0%}" for name, share in row["binds"].items()) or "-")
        for row in found["quarters"][::2]
    ]  # fmt: skip
    columns = ("year", "asked for", "had", "90 % interval", "power", "racks", "binds (share of futures)")
    print_table(f"{file}: {futures:,} futures", columns, rows, words=(0, 6))
    for name, first in found["first_binds"].items():
        if first["year"] is not None:
            band = first["year"]
            say(f"{name} binds in {first['share']:.0%} of the futures, first in {band['median']:.2f} "
                f"(90 % interval {band['p5']:.2f} to {band['p95']:.2f})")  # fmt: skip


def _draw(figure: "Figure", found: dict[str, Any]) -> None:
    """Draw demand against what there is, and what binds."""
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    years = [row["year"] for row in found["quarters"]]
    for key, colour, label in (("wanted", "tab:orange", "asked for"), ("had", "tab:blue", "had")):
        low, middle, high = ([row[key][part] / 1e18 for row in found["quarters"]] for part in ("p5", "median", "p95"))
        above.plot(years, middle, color=colour, label=label)
        above.fill_between(years, low, high, color=colour, alpha=0.2)
    above.set_yscale("log")
    above.set_ylabel("useful EFLOP/s")
    above.legend()
    shares = [[100 * row["binds"].get(name, 0.0) for row in found["quarters"]] for name in LIMITS]
    below.stackplot(years, *shares, labels=LIMITS)
    below.set_ylabel("% of futures in which it binds")
    below.set_xlabel("year")
    below.legend(loc="upper left")
