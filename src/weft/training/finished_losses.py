"""Losses of finished runs, read from a table: what a scaling law is fitted to."""

import csv
from pathlib import Path

from weft.core.errors import UsageError
from weft.core.input_files import read_text
from weft.planning.scaling_laws.scaling import Points

LARGEST_FILE_BYTES = 64 * 2**20
_COLUMNS = ("params", "tokens", "loss")


def read_points(path: Path) -> Points:
    """Return the points in a CSV file; names the line of the first mistake."""
    try:
        text = read_text(path, LARGEST_FILE_BYTES, "utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read as a table of runs: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} cannot be read as a table of runs: {error.reason}") from None
    try:
        return _points(csv.DictReader(text.splitlines()), path)
    except csv.Error as error:
        raise UsageError(f"{path} cannot be read as a table of runs: {error}") from None


def _points(rows: "csv.DictReader[str]", path: Path) -> Points:
    import numpy as np

    names = [name.strip() for name in rows.fieldnames or ()]
    missing = [name for name in _COLUMNS if name not in names]
    if missing:
        raise UsageError(f"{path} has no column {', '.join(missing)}; the first line must name params, tokens and loss")
    rows.fieldnames = names
    table = [[_number(path, rows.line_num, name, row[name]) for name in _COLUMNS] for row in rows]
    columns = np.array(table, dtype=np.float64).reshape(-1, len(_COLUMNS))
    return Points(columns[:, 0], columns[:, 1], columns[:, 2])


def _number(path: Path, line: int, name: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        raise UsageError(f"{path}:{line}  {name} = {text!r} is not a number") from None
    if not 0 < value < float("inf"):
        raise UsageError(f"{path}:{line}  {name} = {text} is not a finite number above zero; correct or remove the row")
    return value
