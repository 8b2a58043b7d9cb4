"""`weft explain`: prints why a decision of the fabric works, with a site's numbers; draws it where asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from weft.cli.output import JsonFlag, PlotFile, SiteArgument, console, print_json, print_table, save_picture
from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.specs import load_site

if TYPE_CHECKING:
    from weft.fabric.explain import Explanation

_WIDEST = 100


def explain(
    topic: Annotated[str, Parameter(help="planes, spraying, static-routing, lossy or tail.")],
    site: SiteArgument = "gb200-8x100g-131k",
    /,
    *,
    seed: Annotated[int, Parameter(help="Seed of the simulations beside the formulas.")] = 0,
    json: JsonFlag = False,
    plot: PlotFile = None,
) -> None:
    """Show why a design decision works, with a site's numbers and a simulation beside every formula."""
    from weft.fabric.explain import explain as explained

    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed {seed}: write a number from 0 to 2^63 - 1")
    explanation = explained(topic, load_site(site), Seed(seed))
    save_picture(plot, "draw_explanation", explanation, size=(12.0, 4.8))
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
