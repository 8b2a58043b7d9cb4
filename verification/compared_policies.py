"""Policies compared by campaigns: `python -m verification.compared_policies` writes docs/compared-policies.md.

Each pair runs with the same seeds. The page says which way the literature says that the figure moves, and whether the
interval of the difference says the same.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.campaign.comparison import compared
from weft.campaign.seeds_in_parallel import outcomes
from weft.cli.planning.campaign import CHOICES, question_of
from weft.core.quantity import significant

PAGE = Path(__file__).parents[1] / "docs" / "compared-policies.md"
SITE, SEEDS = "gb200-4x200g-32k", 5
COMMON = ("nodes=1440", "duration=60 d", "spares=36")
HARSH = ("components.gpu.rate=120000 FIT", "components.optic.rate=3000 FIT")
"""Ten times the usual rates: 60 days of 5,760 GPUs show what a year of 10,000 would."""

USUAL = ("components.gpu.rate=12000 FIT", "components.optic.rate=300 FIT")
"""The site's own, where ten times as many failures would leave nothing at work."""


@dataclass(frozen=True)
class ComparedPair:
    """Two policies, and what is expected of the second."""

    first: str
    second: str
    figure: str
    up: bool
    """Whether the literature says that the figure rises with the second."""
    source: str
    more: tuple[str, ...] = ()
    """Changes of both sides."""


PAIRS = (
    ComparedPair("no-spares", "spares", "ETTR of the gangs", True, "Delta, SC 2025; ByteRobust, SOSP 2025", USUAL),
    ComparedPair("one-plane", "eight-planes", "ETTR of the gangs", True, "arXiv 2605.04333"),
    ComparedPair("bgp", "mrc", "ETTR of the gangs", True, "arXiv 2605.04333", ("network.core_flap=20000000 FIT",)),
    ComparedPair("restart", "in-step", "ETTR of the gangs", True, "arXiv 2602.00277"),
    ComparedPair("whole-racks", "64-of-72", "goodput", True, "16 good trays of 18 keep a rack at work for days", USUAL),
    ComparedPair("no-screening", "screening-weekly", "poisoned steps kept", False, "Meta Fleetscanner and Ripple",
                 ("silent.rate=20000 FIT", "silent.go_back=30 d")),
    ComparedPair("screening-weekly", "screening-daily", "poisoned steps kept", False, "Meta Fleetscanner and Ripple",
                 ("silent.rate=20000 FIT", "silent.go_back=30 d")),
)  # fmt: skip


def row_of(pair: ComparedPair) -> dict[str, Any]:
    """Run a pair and return the row of its figure."""
    sides = []
    for name in (pair.first, pair.second):
        changes = [*COMMON, *HARSH, *pair.more, *CHOICES[name]]
        question = question_of(SITE, "standard", changes)
        if pair.first == "no-spares":
            # Both gangs are as large: what differs is who stands by.
            gang = question.spec.gangs[0].model_copy(update={"gpus": 4 * (1440 - 36)})
            nodes = {"spares": {"nodes": 1440}, "no-spares": {"nodes": 1404}}[name]
            question = replace(question, spec=question.spec.model_copy(update={"gangs": (gang,), **nodes}))
        sides.append(outcomes(question, range(SEEDS), 1))
    return next(each for each in compared(*sides) if each["figure"] == pair.figure)


def line_of(pair: ComparedPair, row: dict[str, Any]) -> str:
    """Return the page's line about a pair."""
    if not row["differs"]:
        said = "the interval holds 0"
    else:
        said = "as expected" if (row["difference"] > 0) == pair.up else "the other way"
    numbers = [significant(row[key], 3) for key in ("first", "second", "difference", "low", "high")]
    return (
        f"| {pair.first} | {pair.second} | {pair.figure} | {'up' if pair.up else 'down'} ({pair.source}) | {numbers[0]} | "
        f"{numbers[1]} | {numbers[2]} ({numbers[3]} to {numbers[4]}) | {said} |"
    )


def page(rows: list[tuple[ComparedPair, dict[str, Any]]]) -> str:
    """Return the page."""
    lines = [
        "# Policies compared",
        "",
        "For who chooses between policies: pairs of campaigns over the same faults, and the 95 % interval of the difference.",
        f"`python -m verification.compared_policies` makes this page: site `{SITE}`, 1,440 nodes, 60 days, {SEEDS} seeds,",
        "GPUs that fail ten times as often as the site's, so that differences show within minutes; at the site's own rates for",
        "spares and racks.",
        "",
        "| first | second | figure | expected of the second | first | second | difference | |",
        "|---|---|---|---|---|---|---|---|",
        *(line_of(pair, row) for pair, row in rows),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page([(pair, row_of(pair)) for pair in PAIRS]), encoding="utf-8")
