"""What can be restored: snapshots that the ranks have agreed on, where their pieces lie, and which tiers to try.

Votes come in rank by rank; a snapshot counts when every rank of its generation has voted, no two disagree, and every
piece lies in some failure domain. The newest two are kept, so that one bad copy does not send a run back to its disks.
Bookkeeping, and its one file in the run folder; keepers are somebody else's.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weft.training.checkpoint.manifest import broken, complete
from weft.training.recovery.agreement import Agreement, Digests, agree
from weft.training.recovery.orders import START, START_OVER, Candidate, Stored
from weft.training.recovery.piece import Piece, piece_from
from weft.training.recovery.snapshot_keeper import Snapshot

KEPT = 2
_MOST_AGREED = 64
AGREED = "agreed.json"
"""The file in a run folder that says what was agreed about its checkpoints and its snapshot on local disks."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A snapshot that counts."""

    snapshot: Snapshot
    tensors: Mapping[str, str]
    """Digests of whole tensors that were agreed."""
    pieces: Mapping[str, Stored]
    """Its pieces and where they lie."""

    @property
    def step(self) -> int:
        """Return the steps done in it."""
        return self.snapshot[1]


@dataclass
class SnapshotIndex:
    """Everything that is known about restorable states."""

    commits: list[Commit] = field(default_factory=list)
    """Agreed snapshots in the memory of keepers, oldest first."""
    on_disk: Commit | None = None
    """The snapshot on local disks."""
    agreed: dict[int, Mapping[str, str]] = field(default_factory=dict)
    """What was agreed about steps that have checkpoints."""
    pieces: dict[str, Piece] = field(default_factory=dict)
    """Every piece of the present generation."""
    refused: set[tuple[str, Snapshot, int]] = field(default_factory=set)
    """Candidates that were restored and turned out wrong."""
    _votes: dict[int, dict[int, tuple[Digests, Mapping[int, list[str]]]]] = field(default_factory=dict)

    def new_generation(self) -> None:
        """Forget the votes that the last generation left open."""
        self._votes.clear()
        self.pieces.clear()

    def vote(
        self, snapshot: Snapshot, rank: int, ranks: int, digests: Digests, stored: Mapping[int, list[str]]
    ) -> Agreement | None:
        """Take a rank's vote on a snapshot; returns what all agree on once the last one has come."""
        votes = self._votes.setdefault(snapshot[1], {})
        votes[rank] = (digests, stored)
        if len(votes) < ranks:
            return None
        del self._votes[snapshot[1]]
        agreement = agree({voter: digests for voter, (digests, _) in votes.items()}, self.pieces)
        if not agreement.dissent:
            self._commit(snapshot, agreement, [stored for _, stored in votes.values()])
        return agreement

    def _commit(self, snapshot: Snapshot, agreement: Agreement, stored: list[Mapping[int, list[str]]]) -> None:
        where: dict[str, list[int]] = {}
        for one in stored:
            for node, keys in one.items():
                for key in keys:
                    where.setdefault(key, []).append(node)
        if all(where.get(key) for key in agreement.pieces):
            pieces = {
                key: Stored(self.pieces[key], digest, tuple(sorted(where[key])))
                for key, digest in agreement.pieces.items()
            }
            self.commits = [*self.commits, Commit(snapshot, agreement.tensors, pieces)][-KEPT:]

    def remember(self, step: int, tensors: Mapping[str, str]) -> None:
        """Remember what was agreed about a step that has a checkpoint."""
        self.agreed[step] = tensors
        for old in sorted(self.agreed)[:-_MOST_AGREED]:
            del self.agreed[old]

    def lose_memory(self, node: int) -> None:
        """Forget what a domain's keeper had in memory; what is on its disk stays."""
        self.commits = [_without(commit, node) for commit in self.commits]

    def lose_node(self, node: int) -> None:
        """Forget what lay in a domain that is gone."""
        self.lose_memory(node)
        if self.on_disk is not None:
            self.on_disk = _without(self.on_disk, node)

    def candidates(self, checkpoints: Path | None, *, start: bool) -> tuple[Candidate, ...]:
        """Return what to try, the best first: memory, then disk and checkpoints by age, then the start."""
        found = [
            Candidate("memory", commit.step, commit.snapshot, commit.pieces)
            for commit in reversed(self.commits)
            if _whole(commit)
        ]
        slower: list[Candidate] = []
        if self.on_disk is not None and _whole(self.on_disk):
            slower.append(Candidate("disk", self.on_disk.step, self.on_disk.snapshot, self.on_disk.pieces))
        if checkpoints is not None:
            slower += [Candidate("checkpoint", manifest.step) for _, manifest in complete(checkpoints)]
        found += sorted(slower, key=lambda one: -one.step)
        if start:
            found.append(Candidate(START, 0))
        return tuple(one for one in found if one.name not in self.refused)

    def expected(self, candidate: Candidate, checkpoints: Path | None) -> Mapping[str, str] | None:
        """Return what the tensors of a candidate must be, where anybody has said so."""
        if candidate.tier in ("memory", "disk"):
            known = [*self.commits, *([self.on_disk] if self.on_disk else [])]
            return next((commit.tensors for commit in known if commit.snapshot == candidate.snapshot), None)
        if candidate.tier == "checkpoint":
            if candidate.step in self.agreed:
                return self.agreed[candidate.step]
            for _, manifest in complete(checkpoints) if checkpoints else []:
                if manifest.step == candidate.step:
                    return {name: entry.digest for name, entry in manifest.tensors.items()}
        return None

    def kept(self) -> dict[str, Any]:
        """Return what another supervisor of the same keepers needs."""
        refused = sorted(self.refused)
        return {"commits": self.commits, "on_disk": self.on_disk, "agreed": self.agreed, "refused": refused}

    def go_on(self, kept: Mapping[str, Any]) -> None:
        """Go on where another supervisor stopped."""
        self.commits, self.on_disk, self.agreed = list(kept["commits"]), kept["on_disk"], dict(kept["agreed"])
        self.refused = set(kept["refused"])

    def nothing_left(self, checkpoints: Path) -> str:
        """Return what there is to say where no state can be restored."""
        bad = "".join(f"\n  {one}" for one in broken(checkpoints))
        refused = "".join(f"\n  the {tier} of step {step} was refused" for tier, _, step in sorted(self.refused))
        return f"no state is left that could be restored exactly: {checkpoints} had one{bad}{refused}\n{START_OVER}"

    def save(self, folder: Path | None) -> None:
        """Write down, in a run's folder if there is one, what a later supervisor needs; a full disk stops nothing."""
        if folder is not None:
            part = folder / f".{AGREED}.part"
            with contextlib.suppress(OSError):
                part.write_text(self.encode(), encoding="utf-8")
                part.replace(folder / AGREED)

    def load(self, folder: Path) -> None:
        """Take over what an earlier supervisor has written into a run's folder."""
        with contextlib.suppress(OSError):
            self.decode((folder / AGREED).read_text(encoding="utf-8"))

    def encode(self) -> str:
        """Return what a later supervisor of the same run needs, as text."""
        disk = None
        if self.on_disk is not None:
            stored = [
                {**one.piece.as_json(), "digest": one.digest, "nodes": one.nodes}
                for one in self.on_disk.pieces.values()
            ]
            disk = {"snapshot": self.on_disk.snapshot, "tensors": dict(self.on_disk.tensors), "pieces": stored}
        agreed = {str(step): dict(tensors) for step, tensors in self.agreed.items()}
        return json.dumps({"agreed": agreed, "disk": disk})

    def decode(self, text: str) -> None:
        """Take over what an earlier supervisor has written; text that is damaged says nothing."""
        try:
            document: dict[str, Any] = json.loads(text)
            self.agreed = {int(step): tensors for step, tensors in document["agreed"].items()}
            disk = document["disk"]
            if disk is not None:
                stored = [Stored(piece_from(one), int(one["digest"]), tuple(one["nodes"])) for one in disk["pieces"]]
                snapshot = (int(disk["snapshot"][0]), int(disk["snapshot"][1]))
                self.on_disk = Commit(snapshot, disk["tensors"], {one.piece.key: one for one in stored})
        except (ValueError, KeyError, TypeError, IndexError):
            return


def _without(commit: Commit, node: int) -> Commit:
    left = {
        key: replace(one, nodes=tuple(other for other in one.nodes if other != node))
        for key, one in commit.pieces.items()
    }
    return replace(commit, pieces=left)


def _whole(commit: Commit) -> bool:
    return all(one.nodes for one in commit.pieces.values())
