"""Commands of other distributions, found by their entry points when one of them is called.

Each is a name of this module, so that `weft --help` lists it without looking for who provides it.
"""

from typing import Annotated

from cyclopts import App, Parameter

from weft.core.errors import UsageError
from weft.core.plugins import entry_point

_PROVIDERS = {"lab": "weft[lab]"}
"""What has to be installed for a command."""


def __getattr__(name: str) -> App:
    """Return the command called `name`, or one that says what to install."""
    if name not in _PROVIDERS:
        raise AttributeError(name)
    found = entry_point("weft.commands", name)
    return found if isinstance(found, App) else _missing(name)


def _missing(name: str) -> App:
    app = App(name=name, help=f"Not installed: pip install '{_PROVIDERS[name]}'.", help_format="plaintext")

    @app.default
    def refuse(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> None:
        """Say what to install, whatever was asked."""
        del words
        raise UsageError(f"weft {name} is a distribution of its own; install it with pip install '{_PROVIDERS[name]}'")

    return app
