"""A packet's six words: what a header says is what comes out of them again, whatever its kind."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.mrc.columns import DATA, EV_ANSWER, EV_PROBE, NACK, PORT_ANSWER, PORT_STATUS, PROBE, SACK
from weft.netsim.host.host_state import HEADER
from weft.netsim.kernel.layout import (
    CONTROL,
    EXTRA,
    GOAL,
    HOP_MASK,
    HOP_SHIFT,
    KIND_MASK,
    KIND_SHIFT,
    NAME,
    OFFSET_SHIFT,
    PAIR_SHIFT,
    STATE,
    WORDS,
)
from weft.netsim.kernel.nics import pack, unpack
from weft.netsim.transports.routing import AS_GIVEN, routing

ROUTES = routing((), AS_GIVEN, 16, 16)
MPR = 1234
PSNS = st.integers(0, 2**24 - 1)
VALUES = st.integers(-(2**31), 2**31 - 1)
PAIRS = st.integers(0, 2**20)
HALVES = st.integers(0, 1)


def hosts() -> Any:
    """Return host state of which only a receiver's parameters are there."""
    return SimpleNamespace(r=SimpleNamespace(params=[{"mpr": MPR}]))


def header(**fields: int) -> np.void:
    found = np.zeros(1, HEADER)
    for name, value in fields.items():
        found[name] = value
    return found[0]


def through(head: np.void, hops: int = 0) -> tuple[np.void, np.ndarray]:
    """Pack a header as the kernel does on sending, and unpack it as it does on arrival."""
    packet = np.zeros(WORDS, np.int64)
    pack(head, int(head["kind"]), hops, packet)
    if head["kind"] == SACK:
        packet[GOAL] |= int(head["sack_offset"]) << OFFSET_SHIFT
    found = np.zeros(1, HEADER)[0]
    unpack(hosts(), ROUTES, packet, found)
    return found, packet


@given(PSNS, VALUES, PAIRS, HALVES, st.integers(0, 2**16 - 1), st.booleans(), st.booleans(), st.integers(0, 7))
def test_a_data_packet_keeps_what_receivers_look_at(psn, value, pair, half, length, again, asks, hops):
    sent = header(
        kind=DATA, psn=psn, value=value, pair=pair, half=half, length=length, retransmission=again, ack_request=asks
    )
    found, packet = through(sent, hops)
    for name in ("kind", "psn", "value", "pair", "half", "length", "retransmission", "ack_request"):
        assert found[name] == sent[name], name
    assert found["immediate"] == -1, "nothing is written with an immediate in a simulation"
    assert packet[STATE] & CONTROL == 0
    assert packet[STATE] >> HOP_SHIFT & HOP_MASK == hops


@given(PSNS, VALUES, PAIRS, st.integers(-(2**15), 2**15 - 1), st.integers(0, 3), st.booleans(), st.data())
def test_a_sack_keeps_its_bitmap_and_offsets(psn, value, pair, offset, verdict, probed, data):
    low, high = (data.draw(st.integers(0, 2**32 - 1)) for _ in range(2))
    base = data.draw(st.integers(-(2**15), 2**15 - 1))
    sent = header(
        kind=SACK, cack_psn=psn, value=value, pair=pair, half=1, ack_psn_offset=offset, verdict=verdict,
        probe_response=probed, bitmap_low=low, bitmap_high=high, sack_offset=base,
    )  # fmt: skip
    # Words are signed: half of all bitmaps set the highest bit of theirs.
    sent["bitmap_high"] = high - 2**32 if high >= 2**31 else high
    found, packet = through(sent)
    for name in ("kind", "cack_psn", "value", "pair", "half", "ack_psn_offset", "verdict", "probe_response"):
        assert found[name] == sent[name], name
    assert (found["bitmap_low"], found["bitmap_high"]) == (low, high)
    assert found["sack_offset"] == base
    assert (found["mpr"], found["penalty"]) == (MPR, 0)
    assert packet[STATE] & CONTROL
    assert packet[NAME] >> PAIR_SHIFT == pair


@given(PSNS, VALUES, PAIRS, HALVES, st.integers(0, 255))
def test_a_nack_keeps_its_reason(psn, value, pair, half, reason):
    found, packet = through(header(kind=NACK, psn=psn, value=value, pair=pair, half=half, reason=reason))
    assert (found["psn"], found["value"], found["reason"]) == (psn, value, reason)
    assert packet[EXTRA] == reason


@pytest.mark.parametrize("kind", [PROBE, EV_PROBE, PORT_STATUS, EV_ANSWER, PORT_ANSWER])
@given(st.integers(0, 2**16 - 1), st.integers(0, 2**31 - 1), st.integers(0, 3), st.integers(0, 255))
def test_an_endpoint_operation_keeps_its_number_and_knows_its_plane(kind, number, value, verdict, ports):
    found, packet = through(header(kind=kind, id=number, value=value, verdict=verdict, port_status=ports))
    assert (found["id"], found["verdict"], found["port_status"]) == (number, verdict, ports)
    assert packet[STATE] >> KIND_SHIFT & KIND_MASK == kind
    assert found["plane"] == (value // 16 if kind in (PROBE, EV_PROBE, PORT_STATUS) else 0)


@given(PSNS, VALUES, PAIRS)
def test_nothing_of_the_packet_before_is_left_in_a_row(psn, value, pair):
    packet = np.full(WORDS, -1, np.int64)
    pack(header(kind=DATA, psn=psn, value=value, pair=pair), DATA, 0, packet)
    clean = np.zeros(WORDS, np.int64)
    pack(header(kind=DATA, psn=psn, value=value, pair=pair), DATA, 0, clean)
    assert [packet[word] for word in (NAME, STATE, EXTRA)] == [clean[word] for word in (NAME, STATE, EXTRA)]
