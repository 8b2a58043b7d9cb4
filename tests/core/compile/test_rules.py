"""The registry: plain by default, compiled on request, numba only then."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.compile.intrinsics import INTRINSICS, copy_four, lowest_set, prefetch
from weft.core.compile.rules import Specialisation, compiled, compiled_variant, replaceable, rule, rules
from weft.mrc.rules.numbers import draw, mix32, psn_of


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


@replaceable("_louder in the test")
@rule
def _loud(number: int) -> int:
    return number + 1


@rule
def _louder(number: int) -> int:
    return number + 100


@rule
def _quiet(number: int) -> int:
    return number


@rule
def _calls_loud(number: int) -> int:
    return 2 * _loud(number)


@rule
def _calls_quiet(number: int) -> int:
    return 2 * _quiet(number)


LOUDER = Specialisation("louder", {_loud: _louder})


def test_a_specialisation_replaces_a_rule_wherever_compiled_code_calls_it() -> None:
    assert (_calls_loud(1), compiled(_calls_loud)(1), compiled(_calls_loud, LOUDER)(1)) == (4, 4, 202)
    assert compiled(_loud, LOUDER)(1) == 101
    assert _loud(1) == 2, "plain rules stay as they are"


def test_a_rule_that_reaches_no_replaced_one_is_compiled_once_for_all() -> None:
    assert compiled(_calls_quiet, LOUDER) is compiled(_calls_quiet)
    assert compiled(_calls_loud, LOUDER) is not compiled(_calls_loud)


def test_only_a_rule_that_says_so_can_be_replaced() -> None:
    with pytest.raises(AssertionError, match="_quiet is not marked as replaceable"):
        compiled(_calls_quiet, Specialisation("wrong", {_quiet: _louder}))


@rule
def _wrapping(number: int) -> int:
    return number + 1000


@compiled_variant(_wrapping)
@rule
def _plain_form(number: int) -> int:
    return number + 1


@rule
def _calls_form(number: int) -> int:
    return _plain_form(number)


def test_compiled_rules_call_the_compiled_variant_and_plain_ones_do_not() -> None:
    assert _calls_form(1) == 2
    assert compiled(_calls_form)(1) == 1001


@rule
def _lowest(word: int) -> int:
    return lowest_set(word)


@rule
def _copied(target: np.ndarray, source: np.ndarray, first: int) -> None:
    prefetch(source, 0, 0)
    copy_four(target, source, first)


@given(st.integers(-(2**63), 2**63 - 1).filter(bool))
def test_the_lowest_set_bit_is_the_same_in_both_forms(word: int) -> None:
    assert _lowest(word) == compiled(_lowest)(word)
    assert word >> _lowest(word) & 1 == 1
    assert word & ((1 << _lowest(word)) - 1) == 0


@settings(max_examples=30)
@given(st.lists(st.integers(-(2**62), 2**62), min_size=8, max_size=8), st.integers(0, 4))
def test_four_numbers_are_copied_and_no_others(numbers: list[int], first: int) -> None:
    source = np.array(numbers, np.int64)
    plain, fast = np.zeros(8, np.int64), np.zeros(8, np.int64)
    copy_four(plain, source, first)
    compiled(_copied)(fast, source, first)
    expected = [number if first <= place < first + 4 else 0 for place, number in enumerate(numbers)]
    assert plain.tolist() == fast.tolist() == expected


def test_every_intrinsic_has_a_plain_form_and_is_no_rule() -> None:
    known = set(rules().values())
    assert {each.__name__ for each in INTRINSICS} == {"prefetch", "lowest_set", "stack_row", "copy_four", "apart"}
    assert not [each for each in INTRINSICS if each in known]


def test_narrow_numbers_take_the_wide_form_of_a_rule() -> None:
    made = compiled(mix32)
    before = len(made.overloads)
    assert made(np.int64(3), np.int64(4)) == mix32(3, 4)
    assert len(made.overloads) <= max(before, 1)
