"""Policies compared over the same faults, lives fitted to logs, and written histories."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.campaign.small_fleets import question

from weft.campaign.comparison import compared
from weft.campaign.diary import read_diary
from weft.campaign.fleet import Fleet
from weft.campaign.lifetimes import Lives, fit_weibull, rate_of, rates_by_age, read_lives
from weft.campaign.seeds_in_parallel import outcomes
from weft.cli.main import main
from weft.cli.planning.campaign import CHOICES, side_of
from weft.core.errors import SpecError, UsageError
from weft.specs.campaign import CampaignSpec

BASE = {
    "nodes": 128, "duration": "12 d", "spares": 4, "second": 0, "gangs": [{"name": "one", "gpus": 960}],
    "components": {"gpu": {"rate": "200000 FIT"}}, "network": {"nic_flap": "0 FIT", "core_flap": "0 FIT"},
}  # fmt: skip


def differs(better: dict[str, Any], worse: dict[str, Any], figure: str) -> float:
    """Return by how much a figure is larger with the better policy, where the interval excludes 0; else 0."""
    one, two = (outcomes(question(BASE, table), range(3), 1) for table in (worse, better))
    row = next(each for each in compared(one, two) if each["figure"] == figure)
    return row["difference"] if row["differs"] else 0.0


def test_spares_keep_a_gang_at_work():
    assert differs({"spares": 4}, {"spares": 0, "gangs": [{"name": "one", "gpus": 1024}]}, "ETTR of the gangs") > 0


def test_recovery_in_the_step_loses_less_than_a_restart():
    gang = {"name": "one", "gpus": 960}
    better, worse = ({"gangs": [{**gang, "recovery": kind}]} for kind in ("in-step", "restart"))
    assert differs(better, worse, "ETTR of the gangs") > 0


def test_eight_planes_outlive_what_stops_a_gang_on_one():
    # Often enough that three seeds differ by more than their scatter.
    parts = {"components": {"gpu": {"rate": "0 FIT"}, "optic": {"rate": "400000 FIT"}}}
    better, worse = ({**parts, "network": {**BASE["network"], "planes": planes}} for planes in (8, 1))
    assert differs(better, worse, "ETTR of the gangs") > 0


def test_paths_that_recover_at_once_cost_less_than_those_that_converge():
    better, worse = ({"network": {"nic_flap": "0 FIT", "core_flap": "20000000 FIT", "recovery": wait}}
                     for wait in ("100 us", "5 s"))  # fmt: skip
    assert differs(better, worse, "ETTR of the gangs") > 0


def test_the_same_campaign_twice_differs_in_nothing():
    found = outcomes(question(BASE), range(2), 1)
    assert not any(each["differs"] or each["difference"] for each in compared(found, found))


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_every_policy_by_name_is_a_campaign(name: str):
    side = side_of(name, "gb200-4x200g-32k", "standard")
    assert isinstance(side.spec, CampaignSpec)
    Fleet(side.site, side.spec)


def test_what_is_no_policy_is_refused():
    with pytest.raises(UsageError, match="is no policy, change or scenario"):
        side_of("more-spares", "laptop", "standard")


@pytest.mark.parametrize("shape", [0.5, 1.0, 3.0])
def test_the_weibull_law_of_drawn_lives_is_found_again(shape: float):
    draw = np.random.default_rng(7)
    lives, seen = 8000 * draw.weibull(shape, 2000), draw.random(2000) * 20_000
    found = fit_weibull(Lives(np.minimum(lives, seen), lives <= seen))
    assert found.shape.value == pytest.approx(shape, rel=0.1)
    assert found.scale_h.value == pytest.approx(8000, rel=0.12)
    assert found.shape.low < found.shape.value < found.shape.high


@pytest.mark.parametrize("shape", [0.4, 1.0, 3.0])
def test_intervals_of_drawn_lives_hold_the_true_law_as_often_as_they_say(shape: float):
    draw = np.random.default_rng(round(10 * shape))
    held = np.zeros(2)
    for _ in range(120):
        lives, seen = 8000 * draw.weibull(shape, 200), 16_000 * draw.random(200)
        found = fit_weibull(Lives(np.minimum(lives, seen), lives <= seen))
        held += [found.shape.low <= shape <= found.shape.high, found.scale_h.low <= 8000 <= found.scale_h.high]
    # 95 %, give or take three standard deviations of 120 draws.
    assert (held >= 0.89 * 120).all()
    assert held.sum() < 240


def test_a_constant_rate_is_failures_over_part_hours_with_garwoods_interval():
    found = rate_of(10, 1e6)
    assert found.value == pytest.approx(10_000)
    assert (found.low, found.high) == (pytest.approx(4795, rel=1e-3), pytest.approx(18_390, rel=1e-3))
    draw = np.random.default_rng(1)
    lives = Lives(draw.exponential(50_000, 4000), np.ones(4000, dtype=bool))
    for band in rates_by_age(lives):
        assert band.fit.low < 20_000 < band.fit.high * 1.15


LOG = "serial,installed,removed,event\na,2026-01-01,2026-02-01,failed\nb,0,900,running\nc,0,400,failed\nd,0,50,failed\n"


def test_a_log_becomes_the_rates_of_a_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    log = tmp_path / "parts.csv"
    log.write_text(LOG)
    assert main(["campaign", "fit", str(log), "--component", "optic", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["parts"], found["failures"]) == (4, 3)
    assert main(["campaign", "fit", str(log)]) == 0
    assert "fewer than 30 failures" in capsys.readouterr().out
    scenario = tmp_path / "own.toml"
    scenario.write_text('extends = "standard"\nduration = "1 d"\nnodes = 8\n' + found["scenario"])
    assert main(["campaign", "h100-400g-16k", "--scenario", str(scenario)]) == 0


@pytest.mark.parametrize(("text", "line", "what"), [
    ("serial,installed,removed\n", None, "lacks event"),
    (LOG + "e,5,4,failed\n", 6, "is not after"),
    (LOG + "e,x,4,failed\n", 6, "is no time"),
    (LOG + "e,1,4,broken\n", 6, "is no event"),
    (LOG + "e,0,nan,failed\n", 6, "is no time"),
    (LOG + "e,-inf,4,failed\n", 6, "is no time"),
    (LOG + "e,0,1e-300,failed\n", 6, "no life of a part"),
    (LOG + "x" * 200_000 + ",0,4,failed\n", 6, "is no table"),
    (LOG.replace("failed", "removed"), None, "at least 3"),
])  # fmt: skip
def test_a_bad_log_is_refused_with_its_line(text: str, line: int | None, what: str):
    with pytest.raises(UsageError, match=what) as caught:
        read_lives(text, "parts.csv")
    if line is not None:
        assert isinstance(caught.value, SpecError)
        assert caught.value.mistakes[0].line == line


def fleet() -> Fleet:
    asked = question(BASE)
    return Fleet(asked.site, asked.spec)


def test_a_diary_is_run_against_the_controllers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    diary = tmp_path / "history.csv"
    diary.write_text("at_h,class,part,soft\n5,gpu,node-00003,true\n6.5,host,12,\n7,software,0,\n")
    assert [fault.group for fault in read_diary(diary, fleet())] == [3, 12, 0]
    words = ["campaign", "replay-diary", str(diary), "--site", "h100-400g-16k", "--set", "nodes=64", "--json"]
    assert main([*words, "--set", "duration=2 d"]) == 0
    gang = json.loads(capsys.readouterr().out)["seeds"][0]["gangs"][0]
    assert gang["interruptions_by_class"] == {"gpu": 1, "host": 1, "software": 1}


@pytest.mark.parametrize(("row", "what"), [
    ("5,gpu,node-99999", "there is no 'node-99999'"), ("5,rack,40", "rack has 32 parts"),
    ("5,flux,1", "no class of faults"),
    ("5,gpu,²", "there is no '²'"), ("nan,gpu,1", "the campaign lasts"), ("5,gpu,1,maybe", "neither true nor false"),
    ("9999,gpu,1", "the campaign lasts"), ("soon,gpu,1", "no number of hours"), ("5,gpu,-1", "there is no '-1'"),
])  # fmt: skip
def test_a_diary_that_names_what_is_not_there_is_refused_with_its_line(row: str, what: str, tmp_path: Path):
    diary = tmp_path / "history.csv"
    diary.write_text(f"at_h,class,part,soft\n4,gpu,1\n{row}\n", encoding="utf-8-sig")
    with pytest.raises(SpecError, match=what) as caught:
        read_diary(diary, fleet())
    assert caught.value.mistakes[0].line == 3


@pytest.mark.parametrize(("words", "what"), [
    (["--seeds", "0"], "--seeds 0"), (["--processes", "0"], "--processes 0"), (["--set", "spares"], "write KEY=VALUE"),
    (["--set", "repair.crews=0"], "repair.crews"), (["--set", "components.gpu.rate=-1 FIT"], "too small"),
    (["--set", "gangs.recovery=never"], "recovery"), (["--scenario", "permutation"], "a campaign is wanted"),
    (["--set", "nodes=0"], "nodes"), (["--scenario", "absent.toml"], "absent.toml"),
])  # fmt: skip
def test_a_bad_command_line_ends_with_status_2(words: list[str], what: str, capsys: pytest.CaptureFixture[str]):
    assert main(["campaign", "laptop", *words]) == 2
    assert what in capsys.readouterr().err
