"""What a plan needs of a node is what the planner expects of it; a node that falls short of one need is told which."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.api import plan
from weft.cli.main import main
from weft.planning.calibration.microbenchmarks import AttentionTime, MachineTimes
from weft.planning.cost_model.plans import one_plan
from weft.planning.node_needs import NodeNeeds, compared, needs_of, unmet
from weft.specs import load_site
from weft.training.launch.machine_times import measure_needs

JOBS = ("gpt3-175b", "llama3-405b", "gpt-1t")
SITES = ("h100-400g-16k", "h200-400g-16k", "b200-400g-16k", "gb200-4x200g-32k")


def needs(job: str, site: str, tp: int = 0) -> NodeNeeds:
    report = plan(job, site, top=1)
    return needs_of(report.site, report.work, one_plan(tp=tp) if tp else report.outcome.best.plans)


def reached(wanted: NodeNeeds, slower: float = 1.0) -> MachineTimes:
    """Return what a node that meets every need is measured at."""
    return MachineTimes(
        "x", wanted.ranks, 2, tuple(replace(one, seconds=one.seconds * slower) for one in wanted.products), (),
        AttentionTime(1.0, 1.0), wanted.memory_bytes_per_s / slower,
        tuple(replace(one, seconds=one.seconds * slower) for one in wanted.messages),
    )  # fmt: skip


WANTED = {(job, site): needs(job, site) for job in JOBS[:2] for site in SITES[:2]}


@given(st.sampled_from(sorted(WANTED)), st.floats(0.5, 2.0))
def test_a_node_passes_exactly_as_far_as_it_reaches_the_needs(case: tuple[str, str], slower: float) -> None:
    wanted = WANTED[case]
    found = compared(wanted, reached(wanted, slower))
    assert [one.share for one in found] == pytest.approx([1 / slower] * len(found))
    assert len(unmet(found, 0.9)) == (len(found) if 1 / slower < 0.9 else 0)


@given(st.sampled_from(sorted(WANTED)), st.data())
def test_one_slow_part_is_the_one_that_is_named(case: tuple[str, str], data: st.DataObject) -> None:
    wanted = WANTED[case]
    times = reached(wanted)
    at = data.draw(st.integers(0, len(times.products) + len(times.messages)))
    if at == 0:
        times, check = replace(times, copy_bytes_per_s=times.copy_bytes_per_s / 2), "memory"
    elif at <= len(times.products):
        each = times.products[at - 1]
        slow = replace(each, seconds=2 * each.seconds)
        times = replace(times, products=(*times.products[: at - 1], slow, *times.products[at:]))
        check = "matmul"
    else:
        place = at - 1 - len(times.products)
        each = times.messages[place]
        slow_message = replace(each, seconds=2 * each.seconds)
        times = replace(times, messages=(*times.messages[:place], slow_message, *times.messages[place + 1 :]))
        check = "link"
    assert [(one.check, round(one.share, 6)) for one in unmet(compared(wanted, times), 0.9)] == [(check, 0.5)]


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("job", JOBS)
def test_no_need_is_beyond_the_data_sheet(job: str, site: str) -> None:
    wanted, sheet = needs(job, site), load_site(site)
    found = {one.check: one for one in compared(wanted, reached(wanted))}
    assert 0.2 < found["matmul"].needed * 1e12 / sheet.gpu.bf16 < 1
    assert 0.5 < found["memory"].needed * 8e9 / sheet.gpu.memory_rate <= 1
    assert 0.2 < found["link"].needed * 8e9 / sheet.scale_up.rate < 1
    assert wanted.ranks == sheet.node.gpus


def test_tensor_parallelism_cuts_the_products_and_adds_the_sums_of_activations() -> None:
    whole, cut = needs("gpt3-175b", SITES[0]), needs("gpt3-175b", SITES[0], tp=8)
    single = needs("gpt3-175b", SITES[0], tp=1)
    assert len(cut.messages) == len(single.messages) + 1
    weights = [sum(one.n * one.k for one in each.products) for each in (cut, single)]
    assert 8 * weights[0] == weights[1]
    assert {one.m for one in whole.products} <= {2048, 4096, 6144, 8192}


def test_processors_of_one_machine_are_one_node() -> None:
    assert needs("tiny-gpt", "laptop").ranks == 4


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--for", "tiny-gpt"], "name the site"),
        (["--site", "laptop"], "--site belongs to --for JOB"),
        (["matmul", "--for", "tiny-gpt", "--site", "laptop"], "a test of its own"),
        (["--for", "nope", "--site", "laptop"], "no job called 'nope'"),
        (["--for", "tiny-gpt", "--site", "nope"], "no site called 'nope'"),
        (["--for", "llama3-405b", "--site", "laptop"], "nothing fits"),
        (["--for", "tiny-gpt", "--site", "laptop", "--least", "2"], "a share of at most 1"),
    ],
)
def test_wrong_use_is_told_in_a_sentence(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", "test", *arguments]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert text in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_this_machine_is_measured_at_the_needs_of_a_plan() -> None:
    wanted = needs("tiny-gpt", "laptop")
    sides = [(one.m, one.n, one.k) for one in wanted.products]
    times = measure_needs(2, sides, [one.size for one in wanted.messages], 0.02)
    found = compared(wanted, times)
    assert [(one.m, one.n, one.k) for one in times.products] == sides
    assert all(one.measured > 0 for one in found)
    assert unmet(found, 1e-9) == []
