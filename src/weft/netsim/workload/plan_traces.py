"""A plan's step as Chakra execution traces, for ASTRA-sim, for `chakra`'s readers and for simulations of ours.

Each rank has a chain of nodes, in the order of its stage's schedule (`planning.cost_model.timeline`). For a micro-batch
in one chunk of the model it has the compute, one collective for each axis that has traffic then (all blocks of the
chunk together), and a send and a receive where the pipeline goes on. What the plan hides stands beside compute, the
rest between it. Collectives carry their bytes, and the time that the plan gives them (`duration_micros`); a simulator
takes the bytes. Weights that ZeRO gathers are gathered when the step begins, or with each micro-batch.

ZB-V is written as zero-bubble with one chunk, whose bubble is larger. Nothing is written to disk here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from weft.core.errors import UsageError
from weft.netsim.workload.chakra import ChakraNode, NodeType
from weft.planning.cost_model.blocks import Stage, expert_copies, held_parameters, stage_blocks
from weft.planning.cost_model.plans import FULL, SHARD_GRADIENTS, SHARD_WEIGHTS, Plans
from weft.planning.cost_model.step import StepTimes, step_times
from weft.planning.cost_model.timeline import Bar, timeline
from weft.planning.report import PlanReport

_ALL_REDUCE, _ALL_GATHER, _ALL_TO_ALL, _REDUCE_SCATTER = 0, 2, 6, 7
_WEIGHTS_APART = ("zero-bubble", "zbv")
_PS_PER_US = 10**6


@dataclass(frozen=True)
class _Exchange:
    """A collective of one rank."""

    name: str
    kind: int
    """The schema's number of it."""
    group: tuple[int, ...]
    """Its ranks."""
    size: float
    """Bytes that a rank puts in."""
    hidden_s: float = 0.0
    """Time of it that the plan hides behind compute."""
    shown_s: float = 0.0
    """Time of it that shows."""

    @property
    def moved(self) -> float:
        """Return the bytes that a rank sends, but for the share that it keeps."""
        return self.size * {_ALL_REDUCE: 2, _ALL_GATHER: len(self.group)}.get(self.kind, 1)


@dataclass(frozen=True)
class _Slot:
    """The collectives of one micro-batch in one chunk of a stage."""

    inside: Sequence[_Exchange] = ()
    """Those of the model's own axes."""
    gathers: Sequence[_Exchange] = ()
    """Those of weights that it needs."""
    reductions: Sequence[_Exchange] = ()
    """Those of gradients that it made."""


@dataclass
class _Chain:
    """The nodes of one rank, each behind the last ones."""

    groups: dict[tuple[int, ...], int]
    nodes: list[ChakraNode] = field(default_factory=list)
    last: tuple[int, ...] = ()

    def add(self, name: str, kind: NodeType, seconds: float, after: Sequence[int], **more: int | str) -> int:
        """Add a node, in whole microseconds rounded down, and return its number."""
        number = len(self.nodes) + 1
        took_ps = int(seconds * 1e6 + 1e-6) * _PS_PER_US
        self.nodes.append(ChakraNode(number, name, kind, tuple(after), took_ps, {"is_cpu_op": 0, **more}))
        return number

    def work(self, name: str, seconds: float, slot: "_Slot", before: tuple[int, ...]) -> int:
        """Add compute with the collectives that belong to it; return the node after which its output may be sent.

        What the plan hides runs beside a part of the compute. Weights are gathered from `before` on, when what came
        before is over; gradients are reduced while the output is on its way.
        """
        every = [*slot.gathers, *slot.inside, *slot.reductions]
        wanted = sum(each.hidden_s for each in every)
        share = min(1.0, seconds / wanted) if wanted else 0.0
        plain = max(0.0, seconds - wanted * share) / (1 + len(slot.inside))
        for each in slot.gathers:
            met = [self.collective(each, each.hidden_s * share + each.shown_s, before)]
            self.last = (*met, self.add(f"{name} beside {each.name}", NodeType.COMP, each.hidden_s * share, self.last))
        for each in slot.inside:
            self.last = (self.add(name, NodeType.COMP, plain, self.last),)
            met = [self.collective(each, each.hidden_s * share + each.shown_s, self.last)]
            if each.hidden_s:
                beside = f"{name} beside {each.name}"
                met.append(self.add(beside, NodeType.COMP, each.hidden_s * share, self.last))
            self.last = tuple(met)
        self.last = (self.add(name, NodeType.COMP, plain, self.last),)
        if not slot.reductions:
            return self.last[0]
        beside = share * sum(each.hidden_s for each in slot.reductions)
        done, reduced = self.add(f"{name} beside gradients", NodeType.COMP, beside, self.last), self.last
        for each in slot.reductions:
            reduced = (self.collective(each, each.hidden_s * share + each.shown_s, reduced),)
        self.last = (done, *reduced)
        return done

    def collective(self, each: _Exchange, seconds: float, after: tuple[int, ...]) -> int:
        """Add a collective and return its number; groups are numbered from 1, as ASTRA-sim reads them."""
        group = self.groups.setdefault(each.group, len(self.groups) + 1)
        more = {"comm_type": each.kind, "comm_size": max(1, round(each.size)), "pg_name": str(group)}
        return self.add(each.name, NodeType.COLLECTIVE, seconds, after, **more)


@dataclass(frozen=True)
class PlanTraces:
    """The chosen plan of a report as traces of its ranks: tensor axis innermost, then context, data, pipeline."""

    report: PlanReport
    """What was planned."""
    groups: dict[tuple[int, ...], int] = field(default_factory=dict)
    """The ranks of every group that a trace has named, and its number."""

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Return the sizes of the axes, the ranks, micro-batches of a step and chunks of a stage."""
        row, work = self.report.chosen.plans.row(0), self.report.work
        found = {name: int(row[name]) for name in ("dp", "tp", "pp", "cp", "ep", "zero", "shard", "micro")}
        rounds = work.sequences // (found["dp"] * found["micro"])
        chunks = int(row["chunks"]) if row["schedule"] == "interleaved" and found["pp"] > 1 else 1
        if chunks > 1 and rounds % found["pp"]:
            raise UsageError(
                f"interleaving takes whole groups of pp = {found['pp']} micro-batches, and a rank has {rounds}; export"
                " another plan with --fix"
            )
        return {**found, "rounds": rounds, "chunks": chunks, "ranks": int(self.report.chosen.plans.ranks[0])}

    @cached_property
    def _whole(self) -> StepTimes:
        """Return the step with nothing hidden."""
        names = ("tensor", "tensor_backward", "context", "data", "pipeline", "expert", "far_expert")
        plain = self.report.practice.model_copy(update={f"overlap_{name}": False for name in names})
        return step_times(self.report.work, self.report.chosen.plans.take([0]), self.report.machine, plain)

    def _parts(self, name: str) -> tuple[float, float]:
        """Return the time of one sort of traffic in a step that hides, and that shows."""
        shown = float(getattr(self.report.chosen.times, name)[0])
        return max(0.0, float(getattr(self._whole, name)[0]) - shown), shown

    @cached_property
    def _order(self) -> list[list[Bar]]:
        """Return what each stage does, in its order."""
        schedule, sizes = self.report.chosen.plans.row(0)["schedule"], self.sizes
        forward, backward = (float(each[0]) for each in (self._times.forward_s, self._times.backward_s))
        late = forward if schedule in _WEIGHTS_APART and sizes["pp"] > 1 and backward > forward else 0.0
        bars = timeline(sizes["pp"], sizes["rounds"], forward, backward, chunks=sizes["chunks"], weights_s=late)
        found: list[list[Bar]] = [[] for _ in range(sizes["pp"])]
        for bar in bars:
            found[bar.stage].append(bar)
        return found

    @property
    def _times(self) -> StepTimes:
        return self.report.chosen.times

    def trace(self, rank: int) -> tuple[ChakraNode, ...]:
        """Return the nodes of one rank."""
        stage = rank // (self.sizes["ranks"] // self.sizes["pp"])
        chain, bars = _Chain(self.groups), self._order[stage]
        data = self._data(rank, stage)
        lengths = self._lengths(rank, stage, any(bar.kind == "weights" for bar in bars))
        inside = {kind: self._model(rank, stage, kind == "forward") for kind in ("forward", "backward")}
        for number, bar in enumerate(bars):
            gathers = [*data.get(f"{bar.kind} gathers", ()), *(data["begin"] if number == 0 else ())]
            reductions = [*data.get(bar.kind, ()), *(data["end"] if number == len(bars) - 1 else ())]
            slot = _Slot(inside.get(bar.kind, ()), gathers, reductions)
            self._slot(chain, rank, bar, lengths[bar.kind], slot)
        for name, column in (("optimizer", self._times.optimizer_s), ("straggler wait", self._times.straggler_s)):
            chain.last = (chain.add(name, NodeType.COMP, float(column[0]), chain.last),)
        return tuple(chain.nodes)

    def _hop_s(self, source: int, target: int) -> float:
        """Return the time of a send between stages."""
        machine, size = self.report.machine, np.array([self._sent])
        far = float(machine.fabric_latency_s + (size / machine.far_rate(size))[0])
        near = machine.domain_latency_s + self._sent / machine.domain_rate
        return min(near, far) if source // machine.domain_gpus == target // machine.domain_gpus else far

    @cached_property
    def _sent(self) -> float:
        """Return the bytes that a rank sends to the next stage for one micro-batch."""
        sizes, work = self.sizes, self.report.work
        values = sizes["micro"] * work.length / sizes["cp"] * work.model.width / sizes["tp"]
        return values * self.report.practice.value_bytes

    def _lengths(self, rank: int, stage: int, apart: bool) -> dict[str, float]:
        """Return the compute of one forward, backward and weights slot of a stage."""
        times, sizes = self._times, self.sizes
        near, far = (float(each[0]) / sizes["rounds"] for each in (times.tensor_s + times.context_s, times.expert_s))
        forward, backward = float(times.forward_s[0]), float(times.backward_s[0])
        forward, backward = max(0.0, forward - near / 3 - far / 2), max(0.0, backward - 2 * near / 3 - far / 2)
        if stage == sizes["pp"] - 1:
            # The last stage has what the slowest one has more: the output matrix, and what is done a micro-batch.
            every = float(times.compute_s[0] + times.recompute_s[0]) / sizes["rounds"]
            more = max(0.0, every - forward - backward)
            forward, backward = forward + more / 3, backward + 2 * more / 3
        # Of what the plan gives the pipeline's sends, the trace has those that fill and drain it; the rest is overhead.
        wide = sizes["ranks"] // sizes["pp"]
        hops = [
            self._hop_s(rank % wide + each * wide, rank % wide + (each + 1) * wide) for each in range(sizes["pp"] - 1)
        ]
        handed = max(0.0, float(times.pipeline_s[0]) - 2 * sum(hops)) / sizes["rounds"] / 2
        forward, backward = forward + handed, backward + handed
        weights = min(forward, backward / 2) if apart else 0.0
        return {"forward": forward / sizes["chunks"], "backward": (backward - weights) / sizes["chunks"],
                "weights": weights / sizes["chunks"]}  # fmt: skip

    def _slot(self, chain: _Chain, rank: int, bar: Bar, seconds: float, slot: _Slot) -> None:
        """Add what a stage does with one micro-batch in one chunk: receive, compute and exchange, send."""
        sizes, ahead = self.sizes, bar.kind == "forward"
        wide, name = sizes["ranks"] // sizes["pp"], f"{bar.kind} {bar.micro}.{bar.chunk}"
        place, last = bar.chunk * sizes["pp"] + bar.stage, sizes["pp"] * sizes["chunks"] - 1
        tag = 2 * (bar.micro * sizes["chunks"] * sizes["pp"] + place)
        more = {"comm_size": max(1, round(self._sent))}
        column, step = rank % wide, 1 if ahead else -1
        before, waits = chain.last, list(chain.last)
        if bar.kind != "weights" and place != (0 if ahead else last):
            source = column + (place - step) % sizes["pp"] * wide
            # A receive is numbered by the place that its message comes from.
            tagged = {"comm_src": source, "comm_dst": rank, "comm_tag": tag - 2 * step + (not ahead)}
            waits.append(chain.add(f"receive {name}", NodeType.RECV, 0.0, (), **more, **tagged))
        chain.last = tuple(waits)
        done = chain.work(name, seconds, slot, before)
        if bar.kind != "weights" and place != (last if ahead else 0):
            target = column + (place + step) % sizes["pp"] * wide
            tagged = {"comm_src": rank, "comm_dst": target, "comm_tag": tag + (not ahead)}
            chain.add(f"send {name}", NodeType.SEND, self._hop_s(rank, target), (done,), **more, **tagged)

    def _ranks(self, rank: int, count: int, stride: int) -> tuple[int, ...]:
        """Return the group of `count` ranks at a stride that a rank belongs to."""
        first = rank - rank // stride % count * stride
        return tuple(range(first, first + count * stride, stride))

    def _model(self, rank: int, stage: int, ahead: bool) -> list[_Exchange]:
        """Return the exchanges inside a stage for one micro-batch and chunk: tensor, context and expert axes."""
        sizes, plan, work = self.sizes, self.report.practice, self.report.work
        model, tp, cp, ep = work.model, sizes["tp"], sizes["cp"], sizes["ep"]
        dense, sparse = (
            float(each[0]) / sizes["chunks"] for each in stage_blocks(model, self._plan, self._place(stage))
        )
        tokens = sizes["micro"] * work.length / cp
        again = 0 if ahead or self._plan.recompute[0] != FULL else 1
        found: list[_Exchange] = []
        pairs = (dense * (1 if model.parallel else 2) + sparse * self._pairs) * (1 + again)
        if tp > 1:
            group, values = self._ranks(rank, tp, 1), pairs * tokens * model.width
            if plan.sequence_parallel:
                found.append(_Exchange("gather tp", _ALL_GATHER, group, values * plan.gathered_bytes / tp))
                found.append(_Exchange("scatter tp", _REDUCE_SCATTER, group, values * plan.value_bytes))
            else:
                found.append(_Exchange("sum tp", _ALL_REDUCE, group, values * plan.value_bytes))
        found = _timed(found, self._parts("tensor_s"), self._share(ahead, 1 + again))
        if cp > 1:
            heads = -(-model.kv_heads // tp) * (model.query_width + model.value_width)
            size = (dense + sparse) * sizes["micro"] * work.length * heads * plan.value_bytes
            group = self._ranks(rank, cp, tp)
            keys = [_Exchange("gather cp", _ALL_GATHER, group, size * (1 + again) / cp)]
            keys += [] if ahead else [_Exchange("scatter cp", _REDUCE_SCATTER, group, size)]
            found += _timed(keys, self._parts("context_s"), self._share(ahead, 2 + again))
        if ep > 1 and sparse:
            group = self._ranks(rank, ep, 1 if plan.fold else tp * cp)
            put = sparse * tokens / (tp if plan.fold or plan.sequence_parallel else 1) * model.width * model.top_k
            put *= 1 + plan.imbalance
            out, back = put * min(plan.dispatch_bytes, plan.value_bytes), put * plan.value_bytes
            two = (("dispatch", out), ("combine", back)) if ahead else (("combine", back), ("dispatch", back))
            more = (("dispatch again", out), ("combine again", back)) if again else ()
            tokens_moved = [_Exchange(name, _ALL_TO_ALL, group, size) for name, size in (*more, *two)]
            found += _timed(tokens_moved, self._parts("expert_s"), self._share(ahead, 1 + again))
        return found

    @cached_property
    def _pairs(self) -> int:
        """Return the gathers, each with its sum, that a block with experts makes over the tensor axis in one pass."""
        model = self.report.work.model
        return 1 if model.parallel or (self.report.practice.fold and not model.shared) else 2

    def _share(self, ahead: bool, backward: int) -> float:
        """Return the part of a step's traffic that one slot has; a backward pass has `backward` times a forward's."""
        return (1 if ahead else backward) / (1 + backward) / (self.sizes["rounds"] * self.sizes["chunks"])

    @cached_property
    def _plan(self) -> Plans:
        return self.report.chosen.plans.take([0])

    def _place(self, stage: int) -> Stage:
        return "last" if stage == self.sizes["pp"] - 1 else "first" if stage == 0 else "middle"

    def _data(self, rank: int, stage: int) -> dict[str, list[_Exchange]]:
        """Return what replicas exchange when a step begins, in each forward and backward slot, and when it ends."""
        sizes, plan, plans = self.sizes, self.report.practice, self._plan
        zero, chunks = sizes["zero"], sizes["chunks"]
        slots_of = dict.fromkeys(("forward gathers", "backward gathers", "backward"), sizes["rounds"] * chunks)
        often = {"begin": 1, "end": 1, **slots_of}
        found: dict[str, list[_Exchange]] = {when: [] for when in often}
        shared, experts = held_parameters(self.report.work.model, plans, self._place(stage), fold=plan.fold)
        across = sizes["dp"] * sizes["cp"]
        replicas = self._ranks(rank, across, sizes["tp"])
        spread = [(float(shared[0]), replicas, sizes["shard"], "")]
        if experts[0]:
            inner, ep = sizes["tp"] * sizes["cp"], sizes["ep"]
            same = tuple(each for each in replicas if each // inner % ep == rank // inner % ep)
            if plan.fold:
                same = self._ranks(rank, inner * sizes["dp"] // ep, ep)
            parts = int(expert_copies(plans, plans.shard, plan)[0])
            spread.append((float(experts[0]), same, math.gcd(len(same), parts), " of experts"))
        for parameters, everybody, shard, what in spread:
            at = everybody.index(rank)
            group, others = everybody[at - at % shard :][:shard], everybody[at % shard :: shard]
            gradients, weights = parameters * plan.gradient_bytes, parameters * plan.value_bytes
            gather = _Exchange(f"gather weights{what}", _ALL_GATHER, group, weights / shard)
            scatter = _Exchange(f"scatter gradients{what}", _REDUCE_SCATTER, group, gradients)
            whole = _Exchange(f"sum gradients{what}", _ALL_REDUCE, everybody, gradients)
            across_shards = _Exchange(f"sum shards{what}", _ALL_REDUCE, others, gradients / shard)
            late = [scatter] if zero == 1 else [whole] if zero == 0 else []
            summed = [replace(scatter, size=gradients / chunks)]
            slots = {
                "begin": [gather] if 0 < zero < SHARD_WEIGHTS else [],
                "end": [*late, *([across_shards] if zero else [])],
                "backward": summed if zero >= SHARD_GRADIENTS else [],
            }
            pieces = [replace(gather, size=gather.size / chunks)] if zero == SHARD_WEIGHTS else []
            slots |= {"forward gathers": pieces, "backward gathers": pieces}
            for when, several in slots.items():
                found[when] += [each for each in several if len(each.group) > 1]
        moved = {when: often[when] * sum(each.moved for each in several) for when, several in found.items()}
        total = sum(moved.values()) or 1.0
        return {
            when: _timed(several, self._parts("data_s"), moved[when] / total / often[when])
            for when, several in found.items()
        }


def _timed(found: list[_Exchange], parts: tuple[float, float], share: float) -> list[_Exchange]:
    """Return exchanges with their shares of the time of a step's traffic of that sort, by the bytes that they move."""
    total = sum(each.moved for each in found) or 1.0
    return [
        replace(each, hidden_s=parts[0] * share * each.moved / total, shown_s=parts[1] * share * each.moved / total)
        for each in found
    ]
