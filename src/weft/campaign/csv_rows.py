"""Tables that people write as CSV: their rows with line numbers, whatever program wrote the file.

Who reads a diary or a log of parts says which columns there must be; what the cells mean is theirs.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from weft.core.errors import Mistake, SpecError, UsageError
from weft.core.input_files import read_text


def csv_text(path: Path) -> str:
    """Return a file's text, without the mark that spreadsheets begin it with."""
    try:
        return read_text(path, encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} cannot be read: it is not text in UTF-8") from None


def csv_rows(
    text: str, name: str, columns: Sequence[str], known: Sequence[str] | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and cells by column of each row that is not empty.

    `columns` must be there; where `known` is given, no other column than those and these may be.
    """
    reader = csv.reader(io.StringIO(text))
    try:
        header = [each.strip() for each in next(reader, [])]
        wanted = ",".join((*columns, *(known or ())))
        if missing := [column for column in columns if column not in header]:
            raise UsageError(f"{name} lacks {', '.join(missing)}; the columns are {wanted}")
        if unknown := [each for each in header if known is not None and each not in (*columns, *known)]:
            raise UsageError(f"{name} has a column {unknown[0]!r} that means nothing; the columns are {wanted}")
        for row in reader:
            if any(each.strip() for each in row):
                cells = [each.strip() for each in row] + [""] * len(header)
                yield reader.line_num, dict(zip(header, cells, strict=False))
    except csv.Error as error:
        raise SpecError([Mistake(name, "", f"it is no table: {error}", line=reader.line_num)]) from None
