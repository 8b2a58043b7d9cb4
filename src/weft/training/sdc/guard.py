"""Proof, step by step, that all ranks train the same thing: digests of state, compared and voted on.

After every update the weights, the optimizer's state, learning rate, random seed and data cursor of each rank become a
few 64-bit words that travel in one small all-gather; the answer is read before the next update, so it costs no wait.
Before every update four more things are checked in a second one: that no state changed since the last update although
nobody wrote to it; that every rank was fed the micro-batches that its neighbours read for themselves; that replayed
micro-batches gave the same gradients; and that small tests came out right. Every rank sees all words, reaches the same
findings, and raises the same error at once. What is found is `verdicts.Evidence`; what is done about it is the
supervisor's decision.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from weft.core.errors import FailedError
from weft.core.seeds import Seed, mix
from weft.specs.job import GuardSpec
from weft.training.parallel.mesh import Layout, MeshCoordinate
from weft.training.parallel.microbatches import MicroBatchSplit
from weft.training.sdc.checksums import MemoryChecksums
from weft.training.sdc.digest import fold_digest, folds, joined
from weft.training.sdc.known_answers import known_answer_test
from weft.training.sdc.replay import GradientDigest, GradientReplay, Replayer, own_part, schedule
from weft.training.sdc.verdicts import EvidenceLog, Kind, SdcEvidence, describe, from_vote, settle
from weft.training.sdc.voting import vote

_HALF = 2**63
_KINDS = ("weights", "optimizer", "expert weights", "expert optimizer")
_SHARED = ("learning rate", "random seed", "data cursor")
_CHANGED, _FED, _WITNESSED, _TEST, _REPLAYS = range(5)


class DivergedError(FailedError):
    """Ranks do not train the same thing any more; carries the evidence."""

    def __init__(self, evidence: Sequence[SdcEvidence], words: Mapping[int, int] | None = None) -> None:
        """Tell `evidence`, at least one piece; `words` are the digests of weights by rank, where they differ."""
        self.evidence = tuple(evidence)
        self.words = dict(words or {})
        super().__init__(describe(self.evidence))

    def as_json(self) -> list[dict[str, Any]]:
        """Return the evidence for programs."""
        return [{"rank": one.rank, "step": one.step, "kind": one.kind.value, "what": one.what} for one in self.evidence]


def _signed(word: int) -> int:
    """Return a 64-bit word as torch's signed integers hold it."""
    return (word + _HALF) % (2 * _HALF) - _HALF


def _bits(value: float) -> int:
    return _signed(int.from_bytes(struct.pack("<d", value), "little"))


@dataclass(frozen=True)
class Copies:
    """Which ranks hold the same of what; pure arithmetic of the plan."""

    layout: Layout
    """Where ranks stand."""

    def of(self, kind: str, rank: int) -> tuple[int, ...]:
        """Return the ranks whose word of `kind` must equal that of `rank`."""
        layout, plan, place = self.layout, self.layout.plan, self.layout.place(rank)
        if kind in _SHARED and not (kind == "learning rate" and plan.pp > 1):
            return tuple(range(layout.ranks))
        if kind.startswith("expert"):
            return tuple(layout.expert_replica_ranks(place)) if plan.ep > 1 else (rank,)
        if plan.shard == 1:
            return tuple(layout.replica_ranks(place))
        # Shards of a parameter lie on consecutive data-parallel ranks (and context ranks): only whole groups repeat.
        same = range(place.dp % plan.shard, plan.dp, plan.shard)
        return tuple(layout.rank(MeshCoordinate(place.pp, dp, place.cp, place.tp)) for dp in same)

    def classes(self, kind: str) -> list[tuple[int, ...]]:
        """Return all sets of ranks that hold the same of `kind`."""
        return sorted({self.of(kind, rank) for rank in range(self.layout.ranks)})

    def replica(self, number: int) -> list[int]:
        """Return the ranks that see the same micro-batches as data-parallel rank `number`."""
        return [rank for rank in range(self.layout.ranks) if self.layout.place(rank).dp == number]

    def columns(self) -> list[list[int]]:
        """Return the ranks that do the same part of the work in each replica, by replica."""
        first = [self.layout.place(rank) for rank in self.replica(0)]
        return [
            [self.layout.rank(MeshCoordinate(place.pp, dp, place.cp, place.tp)) for dp in range(self.layout.plan.dp)]
            for place in first
        ]


def compare(copies: Copies, words: Mapping[int, Sequence[int]], step: int) -> tuple[SdcEvidence, ...]:
    """Return what the words of all ranks after an update say against any of them."""
    found: list[SdcEvidence] = []
    for place, kind in enumerate(_KINDS + _SHARED):
        for ranks in copies.classes(kind):
            found += from_vote({rank: words[rank][place] for rank in ranks}, step, kind)
    return tuple(found)


def compare_fed(copies: Copies, fed: Mapping[int, int], seen: Mapping[int, int], replicas: int) -> list[int]:
    """Return the replicas of which not everybody says that they were fed the same micro-batches.

    Every rank says what it was fed, and what it reads for itself of the replica before its own.
    """
    odd = []
    for number in range(replicas):
        claims = {rank: fed[rank] for rank in copies.replica(number)}
        witnesses = {-1 - rank: seen[rank] for rank in copies.replica((number + 1) % replicas)}
        if not vote({**claims, **(witnesses if replicas > 1 else {})}).unanimous:
            odd.append(number)
    return odd


@dataclass
class _Fed:
    """What this rank computed on in the present step."""

    step: int = -1
    digests: dict[int, int] = field(default_factory=dict)


class Guard:
    """The watch of one rank over its training and, through the words of the others, over theirs."""

    def __init__(self, spec: GuardSpec, layout: Layout, rank: int, seed: Seed) -> None:
        """Guard rank `rank` of `layout`; all ranks make theirs together."""
        self.spec, self.rank = spec, rank
        self.copies = Copies(layout)
        self.evidence = EvidenceLog(layout.ranks)
        self.on_finding: Callable[[tuple[SdcEvidence, ...]], None] | None = None
        """Called with evidence instead of raising, where somebody wants to decide for himself."""
        self._layout, self._seed = layout, seed
        self._group = dist.new_group(group_desc="guard") if layout.ranks > 1 else None
        self._named: list[tuple[str, nn.Parameter]] = []
        self._experts: frozenset[nn.Parameter] = frozenset()
        self._optimizers: Sequence[Optimizer] = ()
        self._gradients: GradientDigest | None = None
        self.replayer: Replayer | None = None
        self._fed = _Fed()
        self._replays: tuple[GradientReplay, ...] = ()
        self._rest: torch.Tensor | None = None
        self._waiting: tuple[int, Any, torch.Tensor] | None = None
        self._recalled: dict[int, Mapping[int, int]] = {}
        self._products: list[str] = []
        self.checksums = MemoryChecksums()
        """Watches what waits to be sent."""

    def attach(
        self, named: Sequence[tuple[str, nn.Parameter]], optimizers: Sequence[Optimizer] = (),
        experts: frozenset[nn.Parameter] = frozenset(), replayer: Replayer | None = None,
    ) -> None:  # fmt: skip
        """Watch `named` parameters and their optimizers; call it before gradients are given to a reducer."""
        self._named, self._optimizers, self._experts = list(named), optimizers, experts
        self.replayer = replayer
        if self.spec.replay_every and replayer is not None:
            self._gradients = GradientDigest([parameter for _, parameter in self._named])

    def recall(self, step: int, weights: Mapping[int, int]) -> None:
        """Remember an undecided difference: when `step` is done again, its outcome says who was wrong.

        `weights` are the words that each rank gave the first time, `DivergedError.words`. The outcome is in `evidence`.
        """
        self._recalled[step] = dict(weights)

    def begin(self, step: int, split: MicroBatchSplit) -> None:
        """Start a step."""
        self._fed = _Fed(step)
        self._replays = ()
        self.checksums.forget()
        if self._gradients is not None:
            if step % self.spec.replay_every == 0:
                owners = [0] * split.count
                for replica in range(self._layout.plan.dp):
                    for index in split.indices(MeshCoordinate(0, replica, 0, 0)):
                        owners[index] = replica
                self._replays = schedule(self._seed, step, owners, self._layout.plan.dp, self.spec.replay_batches)
            mine = self._layout.place(self.rank).dp
            self._gradients.begin(frozenset(one.index for one in self._replays if one.owner == mine))

    def fed(self, index: int, tokens: torch.Tensor) -> None:
        """Take note of the tokens that this rank computes on."""
        if self.spec.digest_every:
            self._fed.digests[index] = _signed(fold_digest([tokens]))

    def leaf(self, index: int | None) -> None:
        """Say which micro-batch the next gradients belong to."""
        if self._gradients is not None:
            self._gradients.at(index)

    def _states(self) -> tuple[list[str], list[str], list[torch.Tensor]]:
        """Return kind, name and memory of everything that must be equal on replicas."""
        kinds: list[str] = []
        names: list[str] = []
        tensors: list[torch.Tensor] = []
        for name, parameter in self._named:
            kind = "expert weights" if parameter in self._experts else "weights"
            kinds.append(kind)
            names.append(name)
            tensors.append(own_part(parameter.data))
            kept = [one.state.get(parameter, {}) for one in self._optimizers if isinstance(one, Optimizer)]
            for key, value in (item for state in kept for item in state.items()):
                if isinstance(value, torch.Tensor):
                    kinds.append(kind.replace("weights", "optimizer"))
                    names.append(f"{name}.{key}")
                    tensors.append(own_part(value))
        return kinds, names, tensors

    def _due(self, step: int) -> bool:
        return bool(self.spec.digest_every) and (step + 1) % self.spec.digest_every == 0

    def before_update(self, step: int, split: MicroBatchSplit, tokens: Callable[[int, int], torch.Tensor]) -> None:
        """Check everything that must be right before the weights change; raises where it is not."""
        self.settle()
        test = bool(self.spec.micro_test_every) and (step + 1) % self.spec.micro_test_every == 0
        if not (self.spec.digest_every or self._replays or test or self.spec.abft):
            return
        words = [0] * (_REPLAYS + len(self._replays))
        names, changed = self._changed()
        lost = [names[place] for place in changed] + self.checksums.broken()
        words[_CHANGED] = len(lost) + len(self._products)
        if self.spec.digest_every:
            words[_FED] = self._joint(self._fed.digests)
            words[_WITNESSED] = self._witness(step, self._before(), split, tokens)
        failed = known_answer_test(self._seed, step, torch.device(self._device())) if test else None
        words[_TEST] = int(failed is not None)
        words[_REPLAYS:] = self._replay(step)
        gathered = self._gather(words)
        found = self._heard(step, gathered, lost, failed)
        self._products.clear()
        found += self._judge_fed(step, gathered, split, tokens)
        found += self._judge_replays(step, gathered)
        self._act(found)

    def _device(self) -> torch.device:
        return self._named[0][1].device if self._named else torch.device("cpu")

    def _changed(self) -> tuple[list[str], list[int]]:
        """Return names and numbers of what differs from what the last update left."""
        if self._rest is None or not self.spec.at_rest:
            return [], []
        _, names, tensors = self._states()
        now = folds(tensors, self._device())
        if now.shape != self._rest.shape:
            return [], []
        return names, (now != self._rest).nonzero().flatten().tolist()

    @staticmethod
    def _joint(digests: Mapping[int, int]) -> int:
        ordered = [digests[index] for index in sorted(digests)]
        return int(joined(torch.tensor(ordered, dtype=torch.int64))) if ordered else 0

    def _before(self) -> int:
        replicas = self._layout.plan.dp
        return (self._layout.place(self.rank).dp - 1) % replicas

    def _witness(
        self, step: int, replica: int, split: MicroBatchSplit, tokens: Callable[[int, int], torch.Tensor]
    ) -> int:
        """Return the digest of the micro-batches that `replica` should compute on, read by this rank."""
        indices = split.indices(MeshCoordinate(0, replica, 0, 0))
        return self._joint({index: _signed(fold_digest([tokens(step, index)])) for index in indices})

    def _replay(self, step: int) -> list[int]:
        mine = self._layout.place(self.rank).dp
        return [self._result(step, one, mine) if mine in one.voters else 0 for one in self._replays]

    def _result(self, step: int, replay: GradientReplay, mine: int, *, again: bool = False) -> int:
        """Return this rank's digest of a replayed micro-batch: as it was computed, or computed now."""
        assert self._gradients is not None
        assert self.replayer is not None
        if replay.owner == mine and not again:
            return self._gradients.digest(replay.index)
        return self._gradients.of(self.replayer.gradients(step, replay.index))

    def _gather(self, words: Sequence[int]) -> list[list[int]]:
        mine = torch.tensor(words, dtype=torch.int64)
        if self._group is None:
            return [mine.tolist()]
        everybody = torch.empty(self._layout.ranks, len(words), dtype=torch.int64)
        dist.all_gather_single(everybody, mine.unsqueeze(0), group=self._group)
        return everybody.tolist()

    def _tell(self, mine: object) -> list[Any]:
        """Return what every rank has to tell; only where something was found."""
        if self._group is None:
            return [mine]
        everybody: list[Any] = [None] * self._layout.ranks
        dist.all_gather_object(everybody, mine, group=self._group)
        return everybody

    def _heard(
        self, step: int, gathered: Sequence[Sequence[int]], changed: Sequence[str], failed: str | None
    ) -> list[SdcEvidence]:
        """Return what ranks have found out about themselves."""
        if not any(row[_CHANGED] or row[_TEST] for row in gathered):
            return []
        found: list[SdcEvidence] = []
        for rank, (names, products, test) in enumerate(self._tell((list(changed), self._products, failed))):
            found += [SdcEvidence(rank, step, Kind.CHANGED, name) for name in names]
            found += [SdcEvidence(rank, step, Kind.CHECKSUM, name) for name in products]
            if test is not None:
                found.append(SdcEvidence(rank, step, Kind.MICRO_TEST, test))
        return found

    def _judge_fed(
        self, step: int, gathered: Sequence[Sequence[int]], split: MicroBatchSplit,
        tokens: Callable[[int, int], torch.Tensor],
    ) -> list[SdcEvidence]:  # fmt: skip
        """Return who computed on other micro-batches than the step's; all ranks read those in doubt once more."""
        fed = {rank: row[_FED] for rank, row in enumerate(gathered)}
        seen = {rank: row[_WITNESSED] for rank, row in enumerate(gathered)}
        found: list[SdcEvidence] = []
        for number in compare_fed(self.copies, fed, seen, self._layout.plan.dp):
            what = f"micro-batches of replica {number}"
            again = dict(enumerate(row[0] for row in self._gather([self._witness(step, number, split, tokens)])))
            claims = {rank: fed[rank] for rank in self.copies.replica(number)}
            witnesses = {rank: seen[rank] for rank in self.copies.replica((number + 1) % self._layout.plan.dp)}
            found += settle({**witnesses, **claims}, again, step, what)
        return found

    def _judge_replays(self, step: int, gathered: Sequence[Sequence[int]]) -> list[SdcEvidence]:
        """Return who computed other gradients than the replicas that did the same work."""
        found: list[SdcEvidence] = []
        for place, replay in enumerate(self._replays):
            open_votes: list[tuple[dict[int, int], str]] = []
            for column in self.copies.columns():
                digests = {column[replica]: gathered[column[replica]][_REPLAYS + place] for replica in replay.voters}
                outcome = vote(digests)
                what = f"gradient of micro-batch {replay.index}"
                if outcome.decided:
                    found += from_vote(digests, step, what)
                elif not outcome.unanimous:
                    open_votes.append((digests, what))
            if open_votes:
                mine = self._layout.place(self.rank).dp
                second = self._result(step, replay, mine, again=True) if mine in replay.voters else 0
                again = self._gather([second])
                for digests, what in open_votes:
                    found += settle(digests, {rank: again[rank][0] for rank in digests}, step, what)
        return found

    def after_update(self, step: int, cursor: Sequence[int]) -> None:
        """Digest the state that the update left and begin to compare it; `settle` reads the answer."""
        self._rest = None
        if not self._due(step) and not (self.spec.at_rest and self.spec.digest_every):
            return
        kinds, _, tensors = self._states()
        self._rest = folds(tensors, self._device())
        if not self._due(step):
            return
        words = [self._of_kind(kinds, kind) for kind in _KINDS]
        shared = torch.tensor([self._rates(), self._random(step), _cursor(step, cursor)], dtype=torch.int64)
        mine = torch.cat([torch.stack(words).to("cpu", non_blocking=False), shared])
        everybody = torch.empty(self._layout.ranks, len(mine), dtype=torch.int64)
        if self._group is None:
            everybody.copy_(mine)
            self._waiting = (step, None, everybody)
            return
        work = dist.all_gather_single(everybody, mine.unsqueeze(0), group=self._group, async_op=True)
        self._waiting = (step, work, everybody)

    def _of_kind(self, kinds: Sequence[str], kind: str) -> torch.Tensor:
        assert self._rest is not None
        places = [place for place, one in enumerate(kinds) if one == kind]
        if not places:
            return torch.zeros((), dtype=torch.int64, device=self._rest.device)
        return joined(self._rest[torch.tensor(places, device=self._rest.device)])

    def _rates(self) -> int:
        """Return one word for the learning rates and betas that the optimizer has in fact used.

        Which groups of parameters there are may differ between pipeline stages, so each value counts once.
        """
        values: set[float] = set()
        for group in (group for one in self._optimizers for group in one.param_groups):
            values.update(float(value) for value in (group["lr"], *group.get("betas", ())))
        word = 0
        for value in sorted(values):
            word = mix(word, _bits(value) % (2 * _HALF))
        return _signed(word)

    def _random(self, step: int) -> int:
        return _signed(self._seed.branch("dropout", step).word())

    def settle(self) -> None:
        """Read what the others had after the last update; raises where somebody differs."""
        if self._waiting is None:
            return
        step, work, everybody = self._waiting
        self._waiting = None
        if work is not None:
            work.wait()
        words = dict(enumerate(everybody.tolist()))
        if step in self._recalled:
            first = self._recalled.pop(step)
            again = {rank: words[rank][0] for rank in first}
            self.evidence.add(settle(first, again, step, "weights, when the step was done again"))
        found = compare(self.copies, words, step)
        if found:
            self._act(self._in_detail(step, found), {rank: row[0] for rank, row in words.items()})

    def _in_detail(self, step: int, found: Sequence[SdcEvidence]) -> list[SdcEvidence]:
        """Return `found` with the names of tensors in place of kinds of state."""
        detailed = [one for one in found if one.what in _SHARED]
        if len(detailed) == len(found):
            return detailed
        kinds, names, _ = self._states()
        assert self._rest is not None, "the digests that differ are there"
        rest: list[int] = self._rest.tolist()
        told_by = self._tell([(kind, name, digest) for kind, name, digest in zip(kinds, names, rest, strict=True)])
        for kind in _KINDS:
            for ranks in self.copies.classes(kind):
                mine = [(place, name) for place, (one, name, _) in enumerate(told_by[ranks[0]]) if one == kind]
                for place, name in mine:
                    detailed += from_vote({rank: told_by[rank][place][2] for rank in ranks}, step, name)
        return detailed or list(found)

    def _act(self, found: Sequence[SdcEvidence], words: Mapping[int, int] | None = None) -> None:
        if not found:
            return
        self.evidence.add(found)
        if self.on_finding is None:
            raise DivergedError(found, words)
        self.on_finding(tuple(found))

    def product_failed(self, name: str) -> None:
        """Take note that the matrix product `name` did not fit its checksums; everybody hears before the update."""
        self._products.append(name)

    def close(self) -> None:
        """Read the last answer and stop listening."""
        self.settle()
        if self._gradients is not None:
            self._gradients.close()


def _cursor(step: int, cursor: Sequence[int]) -> int:
    """Return one word for where the data stands: the step and how its micro-batches are divided."""
    word = step
    for value in cursor:
        word = mix(word, value)
    return _signed(word)
