"""`weft explain`: prints why a decision of the fabric works, with a site's numbers; draws it where asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from weft.cli.output import JsonFlag, PlotFile, console, print_json, print_table, save_plot
from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.specs import load_site

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from weft.fabric.explain import Explanation, Panel, PlotSeries

_WIDEST = 100
# Okabe and Ito's colours, which colour-blind readers can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
_STYLES = {"line": "-", "dashes": "--", "points": "none"}
_MARKERS = ("o", "s", "D", "^")


def explain(
    topic: str,
    site: str = "gb200-8x100g-131k",
    /,
    *,
    seed: Annotated[int, Parameter(help="Seed of the simulations beside the formulas.")] = 0,
    json: JsonFlag = False,
    plot: PlotFile = None,
) -> None:
    """Show why a design decision works, with a site's numbers and a simulation beside every formula.

    Parameters
    ----------
    topic
        planes, spraying, static-routing, lossy or tail.
    site
        Built-in name or path of a site file.

    """
    from weft.fabric.explain import explain as explained

    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed {seed}: write a number from 0 to 2^63 - 1")
    explanation = explained(topic, load_site(site), Seed(seed))
    save_plot(plot, lambda figure: _draw(figure, explanation), size=(12.0, 4.8))
    if json:
        print_json(explanation.as_json())
        return
    _print(explanation)


def _print(explanation: Explanation) -> None:
    from rich.markup import escape
    from rich.padding import Padding
    from rich.text import Text

    page = console()
    width = min(_WIDEST, page.width)
    page.print(f"[bold]{escape(explanation.title)}[/]  [dim]{escape(explanation.site)}[/]\n")
    page.print(Text(explanation.decision, style="bold cyan"), width=width)
    page.print()
    page.print(Text(explanation.surprise, style="italic"), width=width)
    for paragraph in explanation.paragraphs:
        page.print()
        page.print(Text(paragraph), width=width)
    page.print()
    print_table("in numbers", explanation.table.columns, explanation.table.rows)
    _print_checks(explanation)
    page.print("[bold]sources[/]")
    for source in explanation.sources:
        page.print(Padding(Text(source, style="dim"), (0, 0, 0, 2)), width=width)


def _print_checks(explanation: Explanation) -> None:
    from rich.markup import escape

    from weft.fabric.explain.base import shown, shown_pair

    colours = {"agrees": "green", "disagrees": "bold red", "simulated only": "dim"}
    rows: list[tuple[str, ...]] = []
    for check in explanation.checks:
        closed = "-" if check.closed is None else shown(check.closed, check.unit, digits=4)
        words = (escape(check.quantity), escape(check.formula))
        verdict = f"[{colours[check.verdict]}]{check.verdict}[/]"
        rows.append((*words, closed, *shown_pair(check.simulated, check.unit), verdict))
    if rows:
        title = f"formulas beside simulations (seed {explanation.provenance.seed}; agree: within 4 standard errors)"
        print_table(title, ("quantity", "formula", "value", "simulated", "error", "verdict"), rows, words=(0, 1, 5))


def _draw(figure: Figure, explanation: Explanation) -> None:
    figure.suptitle(f"{explanation.title} ({explanation.site})")
    axes = figure.subplots(1, len(explanation.panels), squeeze=False)[0]
    for axis, panel in zip(axes, explanation.panels, strict=True):
        _draw_panel(axis, panel)


def _draw_panel(axis: Axes, panel: Panel) -> None:
    axis.set_title(panel.title, fontsize=10)
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
    if panel.x_log:
        axis.set_xscale("log")
    if panel.x_ticks:
        axis.set_xticks(panel.x_ticks, [f"{tick:g}" for tick in panel.x_ticks])
        axis.set_xticks([], minor=True)
    if panel.y_log:
        axis.set_yscale("log")
    markers = iter(_MARKERS)
    for number, series in enumerate(panel.series):
        marker = next(markers) if series.marks == "points" else ""
        _draw_series(axis, series, _COLOURS[number % len(_COLOURS)], marker)
    axis.legend(fontsize=8, framealpha=0.9)


def _draw_series(axis: Axes, series: PlotSeries, colour: str, marker: str) -> None:
    style = _STYLES[series.marks]
    if series.error:
        # Two standard errors: a line outside the bar deserves a look.
        bars = [2 * error for error in series.error]
        axis.errorbar(
            series.x, series.y, bars, linestyle=style, marker=marker, markersize=4, capsize=3, color=colour,
            label=series.name,
        )  # fmt: skip
    else:
        axis.plot(series.x, series.y, linestyle=style, marker=marker, color=colour, label=series.name)
