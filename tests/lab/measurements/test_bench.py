"""What a bench is asked for: faults in words, their calendar, the plane and the links that they hit; no root needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.builders import paper_lab, read_only_lab

from weft.core.errors import UsageError
from weft_lab.measurements.bench import (
    BIN_S,
    SETTLE_S,
    StreamResult,
    calendar,
    links_hit,
    links_used,
    mrc_document,
    plane_hit,
    planned,
    rate_bps,
    share_per_million,
)
from weft_lab.measurements.rates import Sample
from weft_lab.measurements.stream import TrafficStream
from weft_lab.network.faults import Faults
from weft_lab.network.lab import Lab


@pytest.fixture
def lab(tmp_path) -> Lab:
    return paper_lab(tmp_path)


@pytest.mark.parametrize(
    ("words", "names", "wrong"),
    [
        ("cut link0-p0-i0", ("link0-p0-i0",), ["cut"]),
        ("cut link0-p1-*", tuple(f"link0-p1-i{n}" for n in range(4)), ["cut"]),
        ("blackhole t1-p0-i1", ("t1-p0-i1",), ["black hole"]),
        ("loss link1-p0-i0-u1 2%", ("link1-p0-i0-u1",), ["loses 2 % into its lower end, 2 % into its upper"]),
        ("slow link0-p0-i2 100 Mb/s", ("link0-p0-i2",), ["slowed to 100 Mb/s"]),
        ("slow link0-p0-i2 100Mb/s", ("link0-p0-i2",), ["slowed to 100 Mb/s"]),
    ],
)
def test_a_fault_in_words_does_what_it_says(lab, words, names, wrong):
    fault = planned(lab, words)
    assert (fault.words, fault.names) == (words, names)
    now = Faults()
    for name in names:
        change = fault.step(lab.plan, now, name, "nft")
        assert change.batches
        now = change.after
    assert [now.of(name) for name in names] == [wrong] * len(names)


@pytest.mark.parametrize(
    "words",
    [
        "cut",
        "cut a b",
        "melt link0-p0-i0",
        "loss link0-p0-i0",
        "blackhole",
        "heal link0-p0-i0",
        "loss link0-p0-i0 1% 2%",
    ],
)
def test_anything_else_is_not_a_fault(lab, words):
    with pytest.raises(UsageError, match="is not a fault; write 'cut LINK'"):
        planned(lab, words)


@pytest.mark.parametrize("words", ["cut t1-p0-i0", "blackhole link0-p0-i0", "loss t0-p0-i0 1%", "cut link9"])
def test_a_fault_of_something_that_cannot_have_it_is_refused(lab, words):
    with pytest.raises(UsageError, match="there is no"):
        planned(lab, words)


@given(st.integers(0, 10**6))
def test_a_share_is_counted_in_millionths(per_million):
    assert share_per_million(f"{per_million / 10_000:.4f}%") == per_million


@pytest.mark.parametrize("text", ["1", "", "%", "-1%", "100.1%", "1 percent", "1,5%", "1%%", "0.00001%"])
def test_what_is_not_a_share_is_said(text):
    with pytest.raises(UsageError, match="is not a share of packets; write it as '1%'"):
        share_per_million(text)


@pytest.mark.parametrize(("text", "rate"), [("100Mb/s", 10**8), ("1 Gb/s", 10**9), ("1b/s", 1)])
def test_a_rate_is_read_in_bits_a_second(text, rate):
    assert rate_bps(text) == rate


@pytest.mark.parametrize("text", ["0 b/s", "fast", "", "100", "-1 Mb/s"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(UsageError):
        rate_bps(text)


@given(st.floats(1.5, 3600), st.integers(0, 3))
def test_faults_come_after_a_third_and_go_after_two(seconds, count):
    faults = [planned(read_only_lab(), f"cut link0-p0-i{n}") for n in range(count)]
    events = calendar(read_only_lab(), faults, seconds)
    assert [event.at_s for event in events] == [seconds / 3] * count + [2 * seconds / 3] * count
    assert [event.words for event in events[count:]] == [f"heal link0-p0-i{n}" for n in range(count)]


@pytest.mark.parametrize(
    ("words", "plane"),
    [([], 0), (["cut link0-p1-i0"], 1), (["blackhole t1-p1-i0"], 1), (["cut link1-p0-i0-u0", "cut link0-p1-i1"], 0)],
)
def test_a_rival_runs_in_the_plane_of_the_first_fault(lab, words, plane):
    assert plane_hit(lab, [planned(lab, each) for each in words]) == plane


def test_a_switch_hits_all_of_its_links_and_a_link_itself(lab):
    names = lab.plan.topology.name_of_link
    assert {names(link) for link in links_hit(lab, [planned(lab, "cut link0-p0-i3")])} == {"link0-p0-i3"}
    hit = {names(link) for link in links_hit(lab, [planned(lab, "blackhole t1-p1-i0")])}
    assert hit == {"link1-p1-i0-u0", "link1-p1-i1-u0"}


@pytest.mark.parametrize("plane", [0, 1])
@pytest.mark.parametrize("ends", [(0, 3), (3, 0), (1, 2), (0, 1)])
def test_a_connection_uses_links_of_its_plane_and_those_of_both_ends(lab, ends, plane):
    used = links_used(lab, ends[0], ends[1], plane)
    links = lab.plan.topology.links
    assert {int(links.plane[link]) for link in used} == {plane}
    names = {lab.plan.topology.name_of_link(link) for link in used}
    assert {f"link0-p{plane}-i{end}" for end in ends} <= names
    assert used == links_used(lab, ends[1], ends[0], plane), "there and back"


def test_a_program_gets_a_carrier_for_every_ev_of_its_pair(lab):
    document = mrc_document(lab, 0, 3, size=100, denied=[2], mode="ping", count=5)
    assert len(document["carriers"]) == len(set(document["carriers"])) == 4
    assert document["denied"] == [2]
    assert (document["mode"], document["count"], document["size"]) == ("ping", 5, 100)
    assert document["rate_bps"] == 2 * lab.plan.spec.rate_bps
    assert document["peer_name"] == "nic-i3"


def result(rates: tuple[int, int, int], seconds: float = 9.0) -> StreamResult:
    """Return a stream whose three thirds have these rates, in bytes for each sample of 50 ms."""
    stream = TrafficStream("mrc", "MRC", 0, 3, seconds, samples=[Sample(0.0, 0)])
    for turn in range(round(seconds / 0.05)):
        before = stream.samples[-1]
        stream.samples.append(Sample(before.at_s + 0.05, before.bytes + rates[min(2, int(3 * turn * 0.05 / seconds))]))
    return StreamResult(stream, hit=True)


@given(st.tuples(*[st.integers(0, 10**6)] * 3))
def test_the_means_of_the_thirds_are_their_rates(rates):
    found = result(rates)
    for phase, rate in enumerate(rates):
        assert found.mean(phase) == pytest.approx(rate * 8 / 0.05, rel=1e-6, abs=1e-3)
        assert found.reached(phase) == pytest.approx(rate * 8 / 0.05, rel=1e-6, abs=1e-3)


@pytest.mark.parametrize(("rates", "stall"), [((9, 9, 9), 0.05), ((9, 0, 9), 3.0), ((9, 0, 0), 6.0), ((0, 9, 9), 0.05)])
def test_a_stall_counts_from_the_first_fault_on(rates, stall):
    assert result(rates).stall_s == pytest.approx(stall, abs=0.11)


def test_a_result_for_programs_has_every_key_and_adds_up():
    found = result((1000, 500, 1000)).as_json()
    assert set(found) == {
        "transport", "source", "destination", "seconds", "hit", "mean_bps", "reached_bps", "overall_bps",
        "longest_stall_s", "bin_s", "rates_bps", "events", "statistics", "error",
    }  # fmt: skip
    assert len(found["rates_bps"]) == round(9.0 / BIN_S)
    assert found["mean_bps"]["before"] == pytest.approx(2 * found["mean_bps"]["during"], rel=1e-6)
    assert SETTLE_S < 9.0 / 3
