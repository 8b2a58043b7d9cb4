"""What is thought of each node, and what follows: from reports to verdicts, quarantine, tests, repair and return.

Reports come from health checks, trainers and the fabric's prober; engines write them into a node's `evidence`. Old
ones are forgotten, and after a pause of the planner all of them are: only what is seen anew counts. A brake stands
before quarantine: where too many nodes look sick at once, the monitor is doubted first, and a person is called. An
operator's word stands above all of it. Pure.
"""

from dataclasses import dataclass

import numpy as np

from weft.cluster.health.node_life import NodeEvent, after
from weft.cluster.health.tickets import DOES_NOT_REPRODUCE, repair_for
from weft.cluster.records.actions import Action, Alarm, Degrade, Move, Quarantine, RunTest, Ticket
from weft.cluster.records.effects import NodeAction
from weft.cluster.records.node import Node, NodeEvidence, NodeState
from weft.cluster.scheduling.state import ClusterState

PROGRAMS = {
    NodeState.PREFLIGHT: "preflight",
    NodeState.TESTING: "diagnose",
    NodeState.VALIDATING: "validate",
}
"""The test that each state calls for."""
WARNINGS_MOST = 3
"""Warnings of a suspect node, fresh ones, that condemn it."""
BAD_GPUS_MOST = 1
"""GPUs of a node that may be missing before it is taken out as a whole."""
_PARTS = ("power", "swap-gpu")
"""Repairs that no test makes superfluous: a part has to be replaced or connected."""
_WITNESSES = 2
_REPAIRED = "repaired"


def report(program: str, at_ms: int, *, passed: bool, text: str = "", repair: str = "") -> NodeEvidence:
    """Return the report of an active test, in the form in which a node's evidence holds it."""
    return NodeEvidence(f"test:{program}", at_ms, "note" if passed else "fatal", text, repair=repair)


def repaired(at_ms: int, text: str = "") -> NodeEvidence:
    """Return the report that somebody has repaired a node."""
    return NodeEvidence(_REPAIRED, at_ms, "note", text)


def fresh(cluster: ClusterState, node: Node, now_ms: int) -> tuple[NodeEvidence, ...]:
    """Return the reports on a node that still count."""
    since_ms = max(cluster.resumed_ms, now_ms - cluster.policy.forget_ms)
    return tuple(each for each in node.evidence if each.at_ms >= since_ms)


def lemon_score(node: Node, now_ms: int, window_ms: int) -> int:
    """Return how often a node was out of service within the window."""
    return sum(at_ms > now_ms - window_ms for at_ms in node.outs)


@dataclass(frozen=True, slots=True)
class Brake:
    """How far health may go at the moment."""

    allowance: int
    """Nodes that may be taken out within the window."""
    recent: int
    """Nodes that were taken out within it."""
    sick: int
    """Nodes that it would take out now."""
    resting: bool = False
    """Whether too many looked sick a moment ago: what comes back does not come back all at once."""

    @property
    def many(self) -> bool:
        """Return whether too many look sick at once."""
        return self.recent + self.sick > self.allowance

    @property
    def holds(self) -> bool:
        """Return whether nothing may be taken out."""
        return self.many or self.resting


def brake(cluster: ClusterState, sick: int, now_ms: int) -> Brake:
    """Return the brake for so many nodes that look sick."""
    policy, count = cluster.policy, cluster.pool.count
    allowance = min(max(int(policy.brake_share * count), policy.brake_least), policy.brake_most)
    out_ms = cluster.pool.out_ms
    recent = int(np.count_nonzero((out_ms >= 0) & (out_ms > now_ms - policy.brake_window_ms)))
    resting = cluster.braked_ms is not None and now_ms - cluster.braked_ms < policy.brake_rest_ms
    return Brake(allowance, recent, sick, resting=sick > 0 and resting)


def health_pass(cluster: ClusterState, now_ms: int) -> list[Action]:
    """Decide about every node of which something is known; the state takes every action as carried out."""
    if cluster.planned_ms is not None and now_ms - cluster.planned_ms > cluster.policy.pause_ms:
        cluster.resumed_ms = now_ms
    if not cluster.pool.watched:
        return _alarm(cluster, None)
    found: list[Action] = []
    condemned: list[tuple[Node, tuple[NodeEvidence, ...], str]] = []
    for number in sorted(cluster.pool.watched):
        node = cluster.pool.nodes[number]
        seen = fresh(cluster, node, now_ms)
        why = _condemned(node, seen)
        if why and node.override != "keep":
            condemned.append((node, seen, why))
        else:
            found += _step(cluster, node, seen, now_ms)
    held = brake(cluster, len(condemned), now_ms)
    if held.many:
        cluster.braked_ms = now_ms
    for node, seen, why in condemned:
        # Two checks that know nothing of each other are believed even then, as far as the allowance goes.
        witnesses = len({each.check for each in seen if each.severity != "note"})
        if not held.holds or (witnesses >= _WITNESSES and held.recent < held.allowance):
            found += _take_out(cluster, node, seen, why, now_ms)
            held = brake(cluster, held.sick - 1, now_ms)
        elif node.state is NodeState.READY:
            found += _moved(cluster, node, NodeEvent.WARNED, "it looks sick, but too many do", now_ms)
    return found + _alarm(cluster, held)


def _alarm(cluster: ClusterState, held: Brake | None) -> list[Action]:
    """Call a person when the brake begins to hold, and say when it ends."""
    on = held is not None and held.holds
    if on == ("brake" in cluster.alarms):
        return []
    if held is None or not on:
        cluster.alarms.discard("brake")
        cluster.braked_ms = None
        return [Alarm("brake", on=False, text="no more nodes look sick than may be taken out")]
    cluster.alarms.add("brake")
    text = (
        f"{held.sick:,} nodes look sick at once and {held.recent:,} were taken out lately; {held.allowance:,} may be "
        f"in {cluster.policy.brake_window_ms // 60_000} min: the monitor is doubted first, nothing is taken out"
    )
    return [Alarm("brake", on=True, text=text)]


def _condemned(node: Node, seen: tuple[NodeEvidence, ...]) -> str | None:
    """Return why a node that is in service must go, or nothing."""
    if node.state not in (NodeState.READY, NodeState.SUSPECT, NodeState.DRAINING):
        return None
    fatal = [each for each in seen if each.severity == "fatal"]
    if fatal and not _only_gpus(node, fatal):
        return f"{fatal[0].check}: {fatal[0].text}" if fatal[0].text else fatal[0].check
    warnings = sum(each.severity == "warning" for each in seen)
    return f"{warnings} warnings" if warnings >= WARNINGS_MOST else None


def _only_gpus(node: Node, fatal: list[NodeEvidence]) -> bool:
    """Return whether what is broken is few enough GPUs for the rest of the node to be used."""
    gpus = {each.gpu for each in fatal}
    return None not in gpus and len(gpus | set(node.bad_gpus)) <= BAD_GPUS_MOST < node.gpus


def _take_out(cluster: ClusterState, node: Node, seen: tuple[NodeEvidence, ...], why: str, now_ms: int) -> list[Action]:
    action = Quarantine(node.number, why, seen)
    after(node.state, NodeEvent.CONDEMNED)
    cluster.take_up_node(action, now_ms)
    return [action]


def _step(cluster: ClusterState, node: Node, seen: tuple[NodeEvidence, ...], now_ms: int) -> list[Action]:  # noqa: PLR0911 - by state
    """Take a node one step further in its life, where something says so."""
    match node.state:
        case NodeState.JOINING:
            return _moved(cluster, node, NodeEvent.FOUND, "it is tested before it takes work", now_ms)
        case NodeState.READY | NodeState.SUSPECT:
            return _in_service(cluster, node, seen, now_ms)
        case NodeState.QUARANTINED if not cluster.pool.taken[node.number]:
            if lemon_score(node, now_ms, cluster.policy.lemon_ms) >= cluster.policy.lemon_outs:
                return _to_repair(cluster, node, NodeEvent.REPAIR, "a lemon: out of service again and again", now_ms)
            if part := next((each for each in seen if each.severity == "fatal" and each.repair in _PARTS), None):
                return _to_repair(cluster, node, NodeEvent.REPAIR, part.text or part.check, now_ms)
            return _moved(cluster, node, NodeEvent.EMPTY, "find out what is wrong", now_ms)
        case NodeState.PREFLIGHT | NodeState.TESTING | NodeState.VALIDATING:
            return _tested(cluster, node, now_ms)
        case NodeState.REPAIRING if any(
            each.check == _REPAIRED and each.at_ms >= node.since_ms for each in node.evidence
        ):
            return _moved(cluster, node, NodeEvent.REPAIRED, "repaired; tested before it returns", now_ms)
        case _:
            return []


def _in_service(cluster: ClusterState, node: Node, seen: tuple[NodeEvidence, ...], now_ms: int) -> list[Action]:
    fatal = [each for each in seen if each.severity == "fatal"]
    if fatal and node.override != "keep":
        gpus = tuple(sorted({each.gpu for each in fatal if each.gpu is not None}))
        action = Degrade(node.number, gpus, f"{fatal[0].check} on GPU {gpus[0]}; the others stay in use")
        cluster.take_up_node(action, now_ms)
        return [action]
    warned = any(each.severity == "warning" for each in seen) and node.override != "keep"
    if node.state is NodeState.READY and warned:
        return _moved(cluster, node, NodeEvent.WARNED, seen[-1].text or seen[-1].check, now_ms)
    if node.state is NodeState.SUSPECT and not warned:
        return _moved(cluster, node, NodeEvent.CLEARED, "not seen again", now_ms)
    return []


def _tested(cluster: ClusterState, node: Node, now_ms: int) -> list[Action]:
    """Read the report of the test that the node's state calls for; one from before does not count."""
    check = f"test:{PROGRAMS[node.state]}"
    reports = [each for each in node.evidence if each.check == check and each.at_ms >= node.since_ms]
    if not reports:
        return []
    if reports[-1].severity == "fatal":
        event = NodeEvent.FAILED
        if node.state is NodeState.PREFLIGHT:
            return _moved(cluster, node, event, reports[-1].text, now_ms)
        return _to_repair(cluster, node, event, reports[-1].text or "the test failed", now_ms)
    if node.state is NodeState.VALIDATING and node.override == "out":
        return []
    reason = DOES_NOT_REPRODUCE if node.state is NodeState.TESTING else "the test passed"
    return _moved(cluster, node, NodeEvent.PASSED, reason, now_ms)


def _to_repair(cluster: ClusterState, node: Node, event: NodeEvent, finding: str, now_ms: int) -> list[Action]:
    """Send a node to repair with a ticket, or give it up."""
    if node.attempts >= cluster.policy.repairs_most:
        return _moved(cluster, node, NodeEvent.RETIRE, f"{node.attempts} repairs did not help", now_ms)
    ticket: Ticket = repair_for(node, finding, now_ms)
    return [*_moved(cluster, node, event, finding, now_ms), ticket]


def _moved(cluster: ClusterState, node: Node, event: NodeEvent, reason: str, now_ms: int) -> list[Action]:
    """Take a step of the table, and begin the test that the new state calls for."""
    state = after(node.state, event)
    action: NodeAction = Move(node.number, state, str(event), reason)
    if state is NodeState.QUARANTINED:
        action = Quarantine(node.number, reason, node.evidence)
    cluster.take_up_node(action, now_ms)
    program = PROGRAMS.get(state)
    return [action, RunTest(node.number, program)] if program else [action]
