"""One port: credits, classes, marks, trims and drops, each worked out by hand."""

from hypothesis import given
from hypothesis import strategies as st

from weft.netsim.model.faults import LOSS_ONE, SLOW_ONE, LinkFaultChange
from weft.netsim.model.network import QueueLimits, grants
from weft.netsim.reference.packets import SimPacket
from weft.netsim.reference.ports import DROPPED, QUEUED, TRIMMED, Port, PortHop

FRAME = 4262
SLOT_PS = 340_960
RATE = 100 * 10**9


def port(*, rate: int = RATE, low: int = 2 * FRAME, high: int = 4 * FRAME, data: int = 8 * FRAME, control: int = 1000):
    hop = PortHop(stage=1, last_hop=False, header=166, full=FRAME)
    return Port(0, rate, 0, QueueLimits(low, high, data, control), hop)


def packet(size: int = FRAME, *, control: int = 0, key: int = 0):
    made = SimPacket(0, 0, 0, (0,), size, 0, control)
    made.key = key
    return made


def drain(under, slot: int):
    under.begin(slot, SLOT_PS)
    sent = []
    while under.credit > 0 and (taken := under.take()) is not None:
        sent.append(taken)
    return sent


def test_the_fastest_link_sends_one_full_frame_in_a_slot():
    under = port()
    for _ in range(5):
        under.accept(packet(), True)
    assert [len(drain(under, slot)) for slot in range(6)] == [1, 1, 1, 1, 1, 0]


def test_a_link_of_a_quarter_of_the_rate_sends_a_frame_in_four_slots():
    under = port(rate=RATE // 4)
    for _ in range(5):
        under.accept(packet(), True)
    assert [len(drain(under, slot)) for slot in range(17)] == [1, 0, 0, 0] * 4 + [1]


def test_short_packets_share_a_slot_and_what_is_owed_is_paid_back():
    under = port(data=100 * FRAME, control=10**6)
    for _ in range(24):
        under.accept(packet(178, control=1), True)
    for _ in range(3):
        under.accept(packet(), True)
    # 23 x 178 = 4094 bytes leave 168 of credit, so that the 24th starts too, and 10 bytes are owed.
    assert [len(drain(under, slot)) for slot in range(4)] == [24, 1, 1, 1]
    assert under.credit == -10 - 0 * FRAME


def test_control_packets_go_first():
    under = port()
    under.accept(packet(), True)
    under.accept(packet(178, control=1), True)
    assert [sent.control for sent in drain(under, 0)] == [1, 0]


def test_an_idle_port_saves_no_credit_but_pays_its_debt():
    under = port(rate=RATE // 4)
    under.accept(packet(), True)
    assert len(drain(under, 0)) == 1
    under.accept(packet(), True)
    assert len(drain(under, 2)) == 0, "the first frame still occupies the link"
    assert len(drain(under, 4)) == 1
    for _ in range(3):
        under.accept(packet(), True)
    assert [len(drain(under, slot)) for slot in range(100, 105)] == [1, 0, 0, 0, 1]


@given(st.integers(1, 10**12), st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 1000))
def test_grants_add_up_to_the_rate_whatever_the_slot(rate: int, slot_ps: int, start: int, slots: int):
    total = sum(grants(rate, slot_ps, n) - grants(rate, slot_ps, n - 1) for n in range(start, start + slots))
    assert abs(total - rate * slot_ps * slots / (8 * 10**12)) <= 1


def test_marks_begin_above_the_low_limit_and_are_certain_at_the_high_one():
    under = port()
    for _ in range(6):
        under.accept(packet(key=0), True)
    # Behind the leaving packets stay 5, 4, 3, 2, 1 and 0 frames; the limits are 2 and 4 frames, and key 0 is always
    # marked between them.
    assert [drain(under, slot)[0].marked for slot in range(6)] == [1, 1, 1, 0, 0, 0]
    half = port()
    for key in (0, 0, 0x7FFF, 0x8000, 0, 0):
        half.accept(packet(key=key), True)
    # The third leaves three frames behind: half way between the limits, so that half of all keys are marked.
    assert [drain(half, slot)[0].marked for slot in range(4)] == [1, 1, 1, 0]
    other = port()
    for key in (0, 0, 0x8000, 0, 0, 0):
        other.accept(packet(key=key), True)
    assert [drain(other, slot)[0].marked for slot in range(4)] == [1, 1, 0, 0]


def test_a_port_without_limits_never_marks():
    under = port(low=-1, high=-1)
    for _ in range(8):
        under.accept(packet(), True)
    assert not any(drain(under, slot)[0].marked for slot in range(8))


def test_what_does_not_fit_is_trimmed_into_the_control_class_and_then_dropped():
    under = port(data=2 * FRAME, control=400)
    fates = [under.accept(packet(), True) for _ in range(5)]
    # Two frames fit, two headers of 166 bytes fit into 400 bytes of control queue, the third does not.
    assert fates == [QUEUED, QUEUED, TRIMMED, TRIMMED, DROPPED]
    sent = drain(under, 0)
    assert [(one.trimmed, one.size) for one in sent] == [(1, 166), (1, 166), (0, FRAME)]


def test_without_trimming_what_does_not_fit_is_dropped():
    under = port(data=2 * FRAME)
    assert [under.accept(packet(), False) for _ in range(3)] == [QUEUED, QUEUED, DROPPED]


def test_faults_add_up_and_leave_nothing_behind():
    under = port()
    changes = [
        LinkFaultChange(0, 0, (0,), "slow", begins=True, amount=SLOW_ONE // 2),
        LinkFaultChange(0, 1, (0,), "slow", begins=True, amount=SLOW_ONE // 2),
        LinkFaultChange(0, 2, (0,), "loss", begins=True, amount=LOSS_ONE // 2),
        LinkFaultChange(0, 3, (0,), "loss", begins=True, amount=LOSS_ONE // 2),
        LinkFaultChange(0, 4, (0,), "swallow", begins=True),
    ]
    for change in changes:
        under.change(change, 0, SLOT_PS)
    assert (under.rate_bps, under.loss, under.loses_all, under.is_down()) == (RATE // 4, LOSS_ONE * 3 // 4, True, False)
    for change in changes:
        under.change(LinkFaultChange(9, change.fault, (0,), change.effect, begins=False), 0, SLOT_PS)
    assert (under.rate_bps, under.loss, under.loses_all) == (RATE, 0, False)


@given(st.integers(1, 2**16 - 1), st.integers(FRAME, 10**7))
def test_a_slowed_port_holds_as_long_as_before_and_never_less_than_a_frame(share: int, data: int):
    under = port(data=data, control=data)
    before = under.limits
    under.change(LinkFaultChange(0, 1, (0,), "slow", begins=True, amount=share), 3, SLOT_PS)
    assert under.limits.ecn_low == before.ecn_low * share // 2**16
    assert under.limits.data == under.limits.control == max(FRAME, data * share // 2**16)
    assert under.accept(packet(), True) == QUEUED, "a frame always fits"
    under.change(LinkFaultChange(0, 1, (0,), "slow", begins=False, amount=share), 9, SLOT_PS)
    assert under.limits == before
