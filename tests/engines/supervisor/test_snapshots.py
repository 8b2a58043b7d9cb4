from pathlib import Path

from weft.engines.supervisor.snapshots import SnapshotIndex
from weft.training.recovery.piece import Piece

PIECES = [Piece(f"model.{name}", (0,), (2,), (2,), "float32") for name in ("a", "b")]
KEYS = [piece.key for piece in PIECES]


def memory() -> SnapshotIndex:
    known = SnapshotIndex()
    known.pieces.update({piece.key: piece for piece in PIECES})
    return known


def commit(known: SnapshotIndex, step: int, generation: int = 0) -> None:
    digests = {KEYS[0]: step, KEYS[1]: step + 1}
    assert known.vote((generation, step), 0, 2, digests, {0: [KEYS[0]], 1: [KEYS[1]]}) is None
    agreement = known.vote((generation, step), 1, 2, digests, {0: [KEYS[1]], 1: [KEYS[0]]})
    assert agreement is not None
    assert not agreement.dissent


def test_a_snapshot_counts_when_all_have_voted_and_two_are_kept():
    known = memory()
    for step in (1, 2, 3):
        commit(known, step)
    assert [one.step for one in known.candidates(None, start=True)] == [3, 2, 0]
    assert [one.tier for one in known.candidates(None, start=True)] == ["memory", "memory", "start"]


def test_dissent_commits_nothing():
    known = memory()
    known.vote((0, 1), 0, 2, {KEYS[0]: 1}, {0: [KEYS[0]]})
    agreement = known.vote((0, 1), 1, 2, {KEYS[0]: 2}, {1: [KEYS[0]]})
    assert agreement is not None
    assert agreement.dissent
    assert known.candidates(None, start=False) == ()


def test_a_piece_that_nobody_could_store_makes_no_snapshot():
    known = memory()
    digests = {KEYS[0]: 1, KEYS[1]: 2}
    known.vote((0, 1), 0, 2, digests, {0: [KEYS[0]]})
    known.vote((0, 1), 1, 2, digests, {})
    assert known.candidates(None, start=False) == ()


def test_one_lost_domain_leaves_every_piece_and_two_leave_none():
    known = memory()
    commit(known, 4)
    known.lose_node(0)
    (left,) = known.candidates(None, start=False)
    assert {one.nodes for one in left.pieces.values()} == {(1,)}
    known.lose_node(1)
    assert known.candidates(None, start=False) == ()


def test_what_was_refused_is_never_tried_again():
    known = memory()
    commit(known, 1)
    commit(known, 2)
    newest = known.candidates(None, start=False)[0]
    known.refused.add(newest.name)
    assert [one.step for one in known.candidates(None, start=False)] == [1]


def test_a_later_supervisor_reads_what_an_earlier_one_has_agreed():
    known = memory()
    commit(known, 7)
    known.on_disk = known.commits[-1]
    known.remember(7, known.commits[-1].tensors)
    later = SnapshotIndex()
    later.decode(known.encode())
    assert later.agreed == known.agreed
    (candidate,) = later.candidates(None, start=False)
    assert (candidate.tier, candidate.step) == ("disk", 7)
    assert later.expected(candidate, None) == known.commits[-1].tensors
    damaged = SnapshotIndex()
    damaged.decode(known.encode()[:-20])
    assert damaged.candidates(None, start=False) == ()


def test_checkpoints_and_disks_are_tried_newest_first(tmp_path: Path):
    known = memory()
    commit(known, 7)
    known.on_disk = known.commits[-1]
    known.commits.clear()
    assert [one.tier for one in known.candidates(tmp_path, start=True)] == ["disk", "start"]
