"""Labs for tests: each run has names of its own, and whatever happens nothing is left behind."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from weft.cli.main import main
from weft_lab.commands.lab_app import records
from weft_lab.network import lab as labs
from weft_lab.network.lab import Lab

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
# Two runs at once on one machine must not meet; a process id in base 36 fits the prefix.
NAME = "v" + "".join(DIGITS[os.getpid() // 36**n % 36] for n in range(3))


@dataclass
class Weft:
    """The command line, aimed at this run's own lab."""

    capture: pytest.CaptureFixture[str]
    name: str = NAME
    said: list[str] = field(default_factory=list)

    def __call__(self, *words: str) -> int:
        """Run `weft lab WORDS` and keep what it says on standard error."""
        self.capture.readouterr()
        status = main(["lab", *words, "--name", self.name])
        out, err = self.capture.readouterr()
        self.said = [*out.splitlines(), *err.splitlines()]
        return status

    def lab(self) -> Lab:
        """Return the lab that is up."""
        return labs.find(records(), self.name)


@pytest.fixture
def weft(capsys: pytest.CaptureFixture[str]) -> Iterator[Weft]:
    """Give the command line; what it made is removed at the end."""
    made = Weft(capsys)
    yield made
    labs.remove(records(), made.name)


@pytest.fixture
def lab(weft: Weft) -> Callable[..., Lab]:
    """Make a lab with these words after `weft lab up`."""

    def make(*words: str) -> Lab:
        assert weft("up", *words) == 0, weft.said
        return weft.lab()

    return make
