"""A log is read once, whole lines only, however it is written, rotated or cut short."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from weft.engines.health.log_follower import FileFollower, follow


def texts(follower: FileFollower) -> list[str]:
    return [each.text for each in follower.new_lines()]


_TEXTS = st.text(st.characters(codec="ascii", exclude_characters="\n\r"), max_size=9)
_ACTS = st.sampled_from(["write", "look", "restart", "rotate"])


@given(st.lists(st.tuples(_TEXTS, _ACTS), max_size=20))
def test_every_line_is_read_once(acts: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log, place = Path(folder, "log"), Path(folder, "place")
        log.write_text("")
        follower, written, read = FileFollower(log, place), [], []
        for number, (text, act) in enumerate(acts):
            with log.open("a") as file:
                file.write(f"{number} {text}\n")
            written.append(f"{number} {text}")
            if act == "look":
                read += texts(follower)
            elif act == "restart":
                read += texts(follower)
                follower.close()
                follower = FileFollower(log, place)
            elif act == "rotate":
                read += texts(follower)
                log.rename(Path(folder, f"log.{number}"))
                log.write_text("")
        read += texts(follower)
        follower.close()
        assert read == written


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    follower = FileFollower(log, None)
    assert texts(follower) == []
    log.write_text("one\ntw")
    assert texts(follower) == ["one"]
    with log.open("a") as file:
        file.write("o\n")
    assert texts(follower) == ["two"]
    follower.close()


def test_a_log_that_was_cut_short_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\n")
    follower = follow(log, tmp_path / "place")
    assert [each.text for each in follower.new_lines()] == ["one", "two"]
    log.write_text("new\n")
    assert [each.text for each in follower.new_lines()] == ["new"]
    follower.close()


def test_a_place_that_cannot_be_read_is_no_place(tmp_path: Path) -> None:
    log, place = tmp_path / "log", tmp_path / "place"
    log.write_text("one\n")
    place.write_text("{")
    follower = FileFollower(log, place)
    assert texts(follower) == ["one"]
    follower.close()
