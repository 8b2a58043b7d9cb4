import pytest

from weft.core.errors import SpecError
from weft.core.specfile import validate
from weft.specs import JobSpec, load_job


def mistakes(plan: object) -> list[str]:
    table = load_job("tiny-gpt").as_written() | {"plan": plan}
    with pytest.raises(SpecError) as caught:
        validate(table, JobSpec, "job")
    return [f"{mistake.key}: {mistake.problem}; {mistake.remedy}" for mistake in caught.value.mistakes]


def test_a_mistake_inside_a_table_is_told_once_under_its_own_key():
    assert mistakes({"precision": "fp8"}) == ["plan.precision: found 'fp8'; input should be 'fp32' or 'bf16'"]


def test_an_unknown_key_inside_a_table_finds_its_neighbour():
    assert mistakes({"tpp": 2}) == ["plan.tpp: unknown key; did you mean 'tp'?"]


def test_a_word_is_held_against_the_words_that_exist():
    assert mistakes("automatic") == ["plan: found 'automatic'; input should be 'auto'; did you mean 'auto'?"]


def test_a_rule_over_several_keys_of_a_table_is_told():
    assert mistakes({"dp": 4, "shard": 3}) == ["plan.shard: shard = 3 does not divide dp = 4; "]
