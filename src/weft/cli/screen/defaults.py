"""Defaults of a person: `weft.toml` in $XDG_CONFIG_HOME or ~/.config, for options that were not given.

At its top stand options that mean the same everywhere; a table named after a command holds options of that command:

    folder = "/data/runs"
    [simulate]
    threads = 8
    [cluster.replay]
    site = "h100-400g-16k"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.core.errors import UsageError

if TYPE_CHECKING:
    from cyclopts import App
    from cyclopts.argument import ArgumentCollection

EVERYWHERE = ("folder", "home", "kubeconfig", "on", "seed")
"""Options that mean the same in every command that takes them."""

_OTHER_FOLDERS = (("fabric", "export"), ("cluster", "act"))
"""Commands whose --folder is not that of runs."""


def config_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where a person's defaults stand."""
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "weft.toml"


def put_defaults(_app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Give options that were not written on the command line the values of the person's file."""
    path = config_file()
    table = _table(path)
    wrong = [key for key, value in table.items() if not isinstance(value, dict) and key not in EVERYWHERE]
    if wrong:
        raise UsageError(
            f"{path}: {wrong[0]} is no option of every command; write {', '.join(EVERYWHERE)}, or [COMMAND] above it"
        )
    options = {name: argument for argument in arguments for name in argument.names if name.startswith("--")}
    own = _own(table, commands)
    for key in own:
        if f"--{key}" not in options:
            known = ", ".join(sorted(name.removeprefix("--") for name in options))
            raise UsageError(f"{path}: [{'.'.join(commands)}] has no option {key}; there are {known}")
    common = {key: table[key] for key in EVERYWHERE if key in table and f"--{key}" in options}
    if commands in _OTHER_FOLDERS:
        common.pop("folder", None)
    for key, value in {**common, **own}.items():
        _put(options[f"--{key}"], f"--{key}", value, path)


def _put(argument: Any, option: str, value: Any, path: Path) -> None:
    from cyclopts.token import Token

    if argument.tokens:
        return
    for index, each in enumerate(value if isinstance(value, list) else [value]):
        text = str(each).lower() if isinstance(each, bool) else str(each)
        argument.append(Token(keyword=option, value=text, source=str(path), index=index))


def _own(table: Mapping[str, Any], commands: tuple[str, ...]) -> dict[str, Any]:
    """Return what the file says of one command."""
    here: Any = table
    for word in commands:
        here = here.get(word, {}) if isinstance(here, dict) else {}
    found = here if isinstance(here, dict) and commands else {}
    return {key: value for key, value in found.items() if not isinstance(value, dict)}


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
