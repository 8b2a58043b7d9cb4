"""The charts of the page as SVG: drawn here, so that the page says the same without scripts and on paper.

Every bar and point is a mark with its figures; the page's script shows them under the pointer and the arrow keys.
Colours are classes, so that light, dark and print are the styles' matter.
"""

import itertools
from collections.abc import Iterator, Sequence

from weft.cli.planning.page.formats import shown
from weft.cli.planning.page.places import DocumentPlace, escaped, mark

WIDE, HALF = 1120, 540
"""Widths of a chart over the whole page, and of one of two beside each other."""
_ROW, _BAR, _LABEL, _AXIS = 44, 20, 15, 26
_MOST_PLANES, _MOST_SWITCHES = 8, 4
_FAR = 10
"""A limit that lies this many times above what is drawn is said, not drawn: it would flatten the rest."""
_TICKS = 5
_KINDS = {"forward": 0, "backward": 1, "weights": 2, "exposed": 5, "gradients": 5, "update": 3}


def svg(width: int, height: int, name: str, body: str) -> str:
    """Return a chart that can be focused; the arrow keys then go from mark to mark."""
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" tabindex="0" role="group" aria-label="{escaped(name)}">'
        f"{body}</svg>"
    )


def fabric(page: DocumentPlace) -> str:
    """Return one NIC, its port in every plane, and a few switches of each tier with their number."""
    tiers, planes = page["tiers"], min(page.value["planes"], _MOST_PLANES)
    top, step = 30, 74
    levels = [top + step * (len(tiers.value) - 1 - number) for number in range(len(tiers.value))]
    bottom = levels[0] + step
    left, width = 44, HALF - 52
    parts: list[str] = []
    for plane in range(planes):
        parts += _plane(tiers, plane, left + width * plane / planes, width / planes, levels)
        first = left + width * plane / planes + width / planes * 0.5 / _dots(tiers[0])
        parts.insert(
            0, f'<path class="wire p{plane % 8}" d="M{left + width / 2:.1f} {bottom}L{first:.1f} {levels[0]}"/>'
        )
    rate = page["facts"][2]
    tip = f"one NIC, {rate.words}, a port of {page['facts'][3].words} in every plane"
    box = f'<rect class="mark nic" x="{left + width / 2 - 9:.1f}" y="{bottom - 9}" width="18" height="18" '
    parts.append(f"{box}{mark([rate, page['facts'][3]], tip)}/>")
    parts += [f'<text class="tier" x="4" y="{level + 4}">{escaped(str(tier["name"].value))}</text>'
              for tier, level in zip(tiers, levels, strict=True)]  # fmt: skip
    parts.append(f'<text class="tier" x="4" y="{bottom + 4}">NIC</text>')
    return svg(HALF, bottom + 24, "The fabric", "".join(parts))


def _dots(tier: DocumentPlace) -> int:
    return min(_MOST_SWITCHES, tier.value["per_plane"])


def _plane(tiers: DocumentPlace, plane: int, left: float, width: float, levels: Sequence[int]) -> list[str]:
    rows = [[left + width * (i + 0.5) / _dots(tier) for i in range(_dots(tier))] for tier in tiers]
    parts: list[str] = []
    for (low, lower), (high, upper) in itertools.pairwise(zip(levels, rows, strict=True)):
        lines = "".join(f"M{x:.1f} {low}L{y:.1f} {high}" for x in lower for y in upper)
        parts.append(f'<path class="wire thin p{plane % 8}" d="{lines}"/>')
    for tier, row, level in zip(tiers, rows, levels, strict=True):
        count = tier["per_plane"]
        tip = f"plane {plane}: {count.value:,} {tier.value['name']} switches"
        dots = "".join(f'<rect x="{x - 5:.1f}" y="{level - 5}" width="10" height="10"/>' for x in row)
        parts.append(f'<g class="mark p{plane % 8}" {mark([count], tip)}>{dots}</g>')
        parts.append(
            f'<text class="count" x="{left + width / 2:.1f}" y="{level - 11}" {count.attributes}>{count.value:,}</text>'
        )
    return parts


def step_parts(page: DocumentPlace) -> str:
    """Return the whole step as one bar of its parts."""
    total, x = page["step"].value["value"], 0.0
    parts: list[str] = []
    for number, part in enumerate(page["parts"]):
        width = WIDE * part.value["value"] / total
        tip = f"{part.value['name']}: {part.words}, {part['share'].words} of the step"
        parts.append(_rect(f"mark s{_part_colour(part.value['key'], number)}", (x, 2, width, 34), mark([part], tip)))
        x += width
    return svg(WIDE, 40, "Parts of the step", "".join(parts))


_PART_COLOURS = ("compute_s", "recompute_s", "tensor_s", "context_s", "expert_s", "pipeline_s", "bubble_s", "data_s",
                 "optimizer_s", "straggler_s")  # fmt: skip


def _part_colour(key: str, number: int) -> int:
    return _PART_COLOURS.index(key) if key in _PART_COLOURS else number % 10


def part_colour(part: DocumentPlace) -> int:
    """Return the number of the colour of a step's part."""
    return _part_colour(part.value["key"], 0)


def pipeline(page: DocumentPlace) -> str:
    """Return the pipeline as bars, one row for a stage, exposed communication at the end of the bars."""
    stages, end = page.value["stages"], page["end"].value["value"] or 1.0
    left, height = 58, max(14, min(26, 168 // stages))
    scale = (WIDE - left - 4) / end
    parts = [
        f'<text class="tier" x="0" y="{height * stage + height / 2 + 4:.1f}">stage {stage}</text>'
        for stage in range(stages)
    ]
    parts += [_pipeline_bar(bar, left, scale, height) for bar in page["bars"]]
    for tail in page["tail"]:
        start, seconds = tail["start"].value["value"], tail["seconds"].value["value"]
        tip = f"{tail.value['kind']}: {tail['seconds'].words}"
        classes, more = f"mark k{_KINDS[tail.value['kind']]}", mark([tail["seconds"]], tip)
        parts += [
            _rect(classes, (left + start * scale, height * stage + 1, seconds * scale, height - 2), more)
            for stage in range(stages)
        ]
    bottom = height * stages
    parts += _axis(left, bottom, (WIDE - 4, end), "s")
    return svg(WIDE, bottom + _AXIS, "Timeline of the pipeline", "".join(parts))


def _pipeline_bar(bar: DocumentPlace, left: float, scale: float, height: int) -> str:
    held = bar.value
    start, seconds, exposed = (held[name]["value"] for name in ("start", "seconds", "exposed"))
    chunk = f", chunk {held['chunk']}" if held["chunk"] else ""
    tip = f"stage {held['stage']}, {held['kind']} of micro-batch {held['micro']}{chunk}: {bar['seconds'].words}"
    figures = [bar["seconds"]]
    if exposed:
        tip += f", of which {bar['exposed'].words} exposed communication"
        figures.append(bar["exposed"])
    y = height * held["stage"] + 1
    inner = _rect(
        f"k{_KINDS[held['kind']]} m{held['micro'] % 2}",
        (left + start * scale, y, (seconds - exposed) * scale, height - 2),
    )
    if exposed:
        inner += _rect("k5", (left + (start + seconds - exposed) * scale, y, exposed * scale, height - 2))
    return f'<g class="mark" {mark(figures, tip)}>{inner}</g>'


def memory(page: DocumentPlace) -> str:
    """Return the memory of each plan as one bar of its parts, and the capacity as a line."""
    capacity = page["capacity"].value["value"]
    most = max(row.value["total"]["value"] for row in page["rows"])
    near = capacity <= _FAR * most
    end = max(most, capacity) * 1.04 if near else most * 1.04
    scale = HALF / end
    parts: list[str] = []
    for number, row in enumerate(page["rows"]):
        y, x = number * _ROW, 0.0
        name = f"{'chosen: ' if number == 0 else ''}{row.value['plan']}"
        parts.append(f'<text x="0" y="{y + 12}" data-words="{escaped(row["plan"].path)}">{escaped(name)}</text>')
        parts.append(_value(row["total"], HALF, y + 12))
        for part in row["parts"]:
            width = part.value["value"] * scale
            tip = f"{part.value['name']}: {part.words}"
            colour = ("weights", "gradients", "optimizer", "activations", "working").index(part.value["name"])
            parts.append(_rect(f"mark m{colour}c", (x, y + _LABEL + 2, width, _BAR), mark([part], tip)))
            x += width
    bottom = len(page["rows"].value) * _ROW
    if near:
        x = capacity * scale
        tip = f"capacity: {page['capacity'].words}"
        line = "".join(f"M{x:.1f} {y * _ROW + _LABEL}v{_BAR + 4}" for y in range(len(page["rows"].value)))
        parts.append(f'<path class="limit mark" d="{line}" {mark([page["capacity"]], tip)}/>')
    parts += _axis(0, bottom, (HALF, end), "B")
    return svg(HALF, bottom + _AXIS, "Memory of one GPU", "".join(parts))


def bars(rows: Sequence[tuple[DocumentPlace, Sequence[DocumentPlace]]], name: str) -> str:
    """Return bars with a label above each: the first figure of a row is its length, all of them are said."""
    lengths = [figures[0].value["value"] for _, figures in rows]
    # What has no end takes the whole width, and what has one at most half of it.
    most = (max((each or 0.0 for each in lengths), default=0.0) or 1.0) * (2 if None in lengths else 1)
    parts: list[str] = []
    for number, (label, figures) in enumerate(rows):
        y = number * (_ROW - 5)
        said = ", ".join(each.words for each in figures)
        tip = f"{label.value}: {said}"
        endless = lengths[number] is None
        width = HALF * (1.0 if endless else (lengths[number] or 0.0) / most)
        parts.append(f'<text x="0" y="{y + 12}" data-words="{escaped(label.path)}">{escaped(str(label.value))}</text>')
        spans = "<tspan>, </tspan>".join(f"<tspan {each.attributes}>{escaped(each.words)}</tspan>" for each in figures)
        parts.append(f'<text class="value" x="{HALF}" y="{y + 12}">{spans}</text>')
        classes = "mark bar endless" if endless else "mark bar"
        parts.append(_rect(classes, (0, y + _LABEL + 2, max(width, 1.0), 12), mark(list(figures), tip)))
    return svg(HALF, len(rows) * (_ROW - 5), name, "".join(parts))


def power(page: DocumentPlace) -> str:
    """Return the draw at the meter over a few steps, with the contract's limit."""
    seconds, watts = page["wave"]["seconds"].value, page["wave"]["watts"].value
    limit = page["limit"].value["value"] if "limit" in page else None
    top = max(watts)
    near = limit is not None and limit <= _FAR * top
    end = max(top, limit if near and limit is not None else 0.0) * 1.08
    left, height, last = 64, 190, seconds[-1] or 1.0
    scale_x, scale_y = (HALF - left - 4) / last, height / end
    points = [(left + at * scale_x, height - drawn * scale_y) for at, drawn in zip(seconds, watts, strict=True)]
    parts = list(_grid(left, height, end))
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    parts.append(f'<path class="area" d="M{left} {height}L{line}L{points[-1][0]:.1f} {height}Z"/>')
    parts.append(f'<path class="wave" d="M{line}"/>')
    if near and limit is not None:
        y, tip = height - limit * scale_y, f"limit of the contract: {page['limit'].words}"
        parts.append(f'<path class="limit mark" d="M{left} {y:.1f}H{HALF - 4}" {mark([page["limit"]], tip)}/>')
    edges = [left, *((a[0] + b[0]) / 2 for a, b in itertools.pairwise(points)), HALF - 4]
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        tip = f"after {shown(seconds[number], 's')}: {shown(watts[number], 'W')}"
        figures = [page["wave"]["watts"][number]]
        parts.append(_rect("mark hit", (low, 0, max(high - low, 0.5), height), f'{mark(figures, tip)} data-unit="W"'))
    parts += _axis(left, height, (HALF - 4, last), "s")
    return svg(HALF, height + _AXIS, "Draw at the meter", "".join(parts))


def _rect(classes: str, box: tuple[float, float, float, float], more: str = "") -> str:
    """Return a rectangle at x, y of a width and a height."""
    x, y, width, height = box
    return (
        f'<rect class="{classes}" x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.0):.2f}" height="{height:.2f}" {more}/>'
    )


def _value(place: DocumentPlace, x: int, y: int) -> str:
    return f'<text class="value" x="{x}" y="{y}" {place.attributes}>{escaped(place.words)}</text>'


def _ticks(end: float) -> list[float]:
    """Return round numbers from 0 up to an end, some five of them."""
    rough = end / _TICKS
    power_of_ten = 10.0 ** int(f"{rough:e}".partition("e")[2])
    step = next(size * power_of_ten for size in (1, 2, 2.5, 5, 10) if size * power_of_ten >= rough)
    return [number * step for number in range(int(end / step * 1.0001) + 1)]


def _binary_ticks(end: float) -> list[float]:
    unit = 1.0
    while end >= unit * 1024:
        unit *= 1024
    return [tick * unit for tick in _ticks(end / unit)]


def _axis(left: float, y: float, reach: tuple[float, float], unit: str) -> Iterator[str]:
    """Yield a horizontal axis from 0 at `left` to an end at a place."""
    right, end = reach
    for tick in _binary_ticks(end) if unit == "B" else _ticks(end):
        x = left + (right - left) * tick / end
        anchor = "start" if x < left + 8 else "end" if x > right - 24 else "middle"
        yield f'<path class="tickmark" d="M{x:.1f} {y}v4"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{y + 17}" text-anchor="{anchor}">{escaped(shown(tick, unit))}</text>'


def _grid(left: float, height: float, end: float) -> Iterator[str]:
    for tick in _ticks(end):
        y = height - height * tick / end
        yield f'<path class="grid" d="M{left} {y:.1f}H{HALF - 4}"/>'
        yield f'<text class="tick" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{escaped(shown(tick, "W"))}</text>'
