"""The doctor's answer as one HTML file: verdict, findings with evidence, a heat map of ranks and steps, figures, files.

Self-contained: no script, nothing fetched, what files say is shown as text.
"""

import html
import re
from collections.abc import Sequence

import numpy as np

from weft.core.quantity import significant
from weft.diagnosis.finding import DiagnosisFinding
from weft.diagnosis.operations import Floats
from weft.diagnosis.step_program import StepProgram
from weft.doctor.examination import Examination

_MOST_CELLS = 160
_CELL = 8
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --bad: #b3261e; --soft: #888 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.25em; line-height: 1.35 } h2 { font-size: 1.05em; margin: 2em 0 .4em }
table { border-collapse: collapse }
td, th { padding: .2em 1.2em .2em 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line) }
.finding { border-left: 4px solid var(--soft); padding: .1em 1em; margin: 1em 0 }
.finding.act { border-color: var(--bad) }
.finding p { margin: .3em 0 } .small { color: var(--soft); font-size: .9em } .map { overflow-x: auto }
@media print { body { margin: 0 } }
"""


def page_of(found: Examination) -> str:
    """Return the page."""
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>",
        f"<title>weft doctor: {html.escape(found.verdict()[:80])}</title><style>{_STYLE}</style>",
        f"<h1>{html.escape(found.verdict())}</h1>",
    ]
    parts += [_finding(one, found.gpu_hours_a_day(one)) for one in found.findings()]
    for program in found.programs:
        parts.append("<h2>Ranks and steps</h2>" + heat_map(program))
    for name, section in found.sections.items():
        if section.figures:
            rows = "".join(
                f"<tr><td>{html.escape(label(key))}<td>{html.escape(shown(value))}"
                for key, value in section.figures.items()
            )
            parts.append(f"<h2>{html.escape(name)}</h2><table>{rows}</table>")
    rows = "".join(
        f"<tr><td>{html.escape(one.path)}<td>{html.escape(one.reader or 'not read')}<td>{html.escape(one.found)}"
        for one in found.evidence.sources
    )
    parts.append(f"<h2>Files</h2><table><tr><th>file<th>kind<th>found{rows}</table></html>")
    return "\n".join(parts)


_SHORT = {"gpu": "GPU", "gpus": "GPUs", "mfu": "MFU"}


def label(key: str) -> str:
    """Return a figure's name for people: `step_ideal_s` is "step ideal (s)"."""
    # A rate is said in words: `tokens_per_s` is "tokens per second".
    words = re.sub(r"(?<=_per)_s(?=_|$)", "_second", key).split("_")
    words = [
        "GPU" if word == "gpu" else "GPUs" if word == "gpus" else "MFU" if word == "mfu" else word for word in words
    ]
    if words[-1] in {"s", "us", "bytes"}:
        return f"{' '.join(words[:-1])} ({words[-1]})"
    return " ".join(words)


def shown(value: float | str) -> str:
    """Return a figure for people."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) >= 1 else significant(value)


def _finding(one: DiagnosisFinding, hours: float | None) -> str:
    act = "" if one.verdict == "note" else " act"
    evidence = "".join(f"<li>{html.escape(line)}" for line in one.evidence)
    cost = "" if not one.cost_share else f", costs {one.cost_share:.1%} of all GPU time"
    cost += f": {hours:,.3g} GPU-hours a day" if hours else ""
    return (
        f"<div class='finding{act}'><p><b>{html.escape(one.verdict)}</b> {html.escape(one.sentence)}"
        f"<ul>{evidence}</ul><p class='small'>confidence {one.confidence:.0%}{cost}</div>"
    )


def own_time_ratios(program: StepProgram) -> tuple[Floats, Sequence[int]]:
    """Return each rank's own computing in each step over the middle one of its stage: rows are ranks."""
    alone = np.array([kind in {"compute", "collector", "input"} for kind in program.classes()])
    ranks = [int(rank) for rank in np.unique(program.rank)]
    own = program.durations()
    total = np.array([own[:, alone & (program.rank == rank)].sum(axis=1) for rank in ranks])
    stage = np.array([int(program.stage[program.rank == rank][0]) for rank in ranks])
    usual = np.array([np.median(total[stage == one]) for one in stage])
    return total / np.maximum(usual[:, None], 1e-12), ranks


def heat_map(program: StepProgram) -> str:
    """Return ranks (down) by steps (across) as a picture: red is slower than the middle of the rank's stage."""
    ratios, ranks = own_time_ratios(program)
    rows, columns = (min(size, _MOST_CELLS) for size in ratios.shape)
    # Of several ranks or steps in a cell, the slowest is shown: it is what others wait for.
    row_of = np.arange(ratios.shape[0]) * rows // ratios.shape[0]
    column_of = np.arange(ratios.shape[1]) * columns // ratios.shape[1]
    cells = np.zeros((rows, columns))
    np.maximum.at(cells, (row_of[:, None], column_of[None, :]), ratios)
    marks = []
    for row in range(rows):
        for column in range(columns):
            excess = float(np.clip((cells[row, column] - 1) / 0.3, 0, 1))
            marks.append(
                f"<rect x='{column * _CELL}' y='{row * _CELL}' width='{_CELL}' height='{_CELL}'"
                f" fill='rgb({int(60 + 195 * excess)},{int(130 * (1 - excess) + 20)},{int(180 * (1 - excess) + 20)})'/>"
            )
    first, last = int(program.steps[0]), int(program.steps[-1])
    return (
        f"<div class='map'><svg width='{columns * _CELL}' height='{rows * _CELL}' role='img'"
        f" aria-label='own time of ranks by steps'>{''.join(marks)}</svg></div>"
        f"<p class='small'>Ranks {ranks[0]} to {ranks[-1]} down, steps {first} to {last} across."
        " Red: its own computing takes 1.3 x the middle of its stage, or more.</p>"
    )
