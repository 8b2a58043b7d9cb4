"""Every command of the command line, found in the application itself, and words to try each with."""

import inspect
from collections.abc import Iterator

from cyclopts import App

from weft.cli.main import app

Words = tuple[str, ...]

_KNOWN: dict[Words, tuple[Words, ...]] = {
    ("check",): (("laptop", "tiny-gpt"),),
    ("completion",): (("bash",), ("zsh",), ("fish",)),
    ("schema",): (("site",),),
    ("explain",): (("planes", "laptop"), ("spraying", "laptop")),
    ("design",): (("laptop",), ("--gpus", "4096")),
    ("fabric", "path"): (("laptop", "--src", "0", "--dst", "3"),),
    ("fabric", "table"): (("laptop", "--switch", "t0-p0-i0"),),
    ("plan",): (("tiny-gpt", "--site", "laptop"), ("gpt-1t", "--site", "gb200-8x100g-131k")),
    ("rehearse",): (("laptop", "tiny-gpt"), ("gb200-8x100g-131k", "gpt-1t")),
    ("simulate",): (("pair",), ("--collective", "ring", "--site", "laptop", "--size", "64KiB")),
    ("site", "measure"): (("here.toml", "--ranks", "1", "--seconds", "0.05", "--rounds", "0"),),
    ("submit",): (("tiny-gpt",), ("--", "true")),
    ("cluster", "generate"): (("trace.csv", "--jobs", "5"),),
    ("train",): (("tiny-gpt", "--set", "steps=2"),),
    ("run",): (("--health", "none", "--", "true"),),
    ("scale", "compute-optimal"): (("1e20",),),
    ("nodes", "test"): (("kernel", "gpus"),),
    ("health", "agent"): (("--once", "--log", "kernel.log", "--state", "state"),),
}
"""Words that show most of a command; a command that is not here is tried with what its parameters are called."""
_ENDLESS = (("health", "agent"),)
"""Commands that go on until they are stopped: they are tried with words that end them, never bare."""
_FILLED = {"site": "laptop", "job": "tiny-gpt", "scenario": "pair", "topic": "planes", "shell": "bash", "kind": "site"}


def leaves(words: Words = ()) -> list[Words]:
    """Return the words of every command below `words`."""
    here = command(words)
    below = [name for name in here if not name.startswith("-")]
    own = [words] if words and here.default_command is not None else []
    return own + [leaf for name in below for leaf in leaves((*words, name))]


def command(words: Words) -> App:
    """Return the command called `words`."""
    here = app
    for word in words:
        here = here[word]
    return here


def attempts(words: Words) -> Iterator[Words]:
    """Yield whole command lines that try the command called `words`: bare, and with something of what it takes."""
    if words not in _ENDLESS:
        yield words
    known = _KNOWN.get(words)
    if known is not None:
        yield from ((*words, *more) for more in known)
        return
    function = command(words).default_command
    assert function is not None, f"{words} is a command"
    positional = [
        name for name, each in inspect.signature(function).parameters.items()
        if each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL)
    ]  # fmt: skip
    if positional:
        yield (*words, *(_FILLED.get(name, "something") for name in positional))
