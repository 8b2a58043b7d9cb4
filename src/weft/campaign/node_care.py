"""What is wrong with each unit, and how it comes back: evidence to the decisions, tests, tickets and repairs from them.

The truth about every fault is here; decisions see what checks and tests report of it. Units that are out of service
are counted by where they are: tested, waiting for a technician, in repair, validated.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from weft.campaign.agenda import Agenda
from weft.campaign.arrivals import FleetFault
from weft.campaign.compression import FoldedCluster
from weft.campaign.fleet import Fleet, ms
from weft.campaign.gpu_time import GpuTime
from weft.campaign.repair_shop import RepairShop
from weft.cluster.health.quarantine import repaired, report
from weft.cluster.records.actions import Degrade, Move, Quarantine, RunTest, Ticket
from weft.cluster.records.effects import witnessed
from weft.cluster.records.node import Node, NodeEvidence, NodeState
from weft.cluster.scheduling.pool import LOST
from weft.core.seeds import Seed

_BUCKET = {
    NodeState.TESTING: "diagnosis", NodeState.PREFLIGHT: "validation", NodeState.VALIDATING: "validation",
    NodeState.REPAIRING: "repair queue", NodeState.RETIRED: "given up", NodeState.QUARANTINED: "diagnosis",
}  # fmt: skip
_IDLE_TEST_MS = 900_000
_LOOK_MS = 15_000
"""How long reports of nodes that the brake keeps are gathered: well below the pause that makes them forgotten."""


@dataclass(slots=True)
class OutOfService:
    """A unit that is out, and why."""

    cause: str
    since_ms: int
    bucket: str
    planned_ms: int = 0
    """How long planned work on it takes; 0 where it is out for a fault."""


class NodeCare:
    """Every unit's health; one owner."""

    def __init__(self, fleet: Fleet, cluster: FoldedCluster, ledger: GpuTime, agenda: Agenda, seed: Seed) -> None:
        """Begin with everything well."""
        self.fleet, self.cluster, self.ledger, self.agenda = fleet, cluster, ledger, agenda
        self._draw: np.random.Generator = seed.stream("tests")
        self.shop = RepairShop(fleet.spec.repair, seed.stream("repairs"))
        self.sick: dict[int, FleetFault] = {}
        """Faults that are still there, by unit."""
        self.bad_units: dict[int, bool] = {}
        """Units that compute wrongly, and whether tests cannot find it; shared with the gangs."""
        self.out: dict[int, OutOfService] = {}
        self.broken_trays: Counter[int] = Counter()
        """Trays of each unit in service that are broken."""
        self._bad_gpus: Counter[int] = Counter()
        """GPUs of each unit in service that are not used."""
        self._accused: set[int] = set()
        self._look_is_due = False
        self.out_most = 0
        """Most units that were out at the same time."""
        self.out_ms: Counter[int] = Counter()
        """How long each number of units was out at the same time."""
        self._out_since_ms = 0
        self.out_gpu_ms: Counter[str] = Counter()
        """GPU-time out of service, by class of fault."""
        self.events: Counter[str] = Counter()
        """What happened to nodes, by name."""
        self.on_relapse: Callable[[int], None] = self._unheard
        """Hears of a unit whose fault strikes again; the campaign sets it."""
        self.cured: set[int] = set()
        """Lemons whose tray was swapped."""

    # From faults to evidence.

    def in_service(self, unit: int) -> bool:
        """Return whether a unit takes work."""
        return unit not in self.out

    def accuse(self, unit: int, name: str, check: str, *, gpu: int | None = None) -> None:
        """Report a unit to the decisions, if it is still in service."""
        if not self.in_service(unit):
            return
        seat = self.cluster.seat(unit, self.sick.keys() | self.bad_units.keys())
        seen = NodeEvidence(check, self.agenda.now_ms, "fatal", name, gpu=gpu)
        node = self.cluster.state.pool.nodes[seat]
        self.cluster.state.put(witnessed(replace(node, evidence=()), seen), self.agenda.now_ms)
        self.agenda.dirty = True
        if unit not in self._accused:
            # Where the brake holds, the check goes on reporting.
            self._accused.add(unit)
            self.agenda.after(self.cluster.state.policy.brake_rest_ms + 1, self._again, unit, name, check)

    def _again(self, unit: int, name: str, check: str) -> None:
        self._accused.discard(unit)
        if self.in_service(unit) and not self.cluster.is_folded(unit) and self.cluster.node_of(unit).evidence:
            dirty = self.agenda.dirty
            self.accuse(unit, name, check)
            if "brake" in self.cluster.state.alarms:
                # Thousands that look sick say so again each at its moment: they are looked at together.
                self.agenda.dirty = dirty
                self._look_soon()

    def _look_soon(self) -> None:
        if not self._look_is_due:
            self._look_is_due = True
            self.agenda.after(_LOOK_MS, self._look)

    def _look(self) -> None:
        self._look_is_due = False
        self.agenda.dirty = True

    def answer_alarm(self) -> None:
        """Take out by hand what the brake held back, if it still does: a person was called and has looked."""
        if "brake" not in self.cluster.state.alarms:
            return
        now_ms = self.agenda.now_ms
        for unit in sorted(self._accused):
            fault = self.sick.get(unit)
            if self.in_service(unit) and (fault is not None or unit in self.bad_units):
                self.events["taken out by hand"] += 1
                self.taken_out(unit, OutOfService(fault.name if fault else "silent", now_ms, "diagnosis"))
        self.agenda.after(ms(self.fleet.spec.repair.answer), self.answer_alarm)

    def tray_breaks(self, unit: int, fault: FleetFault) -> bool:
        """Let a tray of a domain break; returns whether the domain still has as many as a gang needs."""
        fleet = self.fleet
        if fleet.trays == fleet.needed or self.broken_trays[unit] >= fleet.trays - fleet.needed:
            return False
        self.broken_trays[unit] += 1
        self._count_trays(-1)
        put_off_ms = ms(fleet.spec.ladder.defer)
        self.agenda.after(put_off_ms, self._mend_tray, unit, fault.name)
        return True

    def _mend_tray(self, unit: int, name: str) -> None:
        """Swap a broken tray of a domain that goes on working."""
        self.shop.restock(self.agenda.now_ms)
        _, done_ms = self.shop.take(self.agenda.now_ms, 60, 1, self._turnaround_ms(name))
        self.agenda.at(done_ms, self._tray_back, unit)

    def _tray_back(self, unit: int) -> None:
        if self.in_service(unit) and self.broken_trays[unit]:
            self.broken_trays[unit] -= 1
            self._count_trays(1)

    def _count_trays(self, change: int) -> None:
        gpus = change * self.fleet.node_gpus
        self.ledger.shift("standby", gpus, self.agenda.now_ms)
        self.ledger.shift("deferred", -gpus, self.agenda.now_ms)

    def _turnaround_ms(self, name: str) -> int:
        known = self.fleet.classes.get(name)
        own = None if known is None else known.spec.repair
        return ms(self.fleet.site.failures.repair if own is None else own)

    # What was decided.

    def quarantined(self, action: Quarantine) -> None:
        """Take a unit out of service."""
        unit = self.cluster.unit_of[action.node]
        fault = self.sick.get(unit)
        cause = fault.name if fault else "silent" if unit in self.bad_units else "alarm"
        self._take_out(unit, OutOfService(cause, self.agenda.now_ms, "diagnosis"))

    def planned(self, unit: int, takes_ms: int) -> None:
        """Take a unit out for planned work."""
        self.taken_out(unit, OutOfService("planned", self.agenda.now_ms, "planned", takes_ms))

    def taken_out(self, unit: int, out: OutOfService) -> None:
        """Take a unit out as an operator does: no brake counts it."""
        if not self.in_service(unit):
            return
        seat = self.cluster.seat(unit, self.sick.keys() | self.bad_units.keys())
        node = self.cluster.state.pool.nodes[seat]
        self.cluster.state.put(replace(node, state=NodeState.QUARANTINED, since_ms=self.agenda.now_ms), 0)
        self._take_out(unit, out)
        self.agenda.dirty = True

    def _take_out(self, unit: int, out: OutOfService) -> None:
        now_ms, fleet = self.agenda.now_ms, self.fleet
        if unit in self.out:
            return
        broken = self.broken_trays.pop(unit, 0)
        self.ledger.shift("deferred", -broken * fleet.node_gpus, now_ms)
        self.ledger.shift("deferred", -self._bad_gpus.pop(unit, 0), now_ms)
        self.ledger.shift("standby", -(fleet.trays - fleet.needed - broken) * fleet.node_gpus, now_ms)
        self._count_out()
        self.out[unit] = out
        self.out_most = max(self.out_most, len(self.out))
        self.events[f"out: {out.cause}"] += 1
        self.ledger.shift(out.bucket, fleet.whole_gpus, now_ms)

    def moved(self, action: Move) -> None:
        """Follow a unit through its life."""
        unit = self.cluster.unit_of[action.node]
        out = self.out.get(unit)
        if out is None:
            return
        if action.state is NodeState.READY:
            self._back(unit, out)
            return
        if action.state is NodeState.REPAIRING:
            # Nothing is to be decided about it until something is reported; `put` has it looked at again.
            self.cluster.state.pool.watched.discard(action.node)
        if action.state is NodeState.RETIRED:
            self.events["retired"] += 1
            self.agenda.after(ms(self.fleet.spec.repair.replace), self._replacement, unit)
        if not out.planned_ms:
            self._bucket(out, _BUCKET.get(action.state, "diagnosis"))

    def _count_out(self) -> None:
        """Note how long as many units were out as now."""
        self.out_ms[len(self.out)] += self.agenda.now_ms - self._out_since_ms
        self._out_since_ms = self.agenda.now_ms

    def _bucket(self, out: OutOfService, bucket: str) -> None:
        if bucket != out.bucket:
            self.ledger.shift(out.bucket, -self.fleet.whole_gpus, self.agenda.now_ms)
            self.ledger.shift(bucket, self.fleet.whole_gpus, self.agenda.now_ms)
            out.bucket = bucket

    def _back(self, unit: int, out: OutOfService) -> None:
        now_ms, fleet = self.agenda.now_ms, self.fleet
        self._count_out()
        del self.out[unit]
        node = self.cluster.node_of(unit)
        if node.bad_gpus:
            # Reset or repaired: whatever made them bad is gone, or will show again.
            self.cluster.state.put(replace(node, bad_gpus=()), now_ms)
            self.agenda.dirty = True
        self.ledger.shift(out.bucket, -fleet.whole_gpus, now_ms)
        self.ledger.shift("standby", (fleet.trays - fleet.needed) * fleet.node_gpus, now_ms)
        self.out_gpu_ms[out.cause] += (now_ms - out.since_ms) * fleet.whole_gpus
        fault = self.sick.get(unit)
        if fault is not None:
            # It came back with a fault that no test found; the fault strikes again.
            wait_ms = round(self._draw.exponential(ms(fleet.spec.repair.relapse)))
            self.agenda.after(wait_ms, self.on_relapse, unit)

    def _unheard(self, unit: int) -> None:
        raise AssertionError(f"nobody hears of unit {unit}")

    def tested(self, action: RunTest) -> None:
        """Begin a test, and have it report."""
        unit = self.cluster.unit_of[action.node]
        repair, out = self.fleet.spec.repair, self.out.get(unit)
        takes_ms = ms(repair.reset) if action.program == "diagnose" else ms(repair.retest)
        if action.idle:
            takes_ms = _IDLE_TEST_MS
        elif out is not None and out.planned_ms and action.program == "diagnose":
            takes_ms = out.planned_ms
        self.agenda.after(takes_ms, self._report, unit, action.program, out is None)

    def _report(self, unit: int, program: str, was_in_service: bool) -> None:
        if was_in_service != self.in_service(unit):
            return
        passed, check = self._passes(unit, program)
        # A folded unit is well and free of tests: only one that is seen can have been tested.
        if self.cluster.is_folded(unit):
            return
        node = self.cluster.node_of(unit)
        now_ms = self.agenda.now_ms
        if was_in_service:
            if passed:
                self.cluster.state.put(replace(node, tested_ms=now_ms, idle_test_ms=None), now_ms)
            else:
                self.events["found by idle tests"] += 1
                self.accuse(unit, "silent", "matmul")
            return
        self.cluster.state.put(witnessed(node, report(program, now_ms, passed=passed, repair=check)), now_ms)
        self.agenda.dirty = True

    def _passes(self, unit: int, program: str) -> tuple[bool, str]:
        """Return whether a test passes, and the repair that it names where it does not."""
        fault = self.sick.get(unit)
        if fault is not None and fault.soft and program == "diagnose":
            del self.sick[unit]
            self.events["cured by reset"] += 1
            fault = None
        if fault is not None and not fault.elusive:
            known = self.fleet.classes.get(fault.name)
            return False, known.check if known else "silent"
        if unit in self.bad_units and not self.bad_units[unit]:
            return False, "matmul"
        return True, ""

    def degraded(self, action: Degrade) -> None:
        """Go on without a GPU; its repair is put off."""
        unit = self.cluster.unit_of[action.node]
        # A GPU that is bad already may be reported again: it is one that does not work.
        bad = len(self.cluster.node_of(unit).bad_gpus)
        self.ledger.shift("deferred", bad - self._bad_gpus[unit], self.agenda.now_ms)
        self._bad_gpus[unit] = bad
        self.events["degraded"] += 1
        self.agenda.after(max(1, ms(self.fleet.spec.ladder.defer)), self._mend_gpu, unit)

    def _mend_gpu(self, unit: int) -> None:
        """Take a degraded node out for its repair once nobody uses it, or a day later."""
        if not self.in_service(unit):
            return
        if self.cluster.holder_of(unit):
            self.agenda.after(86_400_000, self._mend_gpu, unit)
            return
        fault = self.sick.get(unit)
        self.accuse(unit, fault.name if fault else "gpu", "xid")

    def ticket(self, action: Ticket) -> None:
        """Have a unit repaired."""
        unit = self.cluster.unit_of[action.node]
        out = self.out[unit]
        now_ms = self.agenda.now_ms
        self.shop.restock(now_ms)
        parts = 1 if action.parts else 0
        begin_ms, done_ms = self.shop.take(now_ms, action.technician_min, parts, self._turnaround_ms(out.cause))
        if begin_ms > now_ms:
            self.agenda.at(begin_ms, self._begun, unit, out)
        else:
            self._bucket(out, "repair")
        self.agenda.at(done_ms, self._repaired, unit, out, "lemon" in action.finding)

    def _begun(self, unit: int, out: OutOfService) -> None:
        if self.out.get(unit) is out:
            self._bucket(out, "repair")

    def _repaired(self, unit: int, out: OutOfService, whole_tray: bool) -> None:
        if self.out.get(unit) is not out:
            return
        if whole_tray:
            self.cured.add(unit)
        if self._draw.random() >= self.fleet.spec.repair.failed:
            self.sick.pop(unit, None)
            self.bad_units.pop(unit, None)
        else:
            self.events["failed repairs"] += 1
        now_ms = self.agenda.now_ms
        node = replace(self.cluster.node_of(unit), bad_gpus=())
        self.cluster.state.put(witnessed(node, repaired(now_ms)), now_ms)
        self.agenda.dirty = True

    def _replacement(self, unit: int) -> None:
        """Put a new node where one was given up; it is tested before it takes work."""
        old = self.cluster.node_of(unit)
        self.sick.pop(unit, None)
        self.bad_units.pop(unit, None)
        self.cured.add(unit)
        now_ms = self.agenda.now_ms
        fresh = Node(old.number, old.name, old.gpus, old.place, NodeState.JOINING, now_ms)
        self.cluster.state.put(fresh, now_ms)
        self.agenda.dirty = True

    def close(self, end_ms: int) -> None:
        """Account for what is still out at the end."""
        self._count_out()
        for out in self.out.values():
            self.out_gpu_ms[out.cause] += (end_ms - out.since_ms) * self.fleet.whole_gpus


assert set(_BUCKET) >= LOST - {NodeState.PREFLIGHT}, "every state out of service has a bucket"
