"""A window that never moves: the baseline that shows what congestion control is worth."""

from weft.core.compile.rules import rule
from weft.mrc.columns import SenderRow, SettingsRow


@rule
def fixed_start(params: SettingsRow, qp: SenderRow) -> None:
    """Open the window to its maximum, for good."""
    qp["cwnd"] = params["window_max"]
