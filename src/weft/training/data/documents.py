"""The documents of a corpus file: a text file is one, every row of a JSONL or Parquet file is one.

Documents are tokenised one by one, each with its end marker, and packed one behind the other; windows are cut
from that.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from weft.core.errors import UsageError
from weft.core.extras import need
from weft.core.input_files import json_of

ROW_SUFFIXES = (".jsonl", ".parquet")
"""Files whose rows are documents."""
_SNIFFED_BYTES = 8192
_ROWS = 4096


def documents_of(path: Path, column: str) -> Iterator[bytes]:
    """Yield the documents of a file; of rows, what `column` holds. Nothing where a file is not text."""
    if path.suffix == ".jsonl":
        yield from _json_rows(path, column)
    elif path.suffix == ".parquet":
        yield from _parquet_rows(path, column)
    else:
        content = path.read_bytes()
        if b"\0" not in content[:_SNIFFED_BYTES]:
            yield content


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _json_rows(path: Path, column: str) -> Iterator[bytes]:
    with path.open("rb") as opened:
        for number, line in enumerate(opened, start=1):
            if not line.strip():
                continue
            try:
                row = json_of(line)
            except ValueError as error:
                raise UsageError(f"{path}:{number} is not JSON: {error}") from None
            text = row.get(column) if isinstance(row, dict) else None
            if not isinstance(text, str):
                raise UsageError(f"{path}:{number} has no text called {column!r}; name the right one as [data] column")
            yield text.encode(errors="replace")


def _parquet_rows(path: Path, column: str) -> Iterator[bytes]:
    need("polars")
    import polars

    try:
        known = polars.read_parquet_schema(path)
        if column not in known or known[column] != polars.String:
            said = ", ".join(name for name, kind in known.items() if kind == polars.String) or "none"
            raise UsageError(f"{path} has no text called {column!r} (there are {said}); name one as [data] column")
        rows = polars.scan_parquet(path).select(column)
        start = 0
        while (part := rows.slice(start, _ROWS).collect()).height:
            yield from (text.encode() for text in part[column].to_list() if text is not None)
            start += _ROWS
    except polars.exceptions.PolarsError as error:
        raise UsageError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
