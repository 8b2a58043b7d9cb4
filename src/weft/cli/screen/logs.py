"""What weft logs, on standard error: `-v` or WEFT_LOG=info shows what begins, `-vv` or WEFT_LOG=debug everything."""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from weft.core.errors import UsageError

LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}
_FLAGS = re.compile(r"-v{1,2}|--verbose")


def without_verbosity(words: Sequence[str], *, anywhere: bool) -> tuple[list[str], int]:
    """Return a command line without -v, and how often it was there; before the command, or `anywhere` up to --."""
    kept: list[str] = []
    count = 0
    for place, word in enumerate(words):
        if word == "--" or (kept and not anywhere):
            return [*kept, *words[place:]], count
        if _FLAGS.fullmatch(word):
            count += 2 if word == "-vv" else 1
        else:
            kept.append(word)
    return kept, count


def level_of(count: int, environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the level that -v or WEFT_LOG asks for; none where neither does."""
    if count:
        return logging.INFO if count == 1 else logging.DEBUG
    name = environment.get("WEFT_LOG", "").strip().lower()
    if not name:
        return None
    if name not in LEVELS:
        raise UsageError(f"WEFT_LOG={name}: write one of {', '.join(LEVELS)}")
    return LEVELS[name]


@contextmanager
def logged(level: int | None) -> Iterator[None]:
    """Write the messages of weft from `level` on to standard error."""
    if level is None:
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(level)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))
    logger, before = logging.getLogger("weft"), logging.getLogger("weft").level
    logger.addHandler(handler)
    logger.setLevel(min(level, before or level))
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
