"""Any pattern of loss, duplication, reordering, trimming and path death: every byte once, or the named error."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mrc.channel import FINE, LATE, LOSE, MARK, STRIDE, TRIM, TRIM_LAST, TWICE, US, Channel, Script, small_spec

from weft.core.seeds import Seed
from weft.mrc.columns import ERROR_NAMES, EV_STATE_NAMES, NEVER

FATES = st.sampled_from([FINE, FINE, FINE, LATE, LOSE, LOSE, TWICE, MARK, TRIM, TRIM_LAST])
REPLY_FATES = st.sampled_from([FINE, FINE, FINE, LATE, LOSE, TWICE])
TRIMLESS_FATES = st.sampled_from([FINE, FINE, LATE, LOSE, LOSE, TWICE, MARK])
MESSAGES = st.lists(st.tuples(st.integers(1, 640), st.sampled_from([-1, -1, 0, 77])), min_size=1, max_size=6)
SPANS = st.tuples(st.integers(0, 100 * US), st.integers(1, 400 * US)).map(lambda span: (span[0], span[0] + span[1]))
PATHS = st.tuples(st.integers(0, 1), st.integers(0, 7)).map(lambda path: path[0] * STRIDE + path[1])
PORTS = st.lists(st.tuples(st.integers(0, 300 * US), st.integers(0, 1), st.integers(0, 1)), max_size=3)


def scripts(fates: Any):
    return st.builds(
        Script,
        data=st.lists(fates, max_size=60),
        replies=st.lists(REPLY_FATES, max_size=40),
        dead=st.dictionaries(PATHS, SPANS, max_size=10),
        ports=PORTS,
        late_ps=st.integers(1, 60 * US),
    )


def assert_every_byte_once_or_named(channel: Any):
    error = channel.run(limit=4000)
    assert channel.finished(), "neither delivered nor failed within the step limit"
    assert channel.memory.max() <= 1, "a byte was placed twice"
    immediates = [immediate for _, immediate in channel.messages if immediate >= 0]
    assert channel.immediates == immediates[: len(channel.immediates)], "immediates out of order"
    if error:
        assert ERROR_NAMES[error] in ("RETRY_EXCEEDED", "NO_PATH")
    else:
        assert channel.memory.min() == 1, "a byte is missing"
        assert channel.immediates == immediates, "an immediate is missing"
        assert channel.s.qp[0]["delivered_bytes"] == len(channel.memory)
        assert channel.s.qp[0]["inflight_bytes"] == 0


@given(scripts(FATES), MESSAGES, st.integers(0, 2**24 + 64), st.integers(0, 2**40))
@settings(max_examples=60)
def test_any_faults_deliver_every_byte_once_or_end_by_name(
    script: Any, messages: Any, first_seq: int, seed: int
) -> None:
    assert_every_byte_once_or_named(Channel(small_spec(), script, messages, first_seq=first_seq, seed=seed))


@given(scripts(TRIMLESS_FATES), MESSAGES, st.integers(2**24 - 20, 2**24 + 20))
@settings(max_examples=40)
def test_without_trimming_the_same_holds_across_the_psn_wrap(script: Any, messages: Any, first_seq: int) -> None:
    assert_every_byte_once_or_named(Channel(small_spec(trimming=False), script, messages, first_seq=first_seq))


@pytest.mark.slow
@pytest.mark.timeout(600)
@given(scripts(FATES), MESSAGES, st.integers(0, 2**24 + 64), st.integers(0, 2**40))
@settings(max_examples=6000)
def test_six_thousand_fault_patterns(script: Any, messages: Any, first_seq: int, seed: int) -> None:
    assert_every_byte_once_or_named(Channel(small_spec(), script, messages, first_seq=first_seq, seed=seed))


@pytest.mark.slow
@pytest.mark.timeout(600)
@given(scripts(TRIMLESS_FATES), MESSAGES, st.integers(2**24 - 40, 2**24 + 40), st.integers(0, 2**40))
@settings(max_examples=4000)
def test_four_thousand_fault_patterns_without_trimming(script: Any, messages: Any, first_seq: int, seed: int) -> None:
    channel = Channel(small_spec(trimming=False), script, messages, first_seq=first_seq, seed=seed)
    assert_every_byte_once_or_named(channel)


@given(scripts(FATES), MESSAGES, st.integers(0, 2**24 + 64))
@settings(max_examples=25)
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_rules_leave_the_same_bytes(script: Any, messages: Any, first_seq: int) -> None:
    plain = Channel(small_spec(), script, messages, first_seq=first_seq, checks=False)
    script = Script(script.data, script.replies, dict(script.dead), script.ports, script.late_ps)
    fast = Channel(small_spec(), script, messages, first_seq=first_seq, fast=True, checks=False)
    assert plain.run() == fast.run()
    assert plain.state_bytes() == fast.state_bytes()


def test_a_transfer_without_faults_sends_every_packet_once() -> None:
    channel = Channel(small_spec(), Script(), [(6400, -1), (10, 3)])
    assert channel.run() == 0
    q = channel.s.qp[0]
    assert (q["sent"], q["resent"], q["silent"], q["probes"], q["timeouts"]) == (101, 0, 0, 0, 0)


def test_a_dead_peer_ends_in_retry_exceeded() -> None:
    channel = Channel(
        small_spec(), Script(dead={p * STRIDE + k: (0, NEVER) for p in (0, 1) for k in range(8)}), [(640, -1)]
    )
    assert ERROR_NAMES[channel.run()] == "RETRY_EXCEEDED"
    # Silence on every path blames none of them.
    assert channel.s.qp[0]["retired"] == 0


def test_both_ports_down_end_in_no_path() -> None:
    channel = Channel(small_spec(), Script(ports=[(0, 0, 0), (0, 1, 0)]), [(64 * 400, -1)])
    assert ERROR_NAMES[channel.run()] in ("NO_PATH", "RETRY_EXCEEDED")


def test_a_lost_tail_is_repaired_by_a_probe_and_not_by_the_timer() -> None:
    channel = Channel(small_spec(), Script(data=[FINE] * 9 + [LOSE]), [(640, -1)])
    assert channel.run() == 0
    q = channel.s.qp[0]
    assert (q["probes"], q["timeouts"], q["silent"]) == (1, 0, 1)
    assert channel.now < 65 * US


def test_a_dead_path_is_left_within_tens_of_microseconds() -> None:
    channel = Channel(small_spec(), Script(pace_ps=100_000), [(64 * 800, -1)])
    dead = int(channel.s.evs[0, channel.s.rotation[0, 0]]["value"])
    channel.script.dead[dead] = (20 * US, NEVER)
    assert channel.run() == 0
    used = [at for at, value, kind in channel.sent_at if value == dead and kind == "data" and at >= 20 * US]
    assert used
    # A round trip of 10 us, the spread of 10 us, and what was on its way.
    assert max(used) - used[0] <= 30 * US
    assert channel.s.qp[0]["timeouts"] == 0


def test_a_healed_path_comes_back_after_enough_probes() -> None:
    channel = Channel(small_spec(), Script(pace_ps=400_000), [(64 * 1200, -1)])
    dead = int(channel.s.evs[0, channel.s.rotation[0, 0]]["value"])
    channel.script.dead[dead] = (20 * US, 150 * US)
    assert channel.run() == 0
    q = channel.s.qp[0]
    assert q["readmitted"] >= 1
    assert q["bad"] == 0


def test_heavy_reordering_below_the_spread_loses_nothing() -> None:
    fates = [LATE if k % 3 == 0 else FINE for k in range(400)]
    channel = Channel(small_spec(), Script(data=fates, late_ps=9 * US), [(64 * 400, -1)])
    assert channel.run() == 0
    q = channel.s.qp[0]
    assert (q["resent"], q["retired"]) == (0, 0)


def test_reordering_that_has_been_seen_is_no_loss_any_more() -> None:
    fates = [LATE if k % 5 == 0 else FINE for k in range(1500)]
    channel = Channel(small_spec(), Script(data=fates, late_ps=14 * US), [(64 * 1500, -1)])
    assert channel.run() == 0
    q = channel.s.qp[0]
    assert (q["spurious"], q["resent"], q["retired"]) == (0, 0, 0)


def test_reordering_beyond_the_spread_widens_it_and_clears_the_paths() -> None:
    # Nothing is late for a while, so that nobody expects it.
    fates = [FINE] * 300 + [LATE if k % 5 == 0 else FINE for k in range(1200)]
    channel = Channel(small_spec(), Script(data=fates, late_ps=14 * US, pace_ps=100_000), [(64 * 1500, -1)])
    assert channel.run() == 0
    q = channel.s.qp[0]
    assert q["spurious"] > 0
    assert q["spread_ps"] > channel.s.params[0]["spread_ps"]
    assert q["resent"] < 150
    assert q["bad"] <= 2


def test_loss_by_congestion_without_trimming_retires_no_healthy_path() -> None:
    fates = [LOSE if k % 20 == 7 else FINE for k in range(1500)]
    channel = Channel(small_spec(trimming=False), Script(data=fates), [(64 * 1500, -1)])
    assert channel.run() == 0
    q = channel.s.qp[0]
    assert q["silent"] > 50
    assert q["retired"] <= 2


def test_a_full_queue_without_trimming_retires_no_healthy_path() -> None:
    # Drawn, not in turn: a lone packet and the probe after it would else have the same fates for ever.
    chance = Seed(3).stream("fates")
    fates = [FINE if chance.integers(2) else LOSE for _ in range(900)]
    spec = small_spec(trimming=False)
    patient = spec.model_copy(update={"loss": spec.loss.model_copy(update={"exponential_retries": 20})})
    channel = Channel(patient, Script(data=fates), [(64 * 1500, -1)])
    assert channel.run() == 0
    q = channel.s.qp[0]
    assert q["silent"] > 200
    assert q["retired"] <= 1


def test_a_dead_path_is_retired_without_trimming_too() -> None:
    channel = Channel(small_spec(trimming=False), Script(pace_ps=100_000), [(64 * 1500, -1)])
    dead = int(channel.s.evs[0, channel.s.rotation[0, 0]]["value"])
    channel.script.dead[dead] = (20 * US, NEVER)
    assert channel.run() == 0
    (row,) = [ev for ev in channel.s.evs[0] if ev["value"] == dead]
    assert EV_STATE_NAMES[row["state"]] == "ASSUMED_BAD"
    assert channel.s.qp[0]["retired"] == 1


def test_packets_that_were_under_way_together_make_one_timeout() -> None:
    channel = Channel(small_spec(), Script(data=[LOSE] * 60, pace_ps=400_000), [(64 * 20, -1)])
    assert channel.run() == 0
    q = channel.s.qp[0]
    assert q["silent"] >= 20
    assert q["timeouts"] <= 3


def test_where_nothing_is_heard_retired_paths_are_tried_again() -> None:
    channel = Channel(small_spec(), Script(pace_ps=100_000), [(64 * 600, -1)])
    values = [int(ev["value"]) for ev in channel.s.evs[0] if ev["value"] >= 0]
    # All but the last die for good, one after the other; the last is dead until the others are.
    for place, value in enumerate(values[:-1]):
        channel.script.dead[value] = ((10 + 15 * place) * US, NEVER)
    channel.script.dead[values[-1]] = (5 * US, 15 * len(values) * US)
    assert channel.run() == 0
    assert channel.s.qp[0]["readmitted"] > 0


def test_a_port_that_goes_down_takes_its_plane_and_comes_back() -> None:
    script = Script(ports=[(30 * US, 1, 0), (120 * US, 1, 1)], pace_ps=200_000)
    channel = Channel(small_spec(remap_us=10), script, [(64 * 1000, -1)])
    assert channel.run() == 0
    down = [v // STRIDE for at, v, kind in channel.sent_at if kind == "data" and 45 * US < at < 120 * US]
    after = [v // STRIDE for at, v, kind in channel.sent_at if kind == "data" and at > 140 * US]
    assert down
    assert set(down) == {0}
    assert set(after) == {0, 1}
    assert channel.back.qp[0]["peer_up"] == 3
    assert channel.s.qp[0]["ports_announced"] == 3
