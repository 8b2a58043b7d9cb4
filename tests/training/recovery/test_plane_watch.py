from weft.training.recovery.plane_watch import PlaneWatch, planes_out


def test_a_plane_that_goes_and_comes_back_is_told_once_each() -> None:
    told: list[str] = []
    seen = [frozenset[int](), frozenset({2}), frozenset({2}), frozenset({2, 3}), frozenset[int](), frozenset[int]()]
    watch = PlaneWatch(lambda text, seconds: told.append(f"{text} {seconds >= 0}"), lambda: (seen[0], 4))
    while seen:
        watch.stepped()
        seen.pop(0)
    assert told == [
        "plane 2 carries nothing; goes on over 3 of 4 planes True",
        "plane 3 carries nothing; goes on over 2 of 4 planes True",
        "plane 2 carries again; goes on over 4 of 4 planes True",
        "plane 3 carries again; goes on over 4 of 4 planes True",
    ]


def test_without_planes_there_is_nothing_to_tell() -> None:
    out, count = planes_out()
    assert not out
    assert count == 0
