"""A ticket names the repair that the newest evidence calls for, and what the fault costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.health.tickets import REPAIRS, repair_for
from weft.cluster.records.node import Node, NodeEvidence, Severity
from weft.engines.health.checks import HealthCheck
from weft.engines.health.registry import CHECKS

NAMED = sorted(name for name in REPAIRS if name and name != "lemon")


def node(*evidence: NodeEvidence, **more: int) -> Node:
    return Node(3, "n3", 8, evidence=evidence, out_ms=more.get("out_ms"))


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("prefix", ["", "test:"])
def test_each_check_has_its_repair(name: str, prefix: str):
    ticket = repair_for(node(NodeEvidence(prefix + name, 5)), "seen", 10)
    repair = REPAIRS[name]
    assert (ticket.action, ticket.parts, ticket.technician_min) == (repair.action, repair.parts, repair.technician_min)


@pytest.mark.parametrize("name", NAMED)
def test_evidence_may_name_another_repair_than_its_check_has(name: str):
    ticket = repair_for(node(NodeEvidence("test:diagnose", 5, "fatal", repair=name)), "seen", 10)
    assert ticket.action == REPAIRS[name].action


@pytest.mark.parametrize("check", ["", "unheard-of", "xids", "my-link", "diagnose"])
def test_what_nobody_knows_gets_the_general_repair(check: str):
    assert repair_for(node(NodeEvidence(check, 5)), "seen", 10).action == REPAIRS[""].action
    assert repair_for(node(), "seen", 10).action == REPAIRS[""].action


severities = st.sampled_from(["note", "warning", "fatal"])


@given(st.lists(st.tuples(st.sampled_from([*NAMED, "unheard-of"]), severities), max_size=6))
def test_the_newest_evidence_that_is_more_than_a_note_decides(seen: list[tuple[str, Severity]]):
    found = repair_for(node(*(NodeEvidence(name, at, severity) for at, (name, severity) in enumerate(seen))), "x", 10)
    weighty = [name for name, severity in seen if severity != "note" and name in REPAIRS]
    assert found.action == REPAIRS[weighty[-1] if weighty else ""].action


def test_a_lemon_goes_to_the_vendor_whatever_was_seen():
    ticket = repair_for(node(NodeEvidence("link", 5)), "a lemon: out of service again and again", 10)
    assert ticket.action == REPAIRS["lemon"].action


@pytest.mark.parametrize(("out_ms", "now_ms", "minutes"), [(None, 10**9, 60), (0, 600_000, 70), (600_000, 600_000, 60)])
def test_a_fault_costs_the_gpus_while_the_node_was_and_will_be_out(out_ms: int | None, now_ms: int, minutes: int):
    sick = Node(3, "n3", 8, evidence=(NodeEvidence("link", 5),), out_ms=out_ms)
    assert repair_for(sick, "flaps", now_ms).blast_gpu_ms == 8 * minutes * 60_000


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: check.name)
def test_every_health_check_names_a_repair_that_there_is(check: HealthCheck):
    assert check.repair in REPAIRS
