"""The page as one HTML document: sections in the order in which a reader asks, styles and script inside.

Its policy (CSP) allows the styles and the script that stand in it, by their digests, and nothing else.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

from weft.cli.planning.page import charts
from weft.cli.planning.page.places import DocumentPlace, escaped

_ANSWERS = {
    "yes": ("yes", "Go"),
    "yes, with conditions": ("maybe", "Go, with conditions"),
    "no": ("no", "No go"),
}
_KINDS = {"forward": "k0", "backward": "k1", "weights": "k2", "gradients": "k5", "update": "k3"}
_FOOTER = (
    "<footer>Predictions of a cost model with the stated intervals, not promises. Hover over a chart, or focus it and "
    "use the arrow keys, for its figures. The same figures stand in this file as JSON (element rehearsal).</footer>"
)
_MITIGATION = (
    "mitigation", "swing left", "ramp left", "store for each GPU", "more energy", "longer steps", "price for the run",
    "violations left",
)  # fmt: skip
_MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "working")


def page_of(document: dict[str, Any]) -> str:
    """Return the page of a rehearsal's document, as `weft rehearse --json` prints it."""
    whole = DocumentPlace(document)
    page = whole["page"]
    style, script = _resource("page.css"), _resource("page.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    body = [_header(page), _tiles(page), f'<div class="grid">{"".join(_sections(whole))}</div>', _FOOTER]
    return "\n".join([
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escaped(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escaped(page.value['title'])}</title><style>{style}</style></head><body><main>",
        *body,
        '</main><div id="tip" role="status" hidden></div>',
        f'<script type="application/json" id="rehearsal">{_data(document)}</script>',
        f"<script>{script}</script></body></html>",
        "",
    ])  # fmt: skip


def _resource(name: str) -> str:
    return resources.files("weft.cli.planning.page").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _data(document: dict[str, Any]) -> str:
    """Return the document as JSON that cannot end the element in which it stands."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _header(page: DocumentPlace) -> str:
    verdict = page["verdict"]
    kind, answer = _ANSWERS[verdict.value["answer"]]
    about = ". ".join(page.value[name].strip().rstrip(".") for name in ("job", "site") if page.value[name])
    parts = [
        f'<header><h1 data-words="{page["title"].path}">{escaped(page.value["title"])}</h1>',
        f'<p class="headline"><span class="answer {kind}">{answer}</span>{verdict["headline"].sentence}</p>',
        f'<p class="about" data-words="/page/job /page/site">{escaped(about)}.</p>' if about else "",
    ]
    groups = (("How sure that is", "confidence"), ("What could go wrong", "risks"))
    shown = [(title, verdict[key]) for title, key in groups if verdict.value[key]]
    if shown:
        lists = "".join(
            f"<div><h3>{title}</h3><ul>{''.join(f'<li>{each.sentence}' for each in group)}</ul></div>"
            for title, group in shown
        )
        parts.append(f'<div class="two">{lists}</div>')
    return "".join([*parts, "</header>"])


def _tiles(page: DocumentPlace) -> str:
    if "tiles" not in page:
        return ""
    return f'<div class="tiles">{"".join(_tile(tile) for tile in page["tiles"])}</div>'


def _tile(tile: DocumentPlace) -> str:
    held = tile.value
    interval = "" if held["low"]["value"] is None or held["high"]["value"] is None else (
        f"<small>{tile['low'].figure} to {tile['high'].figure}<br>{escaped(held['range'])}</small>")  # fmt: skip
    return (
        f'<div class="tile"><b>{escaped(held["title"])}</b><strong>{tile["value"].figure}</strong>{interval}'
        f"<small>{tile['note'].sentence}</small></div>"
    )


def _sections(whole: DocumentPlace) -> list[str]:
    page = whole["page"]
    makers: tuple[tuple[str, Callable[[DocumentPlace], str]], ...] = (
        ("fabric", _fabric), ("memory", _memory), ("step", _step), ("failures", _failures), ("power", _power),
    )  # fmt: skip
    parts = [make(page[key]) for key, make in makers if key in page]
    if "power" in page and page["power"]["mitigations"].value:
        parts.append(_mitigations(page["power"]))
    if "alternatives" in page:
        parts.append(_alternatives(page["alternatives"]))
    if "step" in page:
        parts.append(_beside(whole))
    return [*parts, _assumptions(page["assumptions"]), _sources(page["sources"]), _provenance(whole)]


def _section(title: str, body: str, classes: str = "") -> str:
    name = f' class="{classes}"' if classes else ""
    return f"<section{name}><h2>{escaped(title)}</h2>{body}</section>"


def _notes(notes: DocumentPlace) -> str:
    return "".join(f'<p class="note">{note.sentence}</p>' for note in notes)


def _facts(facts: DocumentPlace) -> str:
    rows = "".join(f"<tr><td>{escaped(fact.value['what'])}<td>{fact.figure}" for fact in facts)
    return f"<table>{rows}</table>"


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    """Return a legend of (class, html of its words); pointing at an entry brings out its colour."""
    items = "".join(
        f'<li tabindex="0" data-colour="{colour}"><svg viewBox="0 0 10 10" aria-hidden="true">'
        f'<rect class="{colour}" width="10" height="10" rx="2"/></svg>{words}'
        for colour, words in entries
    )
    return f'<ul class="legend">{items}</ul>'


def _fabric(page: DocumentPlace) -> str:
    facts = page["facts"]
    half = (len(facts.value) + 1) // 2
    rows = [f"<tr><td>{escaped(fact.value['what'])}<td>{fact.figure}" for fact in facts]
    tables = "".join(f"<table>{''.join(part)}</table>" for part in (rows[:half], rows[half:]))
    note = f'<p class="note">{page["note"].sentence}</p>'
    return _section("The fabric", f'{charts.fabric(page)}{note}<div class="two">{tables}</div>')


def _memory(page: DocumentPlace) -> str:
    legend = _legend([(f"m{number}c", part) for number, part in enumerate(_MEMORY_PARTS)])
    note = f'<p class="note">{page["note"].sentence}</p>'
    return _section("Memory of one GPU", f"{charts.memory(page)}{legend}{note}")


def _step(page: DocumentPlace) -> str:
    legend = _legend([
        (f"s{charts.part_colour(part)}",
         f"{escaped(part.value['name'])} {part.figure} ({part['share'].figure})") for part in page["parts"]
    ])  # fmt: skip
    pipe = page["pipeline"]
    kinds = list(
        dict.fromkeys([*(bar["kind"] for bar in pipe.value["bars"]), *(t["kind"] for t in pipe.value["tail"])])
    )
    names = {
        "weights": "backward, weights only",
        "gradients": "exposed gradient reduction",
        "update": "optimizer update",
    }
    entries = [(_KINDS[kind], names.get(kind, kind)) for kind in kinds if kind != "gradients"]
    if "gradients" in kinds or any(bar["exposed"]["value"] for bar in pipe.value["bars"]):
        entries.append(("k5", "exposed communication"))
    body = (
        f"<p>One step takes {page['step'].figure}.</p>{charts.step_parts(page)}{legend}"
        f"<h3>Timeline</h3>{charts.pipeline(pipe)}{_legend(entries)}"
        f'<p class="note">{pipe["note"].sentence}</p>'
    )
    return _section("Where a step's time goes", body, "whole")


def _failures(page: DocumentPlace) -> str:
    parts: list[str] = []
    if page["rows"].value:
        per = page.value["per"]
        rows = [(row["name"], [row[per]["gpu_hours"], row[per]["cost"]]) for row in page["rows"]]
        title = "Cost over the run" if per == "run" else "Cost of each"
        parts.append(f"<h3>{title}</h3>{charts.bars(rows, title)}")
    slower = [(row["part"], [row["slower"]]) for row in page["parts"] if row.value["slower"]["value"] != 0]
    if slower:
        title = "Longer steps while a part is lost"
        parts.append(f"<h3>{title}</h3>{charts.bars(slower, title)}")
    elif page["parts"].value:
        parts.append('<p class="note">No lost link, plane or node lengthens the step.</p>')
    return _section("What failures cost", "".join([*parts, _notes(page["notes"])]))


def _power(page: DocumentPlace) -> str:
    rows = "".join(
        f"<tr><td>{escaped(term.value['what'])}<td>{term['found'].figure}<td>{term['allowed'].figure}"
        f'<td class="{"bad" if term.value["broken"] else "good"}">{"violated" if term.value["broken"] else "met"}'
        for term in page["terms"]
    )
    table = f"<table><tr><th>term<th>found<th>allowed<th>{rows}</table>"
    body = f"{charts.power(page)}{table}<h3>Energy</h3>{_facts(page['facts'])}{_notes(page['notes'])}"
    return _section("Power against the contract", body)


def _mitigations(page: DocumentPlace) -> str:
    rows = "".join(_mitigation(each, page.value["cheapest"]) for each in page["mitigations"])
    head = f"<tr>{''.join(f'<th>{name}' for name in _MITIGATION)}"
    return _section("Power mitigations and their price", f"<table>{head}{rows}</table>", "whole")


def _mitigation(each: DocumentPlace, cheapest: str | None) -> str:
    held = each.value
    best = ' class="best"' if held["name"] == cheapest else ""
    left = ", ".join(held["broken"]) or "none"
    cells = "".join(f"<td>{each[key].figure}" for key in ("swing", "ramp", "store", "energy", "slower", "cost"))
    kind = "bad" if held["broken"] else "good"
    return (
        f'<tr{best}><td data-words="{escaped(each["name"].path)}">{escaped(held["name"])}{cells}'
        f'<td class="{kind}">{escaped(left)}'
    )


def _alternatives(page: DocumentPlace) -> str:
    rows = "".join(
        f'<tr><td data-words="{escaped(row["plan"].path)}">{escaped(row.value["plan"])}'
        + "".join(f"<td>{row[key].figure}" for key in ("gpus", "step", "slower", "mfu", "memory"))
        + f'<td class="left">{row["why"].sentence}'
        for row in page["rows"]
    )
    head = '<tr><th>plan<th>GPUs<th>step<th>longer by<th>MFU<th>memory<th class="left">why it lost'
    chosen = f'<p>Chosen: <b data-words="{page["chosen"].path}">{escaped(page.value["chosen"])}</b></p>'
    table = f"<table>{head}{rows}</table>" if rows else ""
    return _section("Alternatives considered", f"{chosen}{table}{_notes(page['notes'])}", "whole")


def _beside(whole: DocumentPlace) -> str:
    """Return the figures that were simulated or measured beside the predicted ones, and why others were not."""
    columns = [
        name for name in ("simulated", "measured") if any(line[name] is not None for line in whole.value["lines"])
    ]
    rows = [line for line in whole["lines"] if any(line.value[name] is not None for name in columns)]
    table = ""
    if rows:
        head = "".join(f"<th>{name}" for name in ("figure", "predicted", *columns))
        body = "".join(_beside_row(line, ["predicted", *columns]) for line in rows)
        table = f"<table><tr>{head}{body}</table>"
    note = f'<p class="note" data-words="/simulation/note">Simulated: {escaped(whole["simulation"].value["note"])}.</p>'
    run = whole.value["run"]
    text = "no finished run of this job was found" if run is None else escaped(run)
    return _section(
        "Predicted, simulated, measured", f'{table}{note}<p class="note" data-words="/run">Measured: {text}.</p>'
    )


def _beside_row(line: DocumentPlace, columns: Sequence[str]) -> str:
    unit = line.value["unit"]
    cells = "".join(f"<td>{_line_figure(line[name], unit)}" for name in columns)
    return f'<tr><td data-words="{line["what"].path}">{escaped(line.value["what"])}{cells}'


def _line_figure(place: DocumentPlace, unit: str) -> str:
    if place.value is None:
        return ""
    from weft.cli.planning.page.formats import shown

    return f'<data {place.attributes} data-unit="{escaped(unit)}">{escaped(shown(place.value, unit))}</data>'


def _assumptions(rows: DocumentPlace) -> str:
    body = "".join(
        f'<tr><td data-words="{row["what"].path}">{escaped(row.value["what"])}<td>{row.figure}'
        f'<td class="left">{escaped(row.value["by"])}'
        for row in rows
    )
    return _section("Assumptions", f'<table><tr><th>what<th>value<th class="left">from{body}</table>')


def _sources(rows: DocumentPlace) -> str:
    body = "".join(
        f'<tr><td>{escaped(row.value["what"])}<td data-words="{row["source"].path}">{escaped(row.value["source"])}'
        for row in rows
    )
    return _section("Sources", f'<table class="source">{body}</table>', "whole long")


def _provenance(whole: DocumentPlace) -> str:
    held = whole["provenance"]
    seed = held.value["seed"]
    rows = [
        ("digest of site and job", _words(held["spec"])),
        ("seed", "none: nothing was drawn" if seed is None else held["seed"].figure),
        ("version of weft", _words(held["version"])),
        ("made again by", f"<code>weft rehearse {_words(whole['site'])} {_words(whole['job'])} --html FILE</code>"),
    ]
    body = "".join(f'<tr><td>{what}<td class="left">{value}' for what, value in rows)
    return _section("Provenance", f"<table>{body}</table>", "whole")


def _words(place: DocumentPlace) -> str:
    return f'<span data-words="{escaped(place.path)}">{escaped(str(place.value))}</span>'
