import multiprocessing
from pathlib import Path

import pytest

from weft.training.recovery.piece import Piece
from weft.training.recovery.snapshot_keeper import Keeper, Link, keeper_main

ONE = Piece("model.w", (0,), (4,), (8,), "uint8")
TWO = Piece("model.w", (4,), (4,), (8,), "uint8")


def filled(disk: Path) -> Keeper:
    keeper = Keeper(disk)
    keeper.fence(1)
    assert keeper.put((1, 5), [(ONE, bytearray(b"abcd"))])
    assert keeper.put((1, 5), [(TWO, bytearray(b"efgh"))])
    return keeper


def test_pieces_of_many_ranks_come_back_and_unknown_ones_are_nothing(tmp_path: Path):
    keeper = filled(tmp_path)
    assert keeper.get("memory", (1, 5), [TWO.key, ONE.key, "other"]) == [b"efgh", b"abcd", None]
    assert keeper.get("memory", (1, 6), [ONE.key]) == [None]


def test_a_generation_that_was_fenced_can_put_nothing(tmp_path: Path):
    keeper = filled(tmp_path)
    keeper.fence(2)
    assert not keeper.put((1, 6), [(ONE, bytearray(b"late"))])
    assert keeper.get("memory", (1, 6), [ONE.key]) == [None]
    assert keeper.get("memory", (1, 5), [ONE.key]) == [b"abcd"]


def test_older_snapshots_are_forgotten_and_newer_ones_are_not(tmp_path: Path):
    keeper = filled(tmp_path)
    for step in (6, 7, 8):
        keeper.put((1, step), [(ONE, bytearray(b"abcd"))])
    keeper.keep([(1, 6), (1, 7)])
    assert [keeper.get("memory", (1, step), [ONE.key])[0] is not None for step in (5, 6, 7, 8)] == [
        False, True, True, True,
    ]  # fmt: skip


def test_what_was_spilled_is_there_without_the_memory_and_only_the_newest(tmp_path: Path):
    keeper = filled(tmp_path)
    assert keeper.spill((1, 5))
    keeper.put((1, 6), [(ONE, bytearray(b"ijkl"))])
    assert keeper.spill((1, 6))
    assert not keeper.spill((1, 7))
    again = Keeper(tmp_path)
    assert again.get("disk", (1, 6), [ONE.key]) == [b"ijkl"]
    assert again.get("disk", (1, 5), [ONE.key]) == [None]
    assert again.get("memory", (1, 6), [ONE.key]) == [None]


@pytest.mark.parametrize("content", [b"", b"not json\n", b'[{"name": "model.w"'])
def test_a_damaged_spill_is_nothing_rather_than_an_error(tmp_path: Path, content: bytes):
    keeper = filled(tmp_path)
    keeper.spill((1, 5))
    (tmp_path / "1-5.pieces").write_bytes(content)
    assert keeper.get("disk", (1, 5), [ONE.key]) == [None]


def test_damage_flips_one_bit_of_one_piece(tmp_path: Path):
    keeper = filled(tmp_path)
    assert keeper.damage((1, 5), ONE.key, 9)
    assert keeper.get("memory", (1, 5), [ONE.key, TWO.key]) == [b"a`cd", b"efgh"]
    assert not keeper.damage((1, 5), "other", 9)


def test_a_keeper_serves_over_its_socket_and_goes_with_its_owner(tmp_path: Path):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    address = str(tmp_path / "socket")
    process = context.Process(target=keeper_main, args=(address, theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.recv() == 0, "ready, and without a port"
    ours.send(("fence", (3,)))
    ours.recv()
    link, other = Link(address), Link(address)
    assert link.put((3, 1), [(ONE, memoryview(b"abcd")), (TWO, memoryview(b"efgh"))])
    assert not link.put((2, 1), [(ONE, memoryview(b"late"))])
    assert other.get("memory", (3, 1), [ONE.key, "other", TWO.key]) == [b"abcd", None, b"efgh"]
    ours.close()
    process.join(30)
    assert process.exitcode == 0
