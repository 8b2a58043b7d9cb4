"""One queue pair in a known state: the builders that the tests of the rules share."""

from typing import Any

import numpy as np
from tests.mrc.channel import small_spec

from weft.mrc import columns
from weft.mrc.columns import DATA, Receiver, Sender
from weft.mrc.rules.acks import on_sack
from weft.mrc.rules.evs import Paths
from weft.mrc.rules.receiver import start_receiver
from weft.mrc.rules.sender import next_data, post, start_sender
from weft.mrc.rules.settings import settings

PAYLOAD = 64


def params_of(*, planes: int = 2, **spec: Any) -> np.ndarray:
    """Return the settings of the small protocol."""
    return settings(small_spec(**spec), planes=planes, rate_bps=10**11, payload=PAYLOAD)


def sender_of(*, first_seq: int = 0, paths: int = 16, word: int = 7, planes: int = 2, **spec: Any) -> Sender:
    """Return one sender that has sent nothing yet."""
    made = columns.make_sender(params_of(planes=planes, **spec), 1)
    start_sender(made, 0, word, first_seq, Paths(paths, paths, np.zeros(paths, np.int64)))
    return made


def receiver_of(*, first_seq: int = 0, word: int = 3, planes: int = 2, **spec: Any) -> Receiver:
    """Return one receiver that has received nothing yet."""
    made = columns.make_receiver(params_of(planes=planes, **spec), 1)
    start_receiver(made, 0, word, first_seq)
    return made


def send_row() -> Any:
    """Return an empty row for what a sender wants on the wire."""
    return np.zeros(1, columns.SEND)[0]


def reply_row(**values: Any) -> Any:
    """Return a SACK or NACK that names no EV, with these fields."""
    row = np.zeros(1, columns.REPLY)[0]
    row["value"] = -1
    for name, value in values.items():
        row[name] = value
    return row


def send(sender: Sender, count: int, *, now_ps: int = 0) -> list[Any]:
    """Post and send so many packets, and return their rows."""
    post(sender, 0, 0, 0, count * PAYLOAD, -1)
    out, rows = send_row(), []
    for _ in range(count):
        assert next_data(sender, 0, now_ps, -1, out) == DATA
        rows.append(out.copy())
    return rows


def acknowledge(sender: Sender, row: Any, *, now_ps: int, **more: Any) -> int:
    """Give the sender the SACK that the packet in `row` causes where everything up to it has arrived."""
    values: dict[str, Any] = {"cack_psn": row["psn"], "value": row["value"], "mpr": 1, "sack_offset": 1, **more}
    return int(on_sack(sender, 0, reply_row(**values), now_ps))
