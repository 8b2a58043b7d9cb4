"""Published fleets beside simulated ones: `python -m verification.published_fleets` writes docs/published-fleets.md.

Each built-in scenario has the rates of one source. What comes out is compared with what the source says; nothing is
tuned to it, and a miss is written down with its likely reason.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.campaign.seeds_in_parallel import Question, outcomes
from weft.specs import load_campaign, load_site

PAGE = Path(__file__).parents[1] / "docs" / "published-fleets.md"
SEEDS = 5


@dataclass(frozen=True)
class PublishedFigure:
    """One figure of a source, and how a campaign says the same."""

    scenario: str
    site: str
    what: str
    published: str
    low: float
    """What is published, or the least of it."""
    high: float
    """The most of it."""
    simulated: Callable[[dict[str, Any]], float]
    form: str = "{:.1%}"
    miss: str = ""
    """Why it may be missed, where it is."""


def _gang(name: str, key: str) -> Callable[[dict[str, Any]], float]:
    def found(document: dict[str, Any]) -> float:
        return next(each[key] for each in document["gangs"] if each["name"] == name)

    return found


_24K, _131K = "h100-400g-24k", "gb200-8x100g-131k"
_RSC_MISS = (
    "the source's own formula, with these times, gives 0.84 for 4,096 GPUs and 0.88 for 2,048; its jobs above 0.9 had "
    "shorter restarts or the rate of RSC-2"
)
FIGURES = (
    PublishedFigure("llama3", _24K, "unexpected interruptions in 54 days", "419", 419, 419,
                    _gang("llama3", "interruptions"), "{:.0f}"),
    PublishedFigure("llama3", _24K, "effective training time", "> 90 %", 0.9, 1.0, _gang("llama3", "ettr")),
    PublishedFigure("meta-rsc", _24K, "MTTF of 16,384 GPUs", "1.8 h (projected)", 1.8, 1.8,
                    _gang("gpus-16384", "mtbf_h"), "{:.2f} h",
                    "failures that strike while it restarts lengthen one stop and are counted once more"),
    PublishedFigure("meta-rsc", _24K, "MTTF of 1,024 GPUs", "7.9 h (observed)", 7.9, 7.9, _gang("gpus-1024", "mtbf_h"),
                    "{:.1f} h", "the published rate itself gives 28.9 h; the observation counts more than hardware"),
    PublishedFigure("meta-rsc", _24K, "ETTR of 4,096 GPUs, hourly checkpoints", "> 90 %", 0.9, 1.0,
                    _gang("gpus-4096", "ettr"), miss=_RSC_MISS),
    PublishedFigure("meta-rsc", _24K, "ETTR of 2,048 GPUs, hourly checkpoints", "> 90 %", 0.9, 1.0,
                    _gang("gpus-2048", "ettr"), miss=_RSC_MISS),
    PublishedFigure("byterobust", _24K, "ETTR of 9,600 GPUs over three months", "97 %", 0.97, 0.97,
                    _gang("dense-9600", "ettr"), miss="code changes and rollbacks of people are not in the rate"),
    PublishedFigure("ft-hsdp-restart", _131K, "effective time of 100,000 GPUs, all ranks restart in 10 min", "44 %",
                    0.44, 0.44, _gang("gpus-100k", "ettr"),
                    miss="the source subtracts 10 of every 18 min; failures that strike during a restart overlap it"),
    PublishedFigure("ft-hsdp-in-step", _131K, "the same, lost ranks replaced in 3 min", "80 %", 0.8, 0.8,
                    _gang("gpus-100k", "ettr"), miss="a failure that strikes during a replacement restarts all ranks"),
)  # fmt: skip
TOLERANCE = 0.02
"""Within this, relative, a figure is met."""


def verdict(figure: PublishedFigure, low: float, high: float) -> str:
    """Return whether simulated figures between `low` and `high` meet the published ones."""
    met = high >= figure.low * (1 - TOLERANCE) and low <= figure.high * (1 + TOLERANCE)
    return "met" if met else "missed"


def rows(seeds: int) -> list[tuple[PublishedFigure, float, float, float]]:
    """Run every scenario and return mean, least and most of each figure."""
    runs: dict[str, list[dict[str, Any]]] = {}
    found: list[tuple[PublishedFigure, float, float, float]] = []
    for figure in FIGURES:
        if figure.scenario not in runs:
            question = Question(load_site(figure.site), load_campaign(figure.scenario))
            runs[figure.scenario] = outcomes(question, range(seeds), 1)
        values = [figure.simulated(document) for document in runs[figure.scenario]]
        found.append((figure, sum(values) / len(values), min(values), max(values)))
    return found


def page(found: list[tuple[PublishedFigure, float, float, float]], seeds: int) -> str:
    """Return the page."""
    lines = [
        "# Published fleets",
        "",
        "For who asks how far a campaign can be trusted: fleets that somebody has published, simulated with the rates of the",
        f"same source, over {seeds} seeds. `python -m verification.published_fleets` makes this page. Rates are the source's;",
        "outcomes are compared and not tuned. The scenarios are built in, and say which row of which table each rate is.",
        "",
        "| scenario | what | published | simulated, mean (least to most) | |",
        "|---|---|---|---|---|",
    ]
    for figure, mean, low, high in found:
        shown = [figure.form.format(value) for value in (mean, low, high)]
        said = verdict(figure, low, high)
        why = f": {figure.miss}" if said == "missed" and figure.miss else ""
        lines.append(
            f"| `{figure.scenario}` | {figure.what} | {figure.published} | {shown[0]} ({shown[1]} to {shown[2]}) | "
            f"{said}{why} |"
        )
    lines += ["", "| scenario | source | run on |", "|---|---|---|"]
    for name in dict.fromkeys(figure.scenario for figure in FIGURES):
        site = next(figure.site for figure in FIGURES if figure.scenario == name)
        lines.append(f"| `{name}` | {load_campaign(name).source} | `{site}` |")
    lines += [
        "",
        "What the sources do not publish is an assumption that the scenario's file names: how long Llama 3's planned stops and",
        "restarts lasted, how soon silent corruption was found, and restart times of ByteRobust in seconds.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(rows(SEEDS), SEEDS), encoding="utf-8")
