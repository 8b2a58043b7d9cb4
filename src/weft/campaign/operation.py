"""One campaign: a fleet over months of simulated time, run by the real decisions, from one seed.

The world knows what is broken; `cluster.decide` sees what checks and tests report, and says who runs where, who goes
and who comes back. Time jumps from event to event. A pass is made when something has changed, and whenever the
decisions have asked for one.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from weft.campaign.agenda import Agenda
from weft.campaign.arrivals import YEAR_MS, Arrivals, FleetFault
from weft.campaign.compression import WHOLE_UNITS, FoldedCluster
from weft.campaign.demand import Demand
from weft.campaign.fleet import COOLS, SLOWS, Fleet, ms
from weft.campaign.gang_care import GangCare
from weft.campaign.gpu_time import GpuTime
from weft.campaign.job_stream import JobStream
from weft.campaign.node_care import NodeCare
from weft.campaign.repair_shop import log_normal
from weft.campaign.site_meter import SiteMeter
from weft.campaign.training_run import PPM, GangPhase
from weft.cluster.from_site import power_of
from weft.cluster.invariants import InvariantSampler
from weft.cluster.records.actions import (
    Action,
    Alarm,
    Bind,
    Degrade,
    Move,
    Preempt,
    Quarantine,
    Replace,
    Resize,
    RunTest,
    Ticket,
)
from weft.cluster.records.snapshot import SchedulingPolicy
from weft.core.errors import LimitReachedError
from weft.core.seeds import Seed

Watch = Callable[[int, int], None]
"""Gets how much of how much time is over, in milliseconds."""
_THROTTLED = 0.7
"""Speed of a gang with GPUs whose cooling has failed; class only."""
_DRAW = {
    GangPhase.RUNNING: 1.0, GangPhase.DETECTING: 0.2, GangPhase.RESTARTING: 0.2, GangPhase.IN_STEP: 0.2,
    GangPhase.SCREENING: 0.8,
}  # fmt: skip
"""Share of the range from idle to full that a gang draws; waiting is close to idle (arXiv 2508.14318)."""
_PASS_MS = 1000
"""Least time between passes for which nothing but the time has come."""
_IDLE_PASSES = 10_000
TIMELINE_MARKS = 400
"""Moments of the timeline."""
_WHOLE_UNIT = ("rack", "shelf", "switch")
_SWAP_MIN = 20


class FleetOperation:
    """A fleet, its work, its faults and its operators; run once."""

    def __init__(
        self, fleet: Fleet, demand: Demand, policy: SchedulingPolicy, seed: Seed, *, whole_units: int = WHOLE_UNITS,
        script: Sequence[FleetFault] | None = None,
    ) -> None:  # fmt: skip
        """Lay everything out; a `script` takes the place of what is drawn."""
        self.fleet, self.demand, self.seed = fleet, demand, seed
        spec = fleet.spec
        self.end_ms = ms(spec.duration)
        self.arrivals = Arrivals(fleet, len(spec.gangs), self.end_ms, seed.branch("faults"))
        self.faults = self.arrivals.faults if script is None else list(script)
        self.agenda, self.ledger = Agenda(), GpuTime()
        self.cluster = FoldedCluster(fleet.records, demand.gangs, demand.teams, policy, whole_units)
        self.gangs = GangCare(fleet, demand.gangs, self.cluster, self.ledger, self.agenda)
        self.nodes = NodeCare(fleet, self.cluster, self.ledger, self.agenda, seed)
        self.jobs = JobStream(fleet, self.cluster, self.ledger, self.agenda)
        self.power = power_of(fleet.site)
        ramp = spec.power.ramp_per_second
        self.meter = SiteMeter(fleet.site.power, self.power, None if ramp is None else ramp // 1000)
        self.struck: Counter[str] = Counter()
        """Faults that struck, by class."""
        self.actions: Counter[str] = Counter()
        """What was decided, by kind."""
        self.passes = 0
        self.alarms = 0
        self.timeline: list[tuple[int, dict[str, int]]] = []
        self._known_draw = seed.stream("detection")
        self._trays = seed.stream("trays")
        self._silent = seed.stream("silent")
        self._next_fault = 0
        self._invariants = InvariantSampler()
        self._curtailed: dict[str, int] = defaultdict(int)
        self.gangs.bad_units = self.nodes.bad_units
        self.gangs.report_wrong = self._found_wrong
        self.nodes.on_relapse = self._strike_again

    # The loop.

    def run(self, watch: Watch | None = None) -> None:
        """Let the time pass."""
        agenda, state = self.agenda, self.cluster.state
        self._open()
        idle = 0
        while True:
            due_ms = state.due_ms()
            times = [each for each in (agenda.next_ms(), self._fault_ms()) if each is not None]
            if due_ms is not None:
                times.append(max(due_ms, agenda.now_ms + _PASS_MS))
            at_ms = min(times, default=self.end_ms)
            if at_ms >= self.end_ms:
                break
            idle = idle + 1 if at_ms == agenda.now_ms else 0
            if idle > _IDLE_PASSES:
                raise LimitReachedError(f"{idle:,} passes at {at_ms / 3.6e6:.2f} h changed nothing")
            agenda.now_ms = at_ms
            self._strike_due()
            agenda.happen()
            if agenda.dirty or (due_ms is not None and due_ms <= at_ms):
                self._pass()
            self._account()
            if watch is not None and self.passes % 256 == 0:
                watch(at_ms, self.end_ms)
        self._close()

    def _open(self) -> None:
        self.ledger.shift("standby", self.fleet.units * (self.fleet.whole_gpus - self.fleet.unit_gpus), 0)
        self.gangs.open()
        self.gangs.set_network_tax(self.arrivals.nic_flaps_per_hour, self.arrivals.core_flaps_per_hour)
        self.jobs.submit_services()
        self._pass()
        self.jobs.submit_stream(self.end_ms, self.seed)
        self.jobs.submit_trace(self.demand.trace, self.end_ms)
        spec = self.fleet.spec
        if spec.maintenance.every is not None:
            for name in self.gangs.runs:
                self.agenda.after(ms(spec.maintenance.every), self._maintain, name, 0)
        response, draw = spec.power.demand_response, self.seed.stream("demand response")
        for _ in range(int(draw.poisson(response.per_year * self.end_ms / YEAR_MS))):
            self.agenda.at(int(draw.random() * self.end_ms), self._curtail)
        self.agenda.at(0, self._mark_time)

    def _mark_time(self) -> None:
        """Write down how it stands: what the timeline shows."""
        shown = {bucket: count for bucket, count in self.ledger.count.items() if count}
        for run in self.gangs.runs.values():
            shown[str(run.phase)] = shown.get(str(run.phase), 0) + run.gpus
        shown["jobs"] = self.jobs.gpus
        shown["watts"] = self.meter.watts
        self.timeline.append((self.agenda.now_ms, shown))
        self.agenda.after(max(1, self.end_ms // TIMELINE_MARKS), self._mark_time)

    def _close(self) -> None:
        end_ms = self.agenda.now_ms = self.end_ms
        self.gangs.close(end_ms)
        self.jobs.close(end_ms)
        self.nodes.close(end_ms)
        self.ledger.close(end_ms)
        found, all_of_it = sum(self.ledger.total.values()), self.fleet.gpus * end_ms
        assert found == all_of_it, f"{found} GPU-ms are accounted for, of {all_of_it}"

    # Faults.

    def _fault_ms(self) -> int | None:
        return self.faults[self._next_fault].at_ms if self._next_fault < len(self.faults) else None

    def _strike_due(self) -> None:
        while self._next_fault < len(self.faults) and self.faults[self._next_fault].at_ms <= self.agenda.now_ms:
            fault = self.faults[self._next_fault]
            self._next_fault += 1
            self.agenda.done += 1
            self._strike(fault)

    def _strike(self, fault: FleetFault) -> None:
        known = self.fleet.classes.get(fault.name)
        if fault.name == "software":
            self._software(fault)
        elif fault.name == "silent":
            self._corrupt(fault.group)
        elif fault.name == "alarm":
            self.struck["alarm"] += 1
            self.nodes.accuse(fault.group, "alarm", "silent")
        elif known is not None and known.effect == SLOWS:
            self._slow(fault)
        elif known is not None and known.effect == COOLS:
            self._throttle(fault)
        elif known is not None and known.groups != self.fleet.units:
            self.struck[fault.name] += 1
            members = (self.fleet.groups_of(fault.name) == fault.group).nonzero()[0].tolist()
            for name in sorted({self.cluster.holder_of(unit) for unit in members} & self.gangs.runs.keys()):
                self.gangs.stop(name, fault.name)
            for unit in members:
                self._hit(unit, fault, counted=True)
        elif not (fault.excess and fault.group in self.nodes.cured):
            self._hit(fault.group, fault)

    def _hit(self, unit: int, fault: FleetFault, *, counted: bool = False) -> None:
        """Break something in a unit that is in service."""
        if not self.nodes.in_service(unit):
            return
        if not counted:
            self.struck[fault.name] += 1
        holder = self.cluster.holder_of(unit)
        one_tray = self.fleet.trays > 1 and fault.name not in _WHOLE_UNIT
        standing_by = one_tray and self._trays.random() * self.fleet.trays >= self.fleet.needed
        if holder in self.gangs.runs and not standing_by and not counted:
            self.gangs.stop(holder, fault.name)
        after_ms = self._detection_ms(fault.name)
        if one_tray and self.nodes.tray_breaks(unit, fault):
            if not standing_by and holder in self.gangs.runs:
                # Another tray of the same domain takes its place: the domain stays in service.
                self.agenda.after(after_ms, self._recovered_in_place, holder, self.gangs.runs[holder].turn)
            return
        self.nodes.sick.setdefault(unit, fault)
        self.agenda.after(after_ms, self._known, unit, fault)

    def _recovered_in_place(self, name: str, turn: int) -> None:
        if self.gangs.runs[name].turn == turn:
            self.gangs.recover(name, "hardware", lost=1, replaced=True)

    def _detection_ms(self, name: str) -> int:
        known, site = self.fleet.classes.get(name), self.fleet.site
        own = None if known is None else known.spec.detection
        mean_ms = ms(site.failures.detection if own is None else own)
        return round(log_normal(self._known_draw, mean_ms, self.fleet.spec.detection.spread))

    def _known(self, unit: int, fault: FleetFault) -> None:
        if self.nodes.sick.get(unit) is not None:
            known = self.fleet.classes.get(fault.name)
            gpu = 0 if self.fleet.spec.ladder.unit == "gpu" and fault.name in ("gpu", "hbm") else None
            self.nodes.accuse(unit, fault.name, known.check if known else "silent", gpu=gpu)

    def _strike_again(self, unit: int) -> None:
        fault = self.nodes.sick.get(unit)
        if fault is not None:
            self._hit(unit, fault)

    def _software(self, fault: FleetFault) -> None:
        name = list(self.gangs.runs)[fault.group]
        run = self.gangs.runs[name]
        if run.phase is GangPhase.WAITING:
            return
        self.struck["software"] += 1
        self.gangs.stop(name, "software")
        self.agenda.after(self._detection_ms("software"), self.gangs.known_software, name, run.turn)

    def _corrupt(self, unit: int) -> None:
        """Let a unit begin to compute wrongly."""
        if not self.nodes.in_service(unit) or unit in self.nodes.bad_units:
            return
        self.struck["silent"] += 1
        spec, site = self.fleet.spec.silent, self.fleet.site
        self.nodes.bad_units[unit] = bool(self._silent.random() < spec.elusive)
        holder = self.cluster.holder_of(unit)
        if holder in self.gangs.runs:
            self.gangs.runs[holder].poison(unit, self.agenda.now_ms)
        mean_ms = ms(site.failures.silent_detection if spec.production is None else spec.production)
        if mean_ms:
            self.agenda.after(round(self._silent.exponential(mean_ms)), self._found_wrong, unit)

    def _found_wrong(self, unit: int) -> None:
        """Let checks inside a training, or a screening, have found a unit that computes wrongly."""
        holder = self.cluster.holder_of(unit)
        if unit not in self.nodes.bad_units or holder not in self.gangs.runs or not self.nodes.in_service(unit):
            return
        self.gangs.stop(holder, "silent")
        self.gangs.found_wrong(holder, unit)
        self.nodes.accuse(unit, "silent", "trainer")

    def _slow(self, fault: FleetFault) -> None:
        """Let a plane of some NICs be down until it is repaired: work goes on with less bandwidth."""
        self.struck[fault.name] += 1
        units = (self.fleet.groups_of(fault.name) == fault.group).nonzero()[0].tolist()
        names = sorted({self.cluster.holder_of(unit) for unit in units} & self.gangs.runs.keys())
        fatal = self.fleet.site.failures.optic_stops
        if fault.name == "optic" and fatal and self._trays.random() < fatal:
            self.struck[fault.name] -= 1
            self._hit(fault.group, fault)
            return
        done_ms = self._field_repair(fault.name)
        self.gangs.plane_down(names, 1)
        self.agenda.at(done_ms, self.gangs.plane_down, names, -1)

    def _throttle(self, fault: FleetFault) -> None:
        self.struck[fault.name] += 1
        units = (self.fleet.groups_of(fault.name) == fault.group).nonzero()[0].tolist()
        for name in sorted({self.cluster.holder_of(unit) for unit in units} & self.gangs.runs.keys()):
            self.gangs.set_speed(name, "cooling", _THROTTLED)
            self.agenda.at(self._field_repair(fault.name), self.gangs.set_speed, name, "cooling", 1.0)

    def _field_repair(self, name: str) -> int:
        """Have something repaired without taking a node out; returns when that is done."""
        known = self.fleet.classes[name].spec.repair
        turn_ms = ms(self.fleet.site.failures.repair if known is None else known)
        self.nodes.shop.restock(self.agenda.now_ms)
        return self.nodes.shop.take(self.agenda.now_ms, _SWAP_MIN, 0, turn_ms)[1]

    # Operators.

    def _maintain(self, name: str, first: int) -> None:
        """Stop a gang for planned maintenance, and take the next nodes of it out."""
        spec = self.fleet.spec.maintenance
        assert spec.every is not None, "nobody maintains what is not to be maintained"
        if not self.gangs.pause(name, GangPhase.PLANNED, ms(spec.pause), restarts=True):
            self.agenda.after(600_000, self._maintain, name, first)
            return
        units = self.gangs.units_of(name)
        count = min(spec.nodes, len(units))
        for unit in sorted(units[(first + at) % len(units)] for at in range(count)):
            self.nodes.planned(unit, ms(spec.takes))
        self.agenda.after(ms(spec.every), self._maintain, name, first + count)

    def _curtail(self) -> None:
        """Draw less for the grid: a power cap first, then experiments stand, then the smallest gang."""
        spec = self.fleet.spec.power.demand_response
        wanted_w = spec.depth * self.meter.watts
        rise_w = self.power.gpu_rise_w
        draws = {name: run.gpus * rise_w for name, run in self.gangs.runs.items() if run.phase is GangPhase.RUNNING}
        capped = min(spec.cap, wanted_w / sum(draws.values())) if draws else 0.0
        lasts_ms = ms(spec.lasts)
        for name in draws:
            self.gangs.set_speed(name, "power cap", (self.fleet.spec.power.cap * (1 - capped)) ** (1 / 3))
            self._curtailed[name] = round(PPM * capped)
            self.agenda.after(lasts_ms, self._uncurtail, name)
        wanted_w -= capped * sum(draws.values())
        self.actions["demand response: power cap"] += 1
        if wanted_w > 1 and self.jobs.gpus:
            self.jobs.stretch(lasts_ms)
            wanted_w -= self.jobs.gpus * rise_w
            self.actions["demand response: experiments stand"] += 1
        if wanted_w > 1 and draws:
            smallest = min(draws, key=lambda name: (draws[name], name))
            self.gangs.pause(smallest, GangPhase.CURTAILED, lasts_ms, restarts=True)
            self.actions["demand response: a gang stands"] += 1

    def _uncurtail(self, name: str) -> None:
        self._curtailed[name] = 0
        self.gangs.set_speed(name, "power cap", self.fleet.spec.power.cap ** (1 / 3))

    # Decisions.

    def _pass(self) -> None:
        self.agenda.dirty = False
        actions, _ = self.cluster.state.decided(self.agenda.now_ms)
        self.passes += 1
        self._invariants.demand(self.cluster.state)
        for action in actions:
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:  # noqa: C901, PLR0912 - one case for each action
        self.actions[type(action).__name__.lower()] += 1
        match action:
            case Bind():
                self._hold(action.job, action.placement.nodes)
                (self.gangs if action.job in self.gangs.runs else self.jobs).bound(action)
            case Replace():
                self._hold("", action.lost)
                self._hold(action.job, action.spares)
                self.gangs.replaced(action, self._cause())
            case Resize():
                self._release(action.job)
                self._hold(action.job, action.placement.nodes)
                self.gangs.resized(action, self._cause())
            case Preempt():
                if action.stage == "ask" and action.job in self.gangs.runs:
                    # It writes a checkpoint before it leaves.
                    self.gangs.runs[action.job].commit(self.agenda.now_ms)
                self._release(action.job)
                if action.job in self.gangs.runs:
                    self.gangs.evicted(action, self._cause())
                else:
                    self.jobs.evicted(action)
                self.agenda.dirty = True
            case Quarantine():
                self.nodes.quarantined(action)
                # Once its job has left it, the next pass begins to find out what is wrong.
                self.agenda.dirty = True
            case Degrade():
                self.nodes.degraded(action)
            case Move():
                self.nodes.moved(action)
            case RunTest():
                self.nodes.tested(action)
            case Ticket():
                self.nodes.ticket(action)
            case Alarm(kind="brake", on=True):
                self.alarms += 1
                self.agenda.after(ms(self.fleet.spec.repair.answer), self.nodes.answer_alarm)
            case _:
                pass

    def _cause(self) -> str:
        """Return why the unit is out that was taken out last: for it the gangs of this pass are mended."""
        return next(reversed(self.nodes.out.values())).cause if self.nodes.out else "priority"

    def _hold(self, job: str, seats: Sequence[int]) -> None:
        for seat in seats:
            self.cluster.holder[seat] = job

    def _release(self, job: str) -> None:
        self.cluster.holder[:] = ["" if name == job else name for name in self.cluster.holder]

    def _account(self) -> None:
        """Count who is free, and what the site draws."""
        now_ms, fleet, ledger = self.agenda.now_ms, self.fleet, self.ledger
        gang_gpus = sum(run.gpus for run in self.gangs.runs.values())
        free = fleet.gpus - ledger.out() - ledger.count["standby"] - gang_gpus - self.jobs.gpus
        spare = min(free, self.demand.spares * fleet.unit_gpus)
        if spare != ledger.count["spare"]:
            ledger.set("spare", spare, now_ms)
        if free - spare != ledger.count["idle"]:
            ledger.set("idle", free - spare, now_ms)
        rise_w, cap = self.power.gpu_rise_w, fleet.spec.power.cap
        working = float(self.jobs.gpus)
        for name, run in self.gangs.runs.items():
            share = _DRAW.get(run.phase, 0.0) * self.gangs.specs[name].draw
            if run.phase is GangPhase.RUNNING:
                share *= cap * (1 - self._curtailed[name] / PPM)
            working += run.gpus * share
        watts = fleet.units * fleet.trays * self.power.node_idle_w + round(working * rise_w)
        if watts != self.meter.watts:
            self.meter.set(watts, now_ms)
