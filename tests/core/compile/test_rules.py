"""The registry: plain by default, compiled on request, numba only then."""

import subprocess
import sys

import pytest

from weft.core.compile.rules import compiled, rule, rules
from weft.mrc.rules.numbers import draw, psn_of


def test_plain_rules_do_not_load_numba() -> None:
    program = "import sys; from weft.mrc.rules import acks, control, reverse; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_rules_call_compiled_rules() -> None:
    assert compiled(draw)(5, 6, 100) == draw(5, 6, 100)
    assert compiled(psn_of) is compiled(psn_of)


def test_every_rule_is_known_by_its_name() -> None:
    assert rules()["weft.mrc.rules.numbers.psn_of"] is psn_of


def test_what_is_not_a_rule_cannot_be_compiled():
    def plain(number: int):
        return number

    with pytest.raises(AssertionError, match="not a rule"):
        compiled(plain)
    assert rule(plain) is plain
    assert compiled(plain)(3) == 3
