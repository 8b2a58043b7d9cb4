"""Pages that are made from the sources: commands, Python, files, metrics, HTTP, and the front page of the results.

`make docs` runs `python scripts/generated_pages.py docs` before it builds. What is made is not committed, so that it
cannot be behind the sources.
"""

import ast
import importlib
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "weft"
_ROWS = re.compile(r"^\| (?P<what>.+?) \| (?P<expected>.*?) \| (?P<found>.*?) \| (?P<holds>yes|\*\*no\*\*.*) \|$")
_SECTION = re.compile(r"^## (?P<name>.+)$")
_ENDED = re.compile(r"^\| \[(?P<title>.+?)\]\(#(?P<anchor>[\w-]+)\) \| (?P<held>\d+) of (?P<all>\d+) \|$", re.MULTILINE)
_LINE, _NAME_AND_TEXT = 80, 2
_FAMILY = re.compile(r"^(?:Counter|Gauge|Histogram|Summary)(?:MetricFamily)?$")


def commands() -> str:
    """Return the reference of the command line: the help of every command."""
    from weft.cli.main import app

    parts = ["# Commands", "The help of every command, as `weft COMMAND --help` prints it."]
    os.environ["COLUMNS"] = "100"
    for words in sorted(leaves(app)):
        out = io.StringIO()
        with redirect_stdout(out):
            from rich.console import Console

            app.help_print(list(words), console=Console(file=out, width=100))
        text = "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")
        parts.append(f"## weft {' '.join(words)}\n\n```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def leaves(app: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield every command that people call, by its words."""
    for name in app:
        if name.startswith("-"):
            continue
        found = app[name]
        if not found.show:
            continue
        below = [each for each in found if not each.startswith("-")]
        if below:
            yield from leaves(found, (*words, name))
        else:
            yield (*words, name)


def python() -> str:
    """Return the reference of `import weft`: every public name with its signature and what it says of itself."""
    import weft

    parts = ["# Python", "What `import weft` offers. Each name loads what it needs when it is first used."]
    for name in sorted(set(weft.__all__) - {"__version__"}, key=str.lower):
        found = getattr(weft, name)
        parts.append(f"## weft.{name}\n\n{_signature(name, found)}{_text(found)}")
    return "\n\n".join(parts) + "\n"


def _signature(name: str, found: object) -> str:
    if not callable(found):
        return ""
    try:
        signature = inspect.signature(found)
    except ValueError:
        return ""
    given = [str(each) for each in signature.parameters.values()]
    lines = (
        f"{name}({', '.join(given)})"
        if sum(map(len, given)) < _LINE
        else f"{name}(\n    " + ",\n    ".join(given) + ",\n)"
    )
    return f"```text\n{lines}\n```\n\n"


def _text(found: object) -> str:
    return (inspect.getdoc(found) or "").strip()


def files() -> str:
    """Return the reference of the files that people write: every key with its type, default and meaning."""
    from weft.specs.files import KINDS

    parts = ["# Files, key by key", "What `weft check` accepts; `weft schema KIND` prints the same as JSON schema."]
    for kind, spec in KINDS.items():
        schema = spec.model_json_schema()
        parts.append(f"## {kind}\n\n{_table(schema)}")
        parts += [f"### {kind}: {name}\n\n{_table(each)}" for name, each in schema.get("$defs", {}).items()]
    return "\n\n".join(parts) + "\n"


def _table(schema: dict[str, Any]) -> str:
    text = schema.get("description", "").strip()
    rows = [
        f"| `{key}` | {_type(each)} | {_default(each, key in schema.get('required', ()))} | {_line(each)} |"
        for key, each in schema.get("properties", {}).items()
    ]
    if not rows:
        return text
    return "\n".join([text, "", "| key | type | default | meaning |", "|---|---|---|---|", *rows])


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[key]))
    example = schema.get("examples", [None])[0]
    return str(schema.get("type", "")) + (f", as `{example}`" if example else "")


def _default(schema: dict[str, Any], required: bool) -> str:
    if required:
        return "required"
    value = schema.get("default")
    return "none" if value is None else f"`{value}`" if not isinstance(value, dict) else "its own"


def _line(schema: dict[str, Any]) -> str:
    return " ".join(schema.get("description", "").split()).replace("|", "\\|")


def metrics() -> str:
    """Return the reference of the metrics: every family that a source names, and what it says of it."""
    rows = [
        f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {text} |"
        for name, kind, labels, text in sorted(families())
    ]
    head = ["# Metrics", "", "Families for Prometheus. A counter's series ends in `_total`.", "",
            "| metric | kind | labels | meaning |", "|---|---|---|---|"]  # fmt: skip
    return "\n".join([*head, *rows]) + "\n"


def families() -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Yield each family of metrics that the sources name: name, kind, labels, meaning."""
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or len(node.args) < _NAME_AND_TEXT:
                continue
            kind = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            name, text = (each.value if isinstance(each, ast.Constant) else None for each in node.args[:2])
            if _FAMILY.match(kind) and isinstance(name, str) and isinstance(text, str) and name.startswith("weft_"):
                labels = next((each.value for each in node.keywords if each.arg == "labels"), None)
                known = ast.literal_eval(labels) if labels is not None else ()
                yield name, kind.removesuffix("MetricFamily").lower(), tuple(known), text


def http() -> str:
    """Return the reference of the HTTP interface of a cluster, from the document that it serves."""
    document = vars(importlib.import_module("weft.web.cluster"))["_document"]()
    parts = ["# HTTP", "What the interface of a cluster answers; it serves the same as OpenAPI."]
    for path, methods in sorted(document["paths"].items()):
        for method, operation in methods.items():
            text = operation.get("summary") or operation.get("description", "")
            rows = [f"- `{each['name']}` ({each['in']}): {each.get('description', '')}"
                    for each in operation.get("parameters", ())]  # fmt: skip
            answers = ", ".join(
                f"{code} {each.get('description', '')}" for code, each in operation["responses"].items()
            )
            parts.append("\n".join([f"## {method.upper()} {path}", "", text, "", *rows, "", f"Answers: {answers}"]))
    return "\n\n".join(parts) + "\n"


def results() -> str:
    """Return the front page of the results: how many rows hold, by experiment, and every row that does not."""
    parts = [
        "# Results",
        "How weft stands beside published results and beside what everybody else runs. Each page was written by a "
        "program that ran every experiment; the figures here are read from those pages.",
    ]  # fmt: skip
    failed: list[str] = []
    for name, title in (("verification", "Beside published results"), ("rivals", "Beside rivals")):
        text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        found = list(_ENDED.finditer(text))
        held, every = (sum(int(each[key]) for each in found) for key in ("held", "all"))
        parts.append(f"## {title}\n\n**{held} of {every} rows hold** in {len(found)} experiments.\n\n"
                     "| experiment | rows that hold |\n|---|---|\n" + "\n".join(
                         f"| [{each['title']}]({name}.md#{each['anchor']}) | {each['held']} of {each['all']} |"
                         for each in found))  # fmt: skip
        failed += list(_failed(text, name))
    parts.append(
        "## What failed\n\n| experiment | row | expected | found | why |\n|---|---|---|---|---|\n" + "\n".join(failed)
    )
    parts.append(
        "## Published runs\n\n`python verification/published_runs.py` prints the planner's steps beside those of "
        "published runs, with each model left out of the fit; [Planning](planning.md) has the errors and their causes."
    )
    return "\n\n".join(parts) + "\n"


def _failed(text: str, name: str) -> Iterator[str]:
    section = ""
    for line in text.splitlines():
        if head := _SECTION.match(line):
            section = head["name"]
        elif (row := _ROWS.match(line)) and row["holds"] != "yes":
            why = row["holds"].removeprefix("**no**").removeprefix(":").strip()
            cells = (
                f"[{section}]({name}.md#{section.lower()})",
                row["what"],
                row["expected"],
                row["found"],
                why or "see there",
            )
            yield f"| {' | '.join(cells)} |"


PAGES: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands,
    "reference/python.md": python,
    "reference/files.md": files,
    "reference/metrics.md": metrics,
    "reference/http.md": http,
    "results.md": results,
}
"""Every generated page, and what makes it."""


if __name__ == "__main__":
    for place, make in PAGES.items():
        target = Path(sys.argv[1]) / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(make(), encoding="utf-8")
