"""What is said of a command line that cannot be read: in sentences that name what would be right.

The parser's own messages speak of tokens, types and conversions. Each of its errors gets one sentence here, which a
person can act on; what is not listed keeps the parser's words.
"""

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from cyclopts.exceptions import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnusedCliTokensError,
)

from weft.cli.screen.examples import example_of
from weft.core.errors import UsageError

if TYPE_CHECKING:
    from cyclopts import App
    from cyclopts.argument import Argument, ArgumentCollection

_WRITTEN = {int: "a whole number, such as 8", float: "a number, such as 0.5", bool: "true or false"}
_LISTED = 12
"""Commands that are listed where an unknown one was named; the main help lists more."""


def in_words(error: CycloptsError) -> str:
    """Return what is wrong with the command line, and what would be right where that is known."""
    match error:
        case MissingArgumentError(argument=argument) if argument is not None:
            return _missing(error, argument)
        case CoercionError(token=token, argument=argument) if token is not None and _written(error.target_type):
            return f"{token.keyword or _name(argument)} {token.value!r}: write {_written(error.target_type)}"
        case UnknownCommandError(unused_tokens=[word, *_], app=app) if app is not None:
            return _unknown(word, [name for name in app if not name.startswith("-") and app[name].show])
        case RepeatArgumentError(token=token):
            return f"{token.keyword} is given twice; leave one out"
        case UnusedCliTokensError(unused_tokens=[_, *_]):
            return f"unexpected {' '.join(map(repr, error.unused_tokens or []))}; leave it out"
        case _:
            return str(error).replace("Unknown option:", "unknown option").rstrip(".")


def hint(error: CycloptsError) -> str:
    """Return where to read more: the help of the command that was meant."""
    words = " ".join(error.command_chain or ())
    what = "commands" if isinstance(error, UnknownCommandError) else "options"
    return f"weft {words} --help lists its {what}" if words else "weft --help lists the commands"


def refuse_empty_paths(_app: "App", _commands: tuple[str, ...], arguments: "ArgumentCollection") -> None:
    """Refuse an option for a file or a folder that is given an empty name: it would mean the present folder."""
    for argument in arguments:
        if Path not in (argument.hint, *get_args(argument.hint)):
            continue
        for token in argument.tokens:
            if token.keyword is not None and not token.value:
                raise UsageError(f"{token.keyword}: the name is empty; write a path, or . for this folder")


def _missing(error: MissingArgumentError, argument: "Argument") -> str:
    words = " ".join(error.command_chain or ())
    example = example_of(words)
    given = error.keyword or next((token.keyword for token in argument.tokens if token.keyword), None)
    lacks = f"{given} needs a value" if given else f"weft {words} needs {_name(argument)}"
    return lacks + (f", as in {example}" if example and (given or "") in example else "")


def _unknown(word: str, names: list[str]) -> str:
    if word.startswith("-"):
        return f"unknown option {word}"
    close = get_close_matches(word, names, n=1)
    if close:
        return f"there is no command {word!r}; did you mean {close[0]!r}?"
    return f"there is no command {word!r}" + (f"; there are {', '.join(names)}" if len(names) <= _LISTED else "")


def _written(target: Any) -> str | None:
    """Return what is right for a type such as `int | None`, in words."""
    kinds = [each for each in get_args(target) if each is not type(None)]
    kind = kinds[0] if len(kinds) == 1 and get_origin(target) is not Literal else target
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return _WRITTEN.get(kind)


def _name(argument: "Argument | None") -> str:
    return "a word" if argument is None else argument.name if argument.name.startswith("--") else argument.name.upper()
