from dataclasses import replace

from weft.core.seeds import Seed
from weft.fabric.theory.skipping import Plane, simulated

PLANE = Plane(links=32, paths=32, senders=32, chosen=16, load=0.9, round_trip=20, mark_from=4.0, mark_all=16.0)


def test_skipping_marked_paths_brings_the_fullest_link_down_to_its_capacity() -> None:
    ignored = simulated(Seed(0).stream("a"), PLANE, slots=800, trials=6, skip=False)
    skipped = simulated(Seed(0).stream("a"), PLANE, slots=800, trials=6, skip=True)
    capacity = 1 / PLANE.load
    assert ignored.load.value > 1.15 * capacity
    assert skipped.load.value < 1.05 * capacity
    assert skipped.queue.value < ignored.queue.value / 3


def test_senders_that_use_every_path_are_balanced_without_marks() -> None:
    every = replace(PLANE, chosen=32)
    assert simulated(Seed(0).stream("b"), every, slots=640, trials=2, skip=False).load.value <= 1.1
