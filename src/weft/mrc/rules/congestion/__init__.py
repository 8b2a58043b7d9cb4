"""How large the window is: a fixed window, or NSCC, behind three questions, chosen by a number.

An algorithm answers to an acknowledgement, a trimmed packet and a lost one by moving `cwnd`, bytes that may be in
flight; whether a packet may go is the same for all. Compiled code holds no functions in a table of names, so the
choice is the position in `ALGORITHMS`.
"""

from weft.core.compile.rules import rule
from weft.mrc.columns import SenderRow, SettingsRow
from weft.mrc.rules.congestion.nscc import nscc_ack, nscc_loss, nscc_penalty, nscc_start, nscc_trim

ALGORITHMS = ("fixed", "nscc")
"""Names of the algorithms; a name's place is its number."""
NSCC = 1


@rule
def cc_start(params: SettingsRow, qp: SenderRow) -> None:
    """Give a fresh queue pair its first window. Writes `cwnd`."""
    if params["congestion"] == NSCC:
        nscc_start(params, qp)
    else:
        # Fixed: a window that never moves, the baseline that shows what congestion control is worth.
        qp["cwnd"] = params["window_max"]


@rule
def cc_ack(params: SettingsRow, qp: SenderRow, now_ps: int, acked: int, delay_ps: int, marked: int) -> None:
    """Learn of `acked` newly acknowledged bytes, the queueing delay (-1 where not known) and an ECN mark."""
    if params["congestion"] == NSCC:
        nscc_ack(params, qp, now_ps, acked, delay_ps, marked)


@rule
def cc_trim(params: SettingsRow, qp: SenderRow, now_ps: int, lost: int) -> None:
    """Learn that a packet of `lost` bytes was trimmed."""
    if params["congestion"] == NSCC:
        nscc_trim(params, qp, now_ps, lost)


@rule
def cc_loss(params: SettingsRow, qp: SenderRow, lost: int) -> None:
    """Learn that a packet of `lost` bytes is presumed lost."""
    if params["congestion"] == NSCC:
        nscc_loss(params, qp, lost)


@rule
def cc_penalty(params: SettingsRow, qp: SenderRow, acked: int, penalty: int) -> None:
    """Learn that the receiver wants less: `penalty`/128 of `acked` bytes."""
    if params["congestion"] == NSCC and penalty > 0:
        nscc_penalty(params, qp, acked, penalty)


@rule
def cc_allows(qp: SenderRow, size: int) -> bool:
    """Return whether `size` more bytes may be in flight."""
    return qp["inflight_bytes"] + size <= qp["cwnd"]
