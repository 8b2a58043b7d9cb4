"""`weft explain`: prints why a decision of the fabric works, with a site's numbers; draws it where asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from weft.cli.output import (
    JsonFlag,
    PlotFile,
    SiteArgument,
    print_json,
    print_table,
    save_picture,
    say,
    say_paragraph,
    seed_option,
)
from weft.core.seeds import Seed
from weft.specs import load_site

if TYPE_CHECKING:
    from weft.fabric.explain import Explanation


def explain(
    topic: Annotated[str, Parameter(help="planes, spraying, static-routing, lossy or tail.")],
    site: SiteArgument = "gb200-8x100g-131k",
    /,
    *,
    seed: Annotated[int, seed_option("Seed of the simulations beside the formulas.")] = 0,
    json: JsonFlag = False,
    plot: PlotFile = None,
) -> None:
    """Show why a design decision works, with a site's numbers and a simulation beside every formula."""
    from weft.fabric.explain import explain as explained

    explanation = explained(topic, load_site(site), Seed(seed))
    save_picture(plot, "draw_explanation", explanation, size=(12.0, 4.8))
    if json:
        print_json(explanation.as_json())
        return
    _print(explanation)


def _print(explanation: Explanation) -> None:
    say_paragraph(f"{explanation.title} ({explanation.site})", "bold")
    say("")
    say_paragraph(explanation.decision, "bold cyan")
    say("")
    say_paragraph(explanation.surprise, "italic")
    for paragraph in explanation.paragraphs:
        say("")
        say_paragraph(paragraph)
    say("")
    print_table("in numbers", explanation.table.columns, explanation.table.rows)
    _print_checks(explanation)
    say("sources", "bold")
    for source in explanation.sources:
        say_paragraph(source, "dim")


def _print_checks(explanation: Explanation) -> None:
    from weft.fabric.explain.base import shown, shown_pair

    colours = {"agrees": "green", "disagrees": "bold red", "simulated only": "dim"}
    rows: list[tuple[str, ...]] = []
    for check in explanation.checks:
        closed = "-" if check.closed is None else shown(check.closed, check.unit, digits=4)
        figures = (closed, *shown_pair(check.simulated, check.unit))
        rows.append((check.quantity, check.formula, *figures, check.verdict))
    if rows:
        title = f"formulas beside simulations (seed {explanation.provenance.seed}; agree: within 4 standard errors)"
        columns = ("quantity", "formula", "value", "simulated", "error", "verdict")
        print_table(title, columns, rows, words=(0, 1, 5), marks=colours)
