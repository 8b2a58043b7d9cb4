"""A window that never moves: the baseline that shows what congestion control is worth."""

from typing import Any

from weft.core.compile.rules import rule


@rule
def fixed_start(params: Any, q: Any) -> None:
    """Open the window to its maximum, for good."""
    q["cwnd"] = params["window_max"]
