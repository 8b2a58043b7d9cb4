"""From reports to quarantine, tests, repair and return."""

from dataclasses import replace

from tests.cluster.worlds import nodes_of

from weft.cluster.health.idle_tests import hours_to_validate
from weft.cluster.health.quarantine import repaired, report
from weft.cluster.plan import decide, plan
from weft.cluster.records import effects
from weft.cluster.records.actions import Action, Alarm, Degrade, Preempt, Quarantine, Replace, RunTest, Ticket
from weft.cluster.records.effects import witnessed
from weft.cluster.records.job import Gang, Job, JobState, Placement, Team
from weft.cluster.records.node import Node, NodeEvidence, NodeState
from weft.cluster.records.snapshot import SchedulingPolicy, Snapshot
from weft.cluster.scheduling.state import ClusterState

MINUTE = 60_000
DEAD = NodeEvidence("silent", 1000, "fatal", "no heartbeat")


class Room:
    """A state of eight nodes, and a clock."""

    def __init__(self, policy: SchedulingPolicy | None = None, *jobs: Job) -> None:
        nodes = nodes_of(8, 4, odd=False)
        self.cluster = ClusterState(Snapshot(nodes, jobs, (Team("default", 32),), policy=policy or SchedulingPolicy()))
        self.now_ms = 1000

    def see(self, number: int, *seen: NodeEvidence, after_ms: int = 0) -> list[Action]:
        self.now_ms += after_ms
        self.cluster.put(witnessed(self.node(number), *seen), self.now_ms)
        return self.step(0)

    def step(self, after_ms: int = 1000) -> list[Action]:
        self.now_ms += after_ms
        return list(decide(self.cluster, self.now_ms))

    def node(self, number: int = 0) -> Node:
        return self.cluster.pool.nodes[number]


def kinds(actions: list[Action]) -> list[str]:
    return [type(action).__name__ for action in actions]


def test_a_dead_node_goes_through_test_repair_and_validation_and_comes_back():
    room = Room()
    assert kinds(room.see(0, DEAD)) == ["Quarantine"]
    assert [action.program for action in room.step() if isinstance(action, RunTest)] == ["diagnose"]
    actions = room.see(0, report("diagnose", 3000, passed=False, text="memory pattern"), after_ms=1000)
    ticket = next(action for action in actions if isinstance(action, Ticket))
    assert room.node().state is NodeState.REPAIRING
    assert ticket.technician_min > 0
    assert ticket.blast_gpu_ms > 0
    assert DEAD in ticket.evidence
    room.see(0, repaired(5000), after_ms=2000)
    assert room.node().state is NodeState.VALIDATING
    room.see(0, report("validate", 6000, passed=True), after_ms=1000)
    assert (room.node().state, room.node().evidence, room.node().tested_ms) == (NodeState.READY, (), 6000)


def test_what_does_not_come_again_is_said_so_and_a_lemon_is_repaired_all_the_same():
    room = Room(SchedulingPolicy(lemon_outs=2))
    for round_ in range(2):
        room.see(0, replace(DEAD, at_ms=room.now_ms))
        actions = room.step()
        if round_ == 0:
            room.see(0, report("diagnose", room.now_ms + 10, passed=True), after_ms=10)
            assert room.node().state is NodeState.VALIDATING
            room.see(0, report("validate", room.now_ms + 10, passed=True), after_ms=10)
            assert room.node().state is NodeState.READY
    assert room.node().state is NodeState.REPAIRING
    assert "lemon" in next(action for action in actions if isinstance(action, Ticket)).finding


def test_a_warning_makes_a_suspect_and_is_forgotten():
    room = Room()
    room.see(0, NodeEvidence("ecc", 1000))
    assert room.node().state is NodeState.SUSPECT
    for _ in range(16):
        room.step(MINUTE)
    assert room.node().state is NodeState.READY


def test_after_a_pause_old_reports_are_forgotten():
    room = Room()
    room.step()
    room.cluster.put(witnessed(room.node(), DEAD), room.now_ms)
    assert room.step(10 * MINUTE) == []
    assert room.node().state is NodeState.READY


def test_an_operators_word_stands():
    room = Room()
    room.cluster.put(replace(room.node(0), override="keep"), room.now_ms)
    room.cluster.put(replace(room.node(1), override="out"), room.now_ms)
    assert room.see(0, DEAD) == []
    room.cluster.put(Job("all", Gang(8, 4), 0), room.now_ms)
    assert "Bind" not in kinds(room.step())
    assert room.cluster.jobs["all"].last_wait_code == "size"


def test_one_broken_gpu_leaves_the_rest_of_the_node_in_use():
    room = Room()
    actions = room.see(0, NodeEvidence("xid", 1000, "fatal", "fell off the bus", gpu=2))
    assert [action.gpus for action in actions if isinstance(action, Degrade)] == [(2,)]
    assert (room.node().degraded, room.node().usable_gpus, room.node().state) == (True, 3, NodeState.READY)
    room.cluster.put(Job("small", Gang(8, 3), 0), room.now_ms)
    bound = room.cluster.jobs["small"] if room.step() else None
    assert bound is not None
    assert bound.placement is not None
    assert bound.placement.devices[0] == (0, 1, 3)


def test_a_training_gets_a_spare_for_a_lost_node_and_an_experiment_starts_again():
    training = Job(
        "t", Gang(3, 4), 0, "training", state=JobState.RUNNING, placement=Placement((0, 1, 2), 4), start_ms=0
    )
    other = replace(training, id="e", kind="experiment", placement=Placement((3, 4, 5), 4))
    room = Room(None, training, other)
    found = [action for action in room.see(1, DEAD) if isinstance(action, Replace)]
    assert [(action.lost, action.spares) for action in found] == [((1,), (6,))]
    evicted = [action for action in room.see(4, DEAD) if isinstance(action, Preempt)]
    assert [(action.job, action.stage, action.reason) for action in evicted] == [("e", "evict", "node")]


def test_thirty_per_cent_silent_at_once_are_an_alarm_and_none_of_them_is_taken_out():
    nodes = tuple(
        witnessed(node, DEAD) if node.number % 10 < 3 else node for node in nodes_of(1000, 4, odd=False)
    )  # fmt: skip
    jobs = tuple(
        Job(f"j{at}", Gang(1, 4), 0, state=JobState.RUNNING, placement=Placement((at,), 4), start_ms=0)
        for at in range(1000)
    )
    actions = plan(Snapshot(nodes, jobs, (Team("default", 4000),)), 2000)
    assert not {"Quarantine", "Preempt", "Stop", "Replace"} & set(kinds(list(actions)))
    (alarm,) = [action for action in actions if isinstance(action, Alarm)]
    assert alarm.on
    assert "300 nodes look sick at once" in alarm.text


def test_nodes_that_come_back_later_than_others_are_not_taken_out_as_soon_as_few_are_left():
    room = Room(SchedulingPolicy(brake_least=2, brake_share=0.0))
    for number in range(4):
        room.cluster.put(witnessed(room.node(number), DEAD), room.now_ms)
    room.step(0)
    for number in (0, 1):
        room.cluster.put(replace(room.node(number), evidence=()), room.now_ms)
    assert not {"Quarantine", "Alarm"} & set(kinds(room.step(MINUTE - 1)))
    assert kinds(room.step(MINUTE)) == ["Quarantine", "Quarantine", "Alarm"]


def test_two_checks_are_believed_even_while_the_brake_holds():
    room = Room(SchedulingPolicy(brake_least=2, brake_share=0.0))
    for number in range(4):
        room.cluster.put(witnessed(room.node(number), DEAD), room.now_ms)
    room.cluster.put(witnessed(room.node(0), NodeEvidence("trainer", 1000, "warning")), room.now_ms)
    actions = room.step(0)
    assert [action.node for action in actions if isinstance(action, Quarantine)] == [0]
    assert [action.on for action in actions if isinstance(action, Alarm)] == [True]


def test_idle_nodes_are_tested_the_least_recently_tested_first_and_give_way():
    room = Room(SchedulingPolicy(test_at_once=2))
    for number in range(8):
        room.cluster.put(replace(room.node(number), tested_ms=None if number == 5 else 1), room.now_ms)
    first = [action for action in room.step(25 * 3_600_000) if isinstance(action, RunTest)]
    assert [(action.node, action.idle) for action in first] == [(5, True), (0, True)]
    room.cluster.put(Job("work", Gang(8, 4), 0), room.now_ms)
    assert "Bind" in kinds(room.step())


def test_hours_to_look_at_every_node_is_a_number():
    assert hours_to_validate(7500, 0.1, 0, 15 * MINUTE) == 2.5
    assert hours_to_validate(7500, 0.1, 75, 15 * MINUTE) == 25
    assert hours_to_validate(7500, 0.0, 75, 15 * MINUTE) == float("inf")
    assert effects.tested(Node(0, "n", 1), 7).tested_ms == 7
