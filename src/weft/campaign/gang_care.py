"""The gangs of a campaign: how they stop, recover, wait, pause and are tested, as the decisions say.

Which nodes a gang has is decided by `cluster.decide`; whether its ranks keep their state by the trainer's recovery
machine. Here is only how long each takes and what it costs.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from weft.campaign.agenda import Agenda
from weft.campaign.compression import FoldedCluster, StandingGang
from weft.campaign.fleet import HOUR_MS, Fleet, ms
from weft.campaign.gpu_time import GpuTime
from weft.campaign.rank_recovery import Loss, keeps_survivors
from weft.campaign.training_run import PPM, GangPhase, TrainingRun
from weft.cluster.records.actions import Bind, Preempt, Replace, Resize
from weft.cluster.records.effects import stopped
from weft.cluster.records.job import Gang, Job, JobState
from weft.planning.run.goodput import DAY_S, HOUR_S, checkpoint_s, daly_interval_s
from weft.specs.campaign import GangSpec

_STANDS = (GangPhase.DETECTING, GangPhase.IN_STEP)
_PAUSED = (GangPhase.PLANNED, GangPhase.SCREENING, GangPhase.CURTAILED)


def write_ms(fleet: Fleet, gang: GangSpec, gpus: int) -> int:
    """Return how long a checkpoint stops a gang."""
    if gang.checkpoint.write is not None:
        return ms(gang.checkpoint.write)
    site = fleet.site
    return round(1000 * checkpoint_s(site, gang.checkpoint.state, gpus * site.fabric.nic_rate / 8))


def restart_ms(fleet: Fleet, gang: GangSpec, gpus: int) -> int:
    """Return how long a gang takes from knowing of a failure to its first step."""
    if gang.restart is not None:
        return ms(gang.restart)
    rates, site = fleet.site.failures, fleet.site
    read_ms = 0 if site.storage is None else round(1000 * checkpoint_s(site, gang.checkpoint.state, 1.0))
    return ms(rates.restart) + ms(rates.cold_start) * gpus // 1000 + read_ms


def interval_ms(fleet: Fleet, gang: GangSpec, gpus: int) -> int:
    """Return how long a gang trains between two checkpoints: as written, or by Daly's rule."""
    if gang.checkpoint.interval is not None:
        return max(1, ms(gang.checkpoint.interval))
    spec = fleet.spec.software.rate
    software = fleet.site.failures.software if spec is None else spec
    mttf_s = HOUR_S * fleet.gang_mttf_h(gpus, software_fit=software)
    best_s = DAY_S if math.isinf(mttf_s) else daly_interval_s(mttf_s, write_ms(fleet, gang, gpus) / 1000)
    return max(ms(gang.step), round(1000 * best_s))


class GangCare:
    """Every gang and what is done with it; one owner."""

    def __init__(
        self, fleet: Fleet, standing: Sequence[StandingGang], cluster: FoldedCluster, ledger: GpuTime, agenda: Agenda
    ) -> None:  # fmt: skip
        """Make the gangs; none has nodes yet."""
        self.fleet, self.cluster, self.agenda, self.ledger = fleet, cluster, agenda, ledger
        self.specs = {gang.name: gang for gang in fleet.spec.gangs}
        self.standing = {each.name: each for each in standing}
        self.runs: dict[str, TrainingRun] = {}
        self.bad_units: dict[int, bool] = {}
        """Units that compute wrongly without anybody's knowing, and whether tests cannot find it."""
        self.blast_gpus: Counter[str] = Counter()
        """GPUs that stood when each class of fault stopped a gang, summed over its faults."""
        self._restart_after: set[str] = set()
        self._flapping: dict[str, float] = dict.fromkeys(self.standing, 1.0)
        self._planes_down: dict[str, int] = dict.fromkeys(self.standing, 0)
        self.report_wrong: Callable[[int], None] = self.bad_units.__delitem__
        """Hears of a unit that is found to compute wrongly; the campaign sets it."""
        self._losses: dict[str, int] = {}
        self._found: dict[str, list[int]] = {}
        for each in standing:
            gpus = each.units * fleet.unit_gpus
            gang = self.specs[each.name]
            run = TrainingRun(each.name, ledger, interval_ms(fleet, gang, gpus), write_ms(fleet, gang, gpus), gpus)
            run.gpus = len(cluster.folded[each.name]) * fleet.unit_gpus
            run.speed_ppm["power cap"] = round(PPM * fleet.spec.power.cap ** (1 / 3))
            self.runs[each.name] = run

    def open(self) -> None:
        """Submit the gangs, and begin what comes again and again."""
        for each in self.standing.values():
            folded = len(self.cluster.folded[each.name])
            gang = Gang(each.units - folded, self.fleet.unit_gpus, each.fewest - folded, each.step)
            spec = self.specs[each.name]
            job = Job(
                each.name, gang, 0, "training", each.team, spec.priority, takes_degraded=False,
                checkpoint_every_ms=self.runs[each.name].interval_ms + self.runs[each.name].write_ms,
            )  # fmt: skip
            self.cluster.state.put(job, 0)
            if self.fleet.spec.screening.mode in ("scheduled", "replay"):
                self.agenda.after(ms(self.fleet.spec.screening.every), self._screen, each.name)

    def set_network_tax(self, nic_per_hour: float, core_per_hour: float) -> None:
        """Take from every gang's speed what flapping links take on average."""
        network, planes = self.fleet.spec.network, self.fleet.planes
        for name, run in self.runs.items():
            share = run.wanted_gpus / self.fleet.gpus
            down = -np.expm1(-nic_per_hour * share * ms(network.flap) / HOUR_MS)
            slower = 1 / (1 + down * network.exposed / (planes - 1)) if planes > 1 else 1 - down
            stalled = -np.expm1(-core_per_hour * share * network.recovery / 1e12 / 3600)
            self.set_speed(name, "network", float(slower * (1 - stalled)))
            self._flapping[name] = float(slower * (1 - stalled))

    def set_speed(self, name: str, cause: str, share: float) -> None:
        """Let a cause leave a share of a gang's speed from now on."""
        self.runs[name].slow(cause, round(PPM * share), self.agenda.now_ms)

    def plane_down(self, names: Sequence[str], change: int) -> None:
        """Let units of some gangs lose a plane, or have it back: the gang is as slow as its slowest NIC."""
        network, planes = self.fleet.spec.network, self.fleet.planes
        for name in names:
            self._planes_down[name] += change
            slower = 1 / (1 + network.exposed / (planes - 1)) if self._planes_down[name] else 1.0
            self.set_speed(name, "network", self._flapping[name] * slower)

    # Failures.

    def stop(self, name: str, cause: str) -> None:
        """Let a gang stand: something in it has failed, and nobody knows yet."""
        run = self.runs[name]
        if run.phase is GangPhase.WAITING:
            return
        if run.phase in _STANDS:
            self._losses[name] = self._losses.get(name, 1) + 1
        run.stops[cause] = run.stops.get(cause, 0) + 1
        self.blast_gpus[cause] += run.gpus
        self._restart_after.discard(name)
        run.go(GangPhase.DETECTING, self.agenda.now_ms, cause)

    def known_software(self, name: str, turn: int) -> None:
        """Start a gang again that its own software has stopped."""
        if self.runs[name].turn == turn:
            self.recover(name, "software", lost=1, replaced=True)

    def found_wrong(self, name: str, unit: int) -> None:
        """Note that a unit of a gang is known to compute wrongly: its recovery goes back to before that."""
        self._found.setdefault(name, []).append(unit)

    def recover(self, name: str, loss: Loss, *, lost: int, replaced: bool) -> None:
        """Let a gang go on, as the recovery machine says."""
        run, spec, now_ms = self.runs[name], self.specs[name], self.agenda.now_ms
        lost = max(lost, self._losses.pop(name, 1))
        wrong = self._found.pop(name, [])
        for unit in wrong:
            self._go_back(run, unit)
        if run.phase in _PAUSED and not wrong:
            # Its nodes were changed while it stands; it goes on, from its checkpoint, when that is over.
            self._restart_after.add(name)
            return
        keeps = not wrong and run.phase is not GangPhase.RESTARTING and keeps_survivors(
            in_step=spec.recovery == "in-step", loss=loss, lost=min(lost, 2), replaced=replaced
        )  # fmt: skip
        if keeps:
            turn = run.go(GangPhase.IN_STEP, now_ms, run.cause)
            self.agenda.after(ms(spec.in_step), self._running, name, turn)
            return
        run.roll_back(now_ms, run.cause or loss)
        self._restart(name, run.cause)

    def _go_back(self, run: TrainingRun, unit: int) -> None:
        run.poison_found(unit, self.agenda.now_ms, run.cause or "silent", ms(self.fleet.spec.silent.go_back))

    def _restart(self, name: str, cause: str) -> None:
        run = self.runs[name]
        turn = run.go(GangPhase.RESTARTING, self.agenda.now_ms, cause)
        self.agenda.after(restart_ms(self.fleet, self.specs[name], run.gpus), self._running, name, turn)

    def _running(self, name: str, turn: int) -> None:
        run = self.runs[name]
        if run.turn == turn:
            self._losses.pop(name, None)
            run.go(GangPhase.RUNNING, self.agenda.now_ms)

    # What was decided.

    def bound(self, action: Bind) -> None:
        """Let a gang start on its nodes."""
        job = self.cluster.state.jobs[action.job]
        self.cluster.state.put(replace(job, state=JobState.RUNNING), self.agenda.now_ms)
        self._resized(action.job)
        for seat in action.placement.nodes:
            self._joined(action.job, self.cluster.unit_of[seat])
        self._restart(action.job, self.runs[action.job].cause)

    def replaced(self, action: Replace, cause: str) -> None:
        """Let a gang go on with spare nodes; `cause` took its own out."""
        if self.runs[action.job].phase is GangPhase.RUNNING:
            self.stop(action.job, cause)
        for seat in action.lost:
            self._left(action.job, self.cluster.unit_of[seat])
        for seat in action.spares:
            self._joined(action.job, self.cluster.unit_of[seat])
        self.recover(action.job, "hardware", lost=len(action.lost), replaced=True)

    def resized(self, action: Resize, cause: str) -> None:
        """Let a gang go on with more or fewer nodes; to grow it writes a checkpoint first."""
        run = self.runs[action.job]
        wider = action.reason == "grow"
        if not wider and run.phase is GangPhase.RUNNING:
            self.stop(action.job, cause)
        if wider:
            run.commit(self.agenda.now_ms)
        held = set(self.units_of(action.job))
        self._resized(action.job)
        for unit in sorted(held & self.bad_units.keys() - set(self.units_of(action.job))):
            self._left(action.job, unit)
        if wider:
            self._restart(action.job, "")
        else:
            self.recover(action.job, "hardware", lost=1, replaced=False)

    def evicted(self, action: Preempt, cause: str) -> None:
        """Let a gang wait for nodes."""
        name, now_ms = action.job, self.agenda.now_ms
        run = self.runs[name]
        if run.phase is GangPhase.RUNNING:
            self.stop(name, cause)
        for unit in self._found.pop(name, []):
            self._go_back(run, unit)
        run.roll_back(now_ms, run.cause or "hardware")
        self._losses.pop(name, None)
        for unit in [each for each in run.marks if not self.cluster.is_folded(each)]:
            self._left(name, unit)
        run.go(GangPhase.WAITING, now_ms, run.cause)
        run.resize(len(self.cluster.folded[name]) * self.fleet.unit_gpus, now_ms)
        self.cluster.state.put(stopped(self.cluster.state.jobs[name], now_ms), now_ms)

    def units_of(self, name: str) -> list[int]:
        """Return the units of a gang."""
        held = self.cluster.state.nodes_of.get(name)
        seen = [] if held is None else [self.cluster.unit_of[seat] for seat in held.tolist()]
        return [*self.cluster.folded[name], *seen]

    def _resized(self, name: str) -> None:
        units = self.cluster.units_of(self.cluster.state.jobs[name])
        self.runs[name].resize(units * self.fleet.unit_gpus, self.agenda.now_ms)

    def _joined(self, name: str, unit: int) -> None:
        if unit in self.bad_units:
            self.runs[name].poison(unit, self.agenda.now_ms)

    def _left(self, name: str, unit: int) -> None:
        """Count what a unit that nobody has found has corrupted until it left."""
        run = self.runs[name]
        if unit in self._found.get(name, ()):
            return
        if unit in run.marks:
            run.poison_left(unit, self.agenda.now_ms)

    # Planned stops and tests.

    def pause(self, name: str, phase: GangPhase, for_ms: int, *, restarts: bool) -> bool:
        """Let a gang stand after a checkpoint; returns whether it did."""
        run = self.runs[name]
        if run.phase is not GangPhase.RUNNING:
            return False
        run.commit(self.agenda.now_ms)
        turn = run.go(phase, self.agenda.now_ms)
        self.agenda.after(for_ms, self._resume, name, turn, restarts)
        return True

    def _resume(self, name: str, turn: int, restarts: bool) -> None:
        if self.runs[name].turn != turn:
            return
        if restarts or name in self._restart_after:
            self._restart_after.discard(name)
            self._restart(name, "")
        else:
            self._running(name, turn)

    def _screen(self, name: str) -> None:
        """Test all units of a gang; what is found is known at once."""
        spec = self.fleet.spec.screening
        self.agenda.after(ms(spec.every), self._screen, name)
        if not self.pause(name, GangPhase.SCREENING, ms(spec.takes), restarts=False):
            return
        for unit in list(self.runs[name].marks):
            if spec.mode == "replay" or not self.bad_units.get(unit, True):
                self.agenda.after(ms(spec.takes), self.report_wrong, unit)

    def close(self, end_ms: int) -> None:
        """Account for everything up to the end."""
        for run in self.runs.values():
            run.accrue(end_ms)
            for unit in list(run.marks):
                run.poison_left(unit, end_ms)
