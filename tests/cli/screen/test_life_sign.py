"""Every command shows what it does while it prints nothing, and the line is gone when it prints."""

import io
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.invocations import leaves
from typing_extensions import override

from weft.cli.main import _SPEAK_THEMSELVES, main
from weft.cli.screen.life_sign import FIRST_S, LifeSign, advance, showing

LONG = [words for words in leaves() if " ".join(words) not in _SPEAK_THEMSELVES]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    @override
    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that is set."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def sign_on(stream: io.StringIO) -> tuple[LifeSign, Clock]:
    clock = Clock()
    return LifeSign(stream, "simulate", clock), clock


def test_what_is_over_at_once_shows_nothing():
    screen = Terminal()
    sign, clock = sign_on(screen)
    clock.now_s = FIRST_S / 2
    sign.beat()
    sign.end()
    assert screen.getvalue() == ""


def test_a_terminal_sees_phase_share_and_time():
    screen = Terminal()
    sign, clock = sign_on(screen)
    clock.now_s = 0.5
    sign.beat()
    assert "simulate: starting, 0 s" in screen.getvalue()
    sign.handle(logging.makeLogRecord({"msg": "compiling %s", "args": ("walk",), "levelno": logging.INFO}))
    clock.now_s = 2.0
    sign.beat()
    assert "simulate: compiling walk, 2 s" in screen.getvalue()
    sign.advance("mrc", 45, 100)
    sign.beat()
    assert "simulate: mrc 45%, 2 s" in screen.getvalue()
    sign.end()
    assert screen.getvalue().endswith("\r\x1b[2K")


def test_it_stays_away_from_what_is_printed_until_the_next_phase():
    screen = Terminal()
    sign, clock = sign_on(screen)
    clock.now_s = 1.0
    sign.beat()
    sign.hush()
    length = len(screen.getvalue())
    sign.beat()
    assert len(screen.getvalue()) == length
    sign.advance("mrc", 1, 2)
    sign.beat()
    assert len(screen.getvalue()) > length


def test_a_pipe_gets_a_plain_line_now_and_then_rarer_each_time():
    pipe = io.StringIO()
    sign, clock = sign_on(pipe)
    for second in range(1, 1000):
        clock.now_s = float(second)
        sign.beat()
    lines = pipe.getvalue().splitlines()
    assert lines[0] == "simulate: starting, 10 s"
    assert len(lines) == 5
    assert "\x1b" not in pipe.getvalue()


def test_a_total_that_is_not_known_is_no_share():
    sign, _ = sign_on(io.StringIO())
    sign.advance("reading", 0, 0)
    assert sign.text() == "simulate: reading, 0 s"


def test_the_streams_and_the_level_are_put_back():
    before = sys.stdout, sys.stderr, logging.getLogger("weft").level
    with showing("plan"):
        advance("one", 1, 2)
    assert (sys.stdout, sys.stderr, logging.getLogger("weft").level) == before


_BLOCKED = """
import json, pathlib, sys, time
from weft.cli import main as cli

class Blocked:
    def __call__(self, words, **_):
        mark = pathlib.Path("seen-" + "-".join(words))
        while not mark.exists():
            time.sleep(0.01)
        print("done", *words)

cli.app = Blocked()
for words in json.load(open("commands.json")):
    cli.main(words)
"""


@pytest.mark.slow
def test_every_command_gives_a_sign_of_life_on_a_terminal_before_it_prints(tmp_path: Path):
    import json

    (tmp_path / "commands.json").write_text(json.dumps(LONG))
    mine, theirs = pty.openpty()
    child = subprocess.Popen([sys.executable, "-c", _BLOCKED], cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = ""
    try:
        for words in LONG:
            name = " ".join(words)
            # The command goes on only when its sign was seen: what is tested is the order, not the time.
            while f"{name}: starting" not in seen:
                seen += os.read(mine, 65536).decode(errors="replace")
            (tmp_path / f"seen-{'-'.join(words)}").touch()
            while f"done {name}" not in seen:
                seen += os.read(mine, 65536).decode(errors="replace")
            before = seen[: seen.index(f"done {name}")]
            assert before.endswith("\r\x1b[2K"), "the line is gone when the command prints"
            seen = seen[seen.index(f"done {name}") :]
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
        os.close(mine)


def test_commands_that_speak_themselves_exist():
    assert set(_SPEAK_THEMSELVES) <= {" ".join(words) for words in leaves()}


def test_a_command_in_a_pipe_is_silent_beside_its_output(capsys: pytest.CaptureFixture[str]):
    assert main(["design", "laptop"]) == 0
    assert capsys.readouterr().err == ""
