"""What an end of a queue pair does with what comes to it, in every world alike."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mrc.builders import PAYLOAD, acknowledge, receiver_of, send, send_row, sender_of

from weft.mrc.columns import (
    ASSUMED_BAD,
    EV_ANSWER,
    EV_PROBE,
    NACK,
    NEVER,
    NOTHING,
    ON_THE_WIRE,
    PORT_ANSWER,
    PORT_STATUS,
    REPLY,
    SACK,
    make_receiver,
)
from weft.mrc.journal import make_journal
from weft.mrc.rules.control import KEEP_ALIVE
from weft.mrc.rules.endpoint import (
    AGAIN,
    ANSWER,
    NEW,
    PairEnd,
    Passage,
    deadline,
    deny_ev,
    next_due,
    next_sack,
    operation_ev,
    refuse,
    reply_ev,
    take_data,
    take_operation,
    take_probe,
)
from weft.mrc.rules.receiver import start_receiver
from weft.mrc.rules.reverse import REVERSE_ID
from weft.mrc.wire.packets import TRIMMED, TRIMMED_LASTHOP

NOW, LATELY_PS, PLANES = 10**9, 10**6, 4


def end_of(*, planes: int = PLANES, lately_ps: int = 0, back: bool = True) -> PairEnd:
    """Return an end that has sent and received nothing."""
    sender = sender_of(planes=planes)
    sender.params["heard_lately_ps"] = lately_ps
    receiver = make_receiver(sender.params, 1)
    start_receiver(receiver, 0, 3, 0)
    return PairEnd(sender, 0, receiver, 0 if back else -1, 0, make_journal(0))


def packet(**values: int):
    row = np.zeros(1, ON_THE_WIRE)[0]
    row["immediate"] = -1
    for name, value in values.items():
        row[name] = value
    return row


def reply():
    return np.zeros(1, REPLY)[0]


def came(end: PairEnd, plane: int, *, marked: int = 0, trimmed: int = 0) -> Passage:
    """Return the passage of a packet on an EV of `plane`."""
    values = [int(ev["value"]) for ev in end.sender.evs[0] if ev["plane"] == plane]
    return Passage(values[0], plane, marked, trimmed)


@given(psn=st.integers(0, 100), reason=st.sampled_from([TRIMMED, TRIMMED_LASTHOP]), whole_first=st.booleans())
def test_a_trimmed_packet_brings_no_bytes_and_is_asked_for_unless_it_has_come(psn, reason, whole_first):
    end, answer = end_of(), reply()
    data = packet(psn=psn, length=PAYLOAD)
    if whole_first:
        assert take_data(end, data, came(end, 0), NOW) == NEW
        assert take_data(end, data, came(end, 1), NOW) == AGAIN
    before = int(end.receiver.qp[0]["received_bytes"])
    assert take_data(end, data, came(end, 2, trimmed=reason), NOW) == ANSWER
    due = refuse(end, data, came(end, 2, trimmed=reason), NOW, answer)
    assert end.receiver.qp[0]["received_bytes"] == before
    if whole_first:
        assert due == NOTHING
        assert next_sack(end, NOW, answer) == SACK
    else:
        assert (due, answer["reason"], answer["psn"]) == (NACK, reason, psn)
        assert answer["value"] == came(end, 2).value


@given(kind=st.sampled_from([EV_PROBE, PORT_STATUS]), number=st.integers(0, 0xFFFF), marked=st.integers(0, 1))
def test_an_operation_is_answered_by_its_number_and_with_its_mark(kind, number, marked):
    end, answer = end_of(), reply()
    asked = packet(kind=kind, id=number, port_status=0b0101)
    found = take_operation(end, asked, came(end, 0, marked=marked), NOW, answer)
    assert found == (EV_ANSWER if kind == EV_PROBE else PORT_ANSWER)
    assert (answer["kind"], answer["id"], answer["verdict"]) == (found, number, marked)
    assert end.sender.qp[0]["peer_up"] == (0b0101 if kind == PORT_STATUS else 0b1111)


@given(plane=st.integers(0, PLANES - 1), down=st.integers(0, 15))
def test_an_end_that_only_sends_answers_on_the_plane_that_it_was_asked_on_or_the_next(plane, down):
    end = end_of(back=False)
    end.sender.qp[0]["local_up"] &= ~down
    found = operation_ev(end, 5, came(end, plane), NOW)
    up = [k % PLANES for k in range(plane, plane + PLANES) if not down >> (k % PLANES) & 1]
    assert (int(end.sender.evs[0, found]["plane"]) if found >= 0 else None) == (up[0] if up else None)


def test_an_end_to_which_data_has_come_answers_operations_over_all_planes_in_turn():
    end = end_of()
    take_data(end, packet(length=PAYLOAD), came(end, 0), NOW)
    asked = [operation_ev(end, 5, came(end, 0), NOW) for _ in range(PLANES)]
    assert {int(end.sender.evs[0, ev]["plane"]) for ev in asked} == set(range(PLANES))


@given(plane=st.integers(0, PLANES - 1), heard=st.booleans())
def test_whether_an_end_is_there_is_answered_on_the_very_ev_of_the_question(plane, heard):
    end = end_of()
    if heard:
        take_data(end, packet(length=PAYLOAD), came(end, 0), NOW)
    asked = came(end, plane)
    assert end.sender.evs[0, operation_ev(end, KEEP_ALIVE, asked, NOW)]["value"] == asked.value
    end.sender.qp[0]["local_up"] &= ~(1 << plane)
    assert operation_ev(end, KEEP_ALIVE, asked, NOW) == -1


@given(heard=st.sets(st.integers(0, PLANES - 1)), probe=st.booleans())
def test_answers_leave_on_planes_where_the_peer_was_heard_lately_if_there_are_any(heard, probe):
    end = end_of(lately_ps=LATELY_PS)
    for plane in heard:
        if probe:
            take_probe(end, packet(id=1), came(end, plane), NOW)
        else:
            take_data(end, packet(psn=plane, length=PAYLOAD), came(end, plane), NOW)
    taken = {int(end.sender.evs[0, reply_ev(end, NOW + LATELY_PS)]["plane"]) for _ in range(4 * PLANES)}
    assert taken == (heard or set(range(PLANES)))
    later = {int(end.sender.evs[0, reply_ev(end, NOW + LATELY_PS + 1)]["plane"]) for _ in range(4 * PLANES)}
    assert later == set(range(PLANES)), "what is long ago says nothing"


@given(heard=st.sets(st.integers(0, PLANES - 1), min_size=1))
def test_as_published_answers_take_all_planes_in_turn_wherever_the_peer_was_heard(heard):
    end = end_of()
    for plane in heard:
        take_data(end, packet(psn=plane, length=PAYLOAD), came(end, plane), NOW)
    assert {int(end.sender.evs[0, reply_ev(end, NOW)]["plane"]) for _ in range(PLANES)} == set(range(PLANES))


def retired(end: PairEnd) -> None:
    """Retire an EV and let its probe go out."""
    qp = end.sender.qp[0]
    ev = end.sender.evs[0, int(end.sender.rotation[0, 0])]
    ev["state"], qp["bad"] = ASSUMED_BAD, 1


@pytest.mark.parametrize("before", [0, KEEP_ALIVE - 2, KEEP_ALIVE - 1])
def test_the_number_of_a_probe_is_never_the_one_that_asks_whether_the_peer_is_there(before):
    end, out = end_of(), send_row()
    retired(end)
    end.sender.qp[0]["ev_probe_id"] = before
    assert next_due(end, NOW, out) == EV_PROBE
    assert out["id"] != KEEP_ALIVE
    assert not out["id"] & REVERSE_ID


@pytest.mark.parametrize(("number", "counts"), [(0, True), (1, False), (KEEP_ALIVE, False)])
def test_only_the_answer_to_the_last_probe_counts(number, counts):
    end, out = end_of(), send_row()
    retired(end)
    next_due(end, NOW, out)
    ev = end.sender.evs[0, int(out["ev"])]
    answer = packet(kind=EV_ANSWER, id=number if number == KEEP_ALIVE else int(out["id"]) + number)
    assert take_operation(end, answer, came(end, 0), NOW + 1, reply()) == NOTHING
    assert bool(ev["probes"]) == counts


def test_no_late_answer_brings_a_denied_ev_back_for_answers():
    end = end_of()
    (row,) = send(end.sender, 1)
    assert deny_ev(end, int(row["value"]), 1, NOW) == 1
    plane = end.sender.planes[0, int(row["plane"])]
    assert plane["reverse"] not in (row["ev"], -1)
    acknowledge(end.sender, row, now_ps=NOW)
    assert plane["reverse"] != row["ev"]


def test_no_late_answer_to_a_probe_of_the_way_back_brings_a_denied_ev_back():
    end, out, kind = end_of(), send_row(), NOTHING
    take_data(end, packet(length=PAYLOAD, ack_request=1), came(end, 0), NOW)
    assert next_sack(end, NOW, reply()) == SACK
    while kind != EV_PROBE:
        kind = next_due(end, NOW, out)
        assert kind != NOTHING
    deny_ev(end, int(out["value"]), 1, NOW)
    take_operation(end, packet(kind=EV_ANSWER, id=int(out["id"])), came(end, 0), NOW + 1, reply())
    assert end.sender.planes[0, int(out["plane"])]["reverse"] != out["ev"]


@given(st.sets(st.integers(0, 11), max_size=12))
def test_answers_take_no_denied_ev_while_their_plane_has_another(denied):
    end = end_of(planes=2)
    for ev in denied:
        deny_ev(end, int(end.sender.evs[0, ev]["value"]), 1, NOW)
    for plane, row in enumerate(end.sender.planes[0]):
        left = {k for k in range(12) if end.sender.evs[0, k]["plane"] == plane and k not in denied}
        assert (int(row["reverse"]) in left) if left else row["reverse"] == -1
    for ev in denied:
        deny_ev(end, int(end.sender.evs[0, ev]["value"]), 0, NOW)
    assert (end.sender.planes[0]["reverse"] >= 0).all()


def test_an_end_that_receives_has_its_way_back_to_probe_and_one_that_does_not_has_nothing_to_do():
    end, alone = end_of(), end_of(back=False)
    assert deadline(end) >= NEVER
    take_data(end, packet(length=PAYLOAD, ack_request=1), came(end, 0), NOW)
    assert next_sack(end, NOW, reply()) == SACK
    assert deadline(end) <= NOW
    out = send_row()
    assert next_due(end, NOW, out) == EV_PROBE
    assert out["id"] & REVERSE_ID
    assert NOW < deadline(end) < NEVER
    assert next_due(alone, NOW, out) == NOTHING
    assert deadline(alone) >= NEVER


def test_receivers_keep_planes_only_where_somebody_asks():
    assert receiver_of().heard.shape == (1, 0)
    assert end_of(lately_ps=1).receiver.heard.shape == (1, PLANES)
