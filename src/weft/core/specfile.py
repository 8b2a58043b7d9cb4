"""Reads spec files: TOML in, a checked `Spec` out, or every mistake with its file, line, key and remedy.

`extends = "name"` builds a file on another one: tables are merged key by key, anything else is replaced. The library of
built-in files is given by the caller; this module reads only the files that it is pointed to. Where a kind of file may
take a table from a file of another format, the caller gives a `Pointer` that says how.
"""

import difflib
import errno
import os
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from weft.core.errors import Mistake, SpecError, UsageError
from weft.core.input_files import read_text, toml_of
from weft.core.spec import Spec
from weft.core.toml import value_of

SpecT = TypeVar("SpecT", bound=Spec)

_LONGEST_CHAIN = 8
_LARGEST_FILE_BYTES = 4 * 2**20
_MOST_MISTAKES = 20
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Library:
    """A folder of built-in files of one kind, each known by its name."""

    kind: str
    """The word for such a file: "site", "job" or "scenario"."""
    folder: Path
    """Where the files are."""

    def names(self) -> list[str]:
        """Return the names of the built-in files."""
        return sorted(path.stem for path in self.folder.glob("*.toml"))

    def find(self, reference: str, beside: Path | None = None) -> Path:
        """Return the file that `reference` means: a built-in name, or a path (relative to `beside` where given)."""
        if not reference:
            raise UsageError(f"the name of a {self.kind} is empty; built in are {', '.join(self.names())}")
        if reference in self.names():
            return self.folder / f"{reference}.toml"
        path = Path(reference) if beside is None else beside / reference
        if path.exists() or reference.endswith(".toml") or os.sep in reference:
            return path
        near = difflib.get_close_matches(reference, self.names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"built in are {', '.join(self.names())}"
        raise UsageError(f"there is no {self.kind} called {reference!r} and no such file; {hint}")


@dataclass(frozen=True)
class Pointer:
    """A key whose value names another file, relative to the one that holds it, which fills the key's table."""

    table: str
    """The table that it stands in and fills; keys written beside it win."""
    key: str
    """The key; it is gone once the file has been read."""
    read: Callable[[Path, str], dict[str, Any]]
    """Returns the table that the value means in a folder, or raises a `UsageError`."""


@dataclass(frozen=True)
class _Source:
    """One file of a chain: what it says and where it says it."""

    shown: str
    text: str
    table: dict[str, Any]


def load(reference: str, model: type[SpecT], library: Library, pointers: Sequence[Pointer] = ()) -> SpecT:
    """Return the spec that `reference` (a built-in name or a path) describes, or raise with every mistake in it."""
    chain = _read_chain(reference, library, pointers)
    merged: dict[str, Any] = {}
    for source in reversed(chain):
        merged = _merge(merged, {key: value for key, value in source.table.items() if key != "extends"})
    return validate(merged, model, chain)


def validate(table: Mapping[str, Any], model: type[SpecT], chain: "list[_Source] | str") -> SpecT:
    """Return `table` as a `model`, or raise with every mistake; `chain` names the files or the place it came from."""
    sources = [_Source(chain, "", {})] if isinstance(chain, str) else chain
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        lines = _chosen(error.errors(include_url=False, include_context=True))
        mistakes = [_mistake(line, model, sources) for line in lines[:_MOST_MISTAKES]]
        if len(lines) > _MOST_MISTAKES:
            mistakes.append(Mistake(sources[0].shown, "", f"and {len(lines) - _MOST_MISTAKES:,} more mistakes"))
        raise SpecError(mistakes) from None


def with_values(spec: SpecT, values: Mapping[str, str], shown: str) -> SpecT:
    """Return `spec` with each value, written as in TOML, at its dotted key, checked as a whole; `shown` names it.

    A table takes the place of a value that stands in the way: plan.dp=4 spells out a plan that was "auto".
    """
    if not values:
        return spec
    table = spec.as_written()
    for key, text in values.items():
        *path, last = key.split(".")
        inner = table
        for part in path:
            if not isinstance(inner.get(part), dict):
                inner[part] = {}
            inner = inner[part]
        inner[last] = value_of(text)
    return validate(table, type(spec), shown)


def read_table(reference: str) -> dict[str, Any]:
    """Return what the TOML file at the path `reference` says, unchecked."""
    return _read(Path(reference), reference, "spec").table


def _read_chain(reference: str, library: Library, pointers: Sequence[Pointer]) -> list[_Source]:
    """Return the file and everything that it extends, the file itself first."""
    chain: list[_Source] = []
    path, shown = library.find(reference), reference
    while len(chain) < _LONGEST_CHAIN:
        source = _read(path, shown, library.kind)
        for pointer in pointers:
            source = _follow(source, path.parent, pointer)
        chain.append(source)
        parent = source.table.get("extends")
        if parent is None:
            return chain
        if not isinstance(parent, str):
            raise SpecError([_at(source, ("extends",), f"found {_shown(parent)}", "write the name of a built-in file")])
        try:
            path, shown = library.find(parent, beside=path.parent), parent
        except UsageError as error:
            raise SpecError([_at(source, ("extends",), str(error), "")]) from None
    names = " -> ".join(source.shown for source in chain)
    raise UsageError(f"{reference} extends more than {_LONGEST_CHAIN} files in a row ({names}); is there a circle?")


def _read(path: Path, shown: str, kind: str) -> _Source:
    try:
        text = read_text(path, _LARGEST_FILE_BYTES)
        return _Source(shown, text, toml_of(text))
    except IsADirectoryError:
        raise UsageError(f"{shown} is a folder; name a {kind} file in TOML") from None
    except FileNotFoundError:
        raise UsageError(f"there is no {kind} file {shown}") from None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise UsageError(f"{shown}: {error.strerror}; that is not a {kind} file") from None
        raise UsageError(f"{shown} cannot be read: {error.strerror}; name a {kind} file in TOML") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown} is not text (byte {error.start} is not UTF-8); a {kind} file is TOML") from None
    except ValueError as error:
        raise UsageError(f"{shown} is not TOML that weft reads: {error}") from None


def _follow(source: _Source, folder: Path, pointer: Pointer) -> _Source:
    """Return `source` with the table that it points to put in place."""
    own = source.table.get(pointer.table)
    if not isinstance(own, dict) or not isinstance(own.get(pointer.key), str):
        return source
    try:
        found = pointer.read(folder, own[pointer.key])
    except UsageError as error:
        raise SpecError([_at(source, (pointer.table, pointer.key), str(error), "")]) from None
    beside = {key: value for key, value in own.items() if key != pointer.key}
    return replace(source, table={**source.table, pointer.table: {**found, **beside}})


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


_Place = tuple[str | int, ...]


def _is_tag(part: str | int) -> bool:
    """Return whether `part` of a place is pydantic's name of a union's member, not a key of the file."""
    return isinstance(part, str) and (part.startswith(("literal[", "function-")) or part.endswith("Spec"))


def _chosen(lines: Sequence[Any]) -> list[Any]:
    """Return the errors of that member of each union which was meant: the table where a table was written."""
    chosen: list[Any] = []
    for line in lines:
        tag = next((number for number, part in enumerate(line["loc"]) if _is_tag(part)), None)
        if tag is None:
            chosen.append(line)
            continue
        literal = str(line["loc"][tag]).startswith("literal[")
        whole = tag == len(line["loc"]) - 1
        if literal and isinstance(line["input"], Mapping):
            continue
        if not literal and whole and not isinstance(line["input"], Mapping):
            continue
        chosen.append({**line, "loc": tuple(part for part in line["loc"] if not _is_tag(part))})
    return chosen


_BOUNDS = {
    "greater_than": ("a number above", "gt"), "greater_than_equal": ("at least", "ge"),
    "less_than": ("a number below", "lt"), "less_than_equal": ("at most", "le"),
}  # fmt: skip
_NAME = re.compile(r"\^\[a-z0-9\]\[a-z0-9\._-\]\{0,(\d+)\}\$")
"""Pattern of the names of sites, jobs and their like."""


def _mistake(line: Any, model: type[Spec], sources: list[_Source]) -> Mistake:
    place: _Place = line["loc"]
    if line["type"] == "extra_forbidden":
        known = list(_fields_at(model, place[:-1]))
        near = difflib.get_close_matches(str(place[-1]), known, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"known here are {', '.join(known) or 'none'}"
        return _at_owner(sources, place, "unknown key", remedy)
    if line["type"] == "missing":
        return _at_owner(sources, place, "this key is missing", "add it")
    if line["type"] in ("quantity", "check"):
        problem, _, remedy = str(line["msg"]).partition("; ")
        return _at_owner(sources, place, problem, remedy)
    found = _shown(line["input"])
    message = str(line["msg"])
    remedy = message[0].lower() + message[1:]
    if line["type"] in _BOUNDS:
        word, bound = _BOUNDS[line["type"]]
        remedy = f"write {word} {line['ctx'][bound]}"
    if line["type"] == "string_pattern_mismatch" and (most := _NAME.fullmatch(line["ctx"]["pattern"])):
        remedy = (
            f"write at most {int(most[1]) + 1} of a to z, 0 to 9, '.', '_' and '-', beginning with a letter or a digit"
        )
    if line["type"] == "literal_error":
        near = difflib.get_close_matches(str(line["input"]), re.findall(r"'([^']*)'", line["ctx"]["expected"]), n=1)
        remedy += f"; did you mean {near[0]!r}?" if near else ""
    return _at_owner(sources, place, f"found {found}", remedy)


def _at_owner(sources: list[_Source], place: _Place, problem: str, remedy: str) -> Mistake:
    """Blame the first file of the chain that has the key, or the file itself where none has."""
    for source in sources:
        if _has(source.table, place):
            return _at(source, place, problem, remedy)
    return _at(sources[0], place, problem, remedy)


def _has(table: Any, place: _Place) -> bool:
    for step in place:
        try:
            table = table[step]
        except (KeyError, IndexError, TypeError):
            return False
    return bool(place)


def _at(source: _Source, place: _Place, problem: str, remedy: str) -> Mistake:
    key = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")
    return Mistake(source.shown, key, problem, remedy, line=line_of(source.text, place))


def line_of(text: str, place: _Place) -> int | None:
    """Return the line on which the key `place` stands in a TOML text, or its nearest enclosing table's line."""
    keys = [str(step) for step in place if not isinstance(step, int)]
    table: list[str] = []
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]", line):
            table = [part.strip(" \"'") for part in header[1].split(".")]
            found = table
        elif assignment := re.match(r"\s*([A-Za-z0-9_.\"'-]+)\s*=", line):
            found = table + [part.strip(" \"'") for part in assignment[1].split(".")]
        else:
            continue
        depth = len(found)
        if depth <= len(keys) and keys[:depth] == found and (best is None or depth > best[0]):
            best = (depth, number)
    return best[1] if best else None


def _fields_at(model: type[BaseModel], place: _Place) -> Iterator[str]:
    """Yield the names of the fields that may stand at `place` below `model`."""
    models = [model]
    for step in place:
        if isinstance(step, int):
            continue
        models = [
            inner
            for outer in models
            if step in outer.model_fields
            for inner in _models_in(outer.model_fields[str(step)].annotation)
        ] or models
    for found in models:
        yield from found.model_fields


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        for argument in typing.get_args(annotation):
            yield from _models_in(argument)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def schema(model: type[Spec]) -> dict[str, Any]:
    """Return the JSON schema of files that hold a `model`, `extends` included."""
    described = TypeAdapter(model).json_schema()
    described["properties"] = {
        "extends": {"type": "string", "description": "Name of a built-in file, or a path, that this one builds on."},
        **described["properties"],
    }
    # A file that extends another one states only what differs, at any depth.
    for table in (described, *described.get("$defs", {}).values()):
        table.pop("required", None)
    described["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return described
