"""A lab on paper: what it is made of, what its faults do, what it refuses; no root is needed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft_lab.network import faults
from weft_lab.network.faults import Faults, Loss
from weft_lab.network.plan import LabPlan, LabSpec, queue_for, small_fabric
from weft_lab.network.record import LabRecord, LabRecords

RATE = 200_000_000


def plan_of(**changes: Any) -> LabPlan:
    asked = {"hosts": 4, "planes": 4, "spines": 2, **changes}
    return LabPlan(LabSpec("w", small_fabric(**asked, rate_bps=RATE), RATE, queue_for(RATE)))


def test_a_lab_has_the_hosts_planes_and_spines_that_were_asked_for():
    shape = plan_of(hosts=5, planes=3, spines=2).addressing.shape
    assert (shape.hosts, shape.planes, shape.t0, shape.t1) == (5, 3, 3, 2)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"hosts": 9}, "2 spines carry at most 8 hosts"),
        ({"hosts": 0}, "at least one host"),
        ({"planes": 0}, "at least one host, one plane"),
    ],
)
def test_what_cannot_be_built_is_said_in_one_sentence(wrong: dict[str, int], says: str):
    with pytest.raises(UsageError, match=says):
        plan_of(**wrong)


@pytest.mark.parametrize("mtu", [1280, 4227, 65_536])
def test_frames_that_cannot_carry_a_packet_are_refused(mtu: int):
    with pytest.raises(UsageError, match="4228"):
        LabSpec("w", small_fabric(2, 1, 1, RATE), RATE, queue_for(RATE), mtu)


def test_every_port_gets_its_rate_and_every_namespace_its_batch():
    plan = plan_of()
    batches = plan.bring_to_life()
    shaped = [line for batch in batches if batch.program == "tc" for line in batch.lines]
    assert len(shaped) == 2 * len(plan.topology.links)
    assert all(f"rate {RATE}bit" in line for line in shaped)
    assert {batch.namespace for batch in batches} == set(plan.namespaces)


LINKS = st.sampled_from([plan_of().topology.name_of_link(link) for link in range(32)])
STEPS = st.lists(st.tuples(st.sampled_from(("cut", "loss", "slow", "hole", "heal")), LINKS), max_size=12)


def apply(plan: LabPlan, now: Faults, kind: str, link: str) -> faults.FaultChange:
    match kind:
        case "cut":
            return faults.cut(plan, now, link)
        case "loss":
            return faults.lose(plan, now, link, 10_000, into="both", by="nft")
        case "slow":
            return faults.slow(plan, now, link, RATE // 2)
        case "hole":
            return faults.black_hole(plan, now, "t1-p0-i0", "nft")
        case _:
            return faults.heal(plan, now, link, "nft")


@given(STEPS)
def test_whatever_was_done_healing_everything_leaves_nothing(steps: list[tuple[str, str]]):
    plan, now = plan_of(), Faults()
    for kind, link in steps:
        now = apply(plan, now, kind, link).after
    assert Faults.from_json(now.as_json()) == now
    for name in {*now.cut, *now.loss, *now.slow, *now.black_holes}:
        assert now.of(name)
        change = faults.heal(plan, now, name, "nft")
        assert change.batches
        now = change.after
    assert not now


def test_loss_at_one_end_leaves_the_other_alone():
    plan = plan_of()
    change = faults.lose(plan, Faults(), "link0-p1-i2", 10_000, into="lower", by="nft")
    assert change.after.loss == {"link0-p1-i2": Loss(10_000, 0)}
    assert [batch.namespace for batch in change.batches] == ["w-h2"]
    assert "mod 1000000 < 10000" in change.batches[0].text()


@pytest.mark.parametrize("by", ["nft", "ip6tables"])
def test_both_filters_drop_the_same_share(by: Any):
    change = faults.lose(plan_of(), Faults(), "link1-p0-i0-u1", 2_500, into="upper", by=by)
    assert [batch.namespace for batch in change.batches] == ["w-t1p0i1"]
    wanted = "< 2500" if by == "nft" else "--probability 0.002500"
    assert wanted in change.batches[0].text()


def test_an_unknown_link_is_named_with_what_exists():
    with pytest.raises(UsageError, match="names look like 'link0-p0-i0'"):
        faults.cut(plan_of(), Faults(), "cable-7")


def test_a_record_comes_back_as_it_was_written(tmp_path: Any):
    records = LabRecords(tmp_path / "labs")
    with records.alone():
        record = LabRecord(plan_of().spec, "up", faults=Faults(cut=frozenset({"link0-p0-i0"})))
        records.write(record)
        assert records.read("w") == record
        records.forget("w")
    assert not records.folder.exists()


def test_a_damaged_record_is_named_and_can_be_removed(tmp_path: Any):
    records = LabRecords(tmp_path / "labs")
    with records.alone():
        (records.folder / "w.json").write_text("{")
        with pytest.raises(UsageError, match="weft lab down --name w"):
            records.read("w")
        records.forget("w")
        assert records.read("w") is None
