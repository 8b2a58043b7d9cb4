"""`weft plan` and `weft plan compare`: what they print, and how they refuse."""

import json
from pathlib import Path

import pytest

from weft.cli.main import main

SITE = "gb200-4x200g-32k"


def run(*arguments: str) -> int:
    return main(["plan", *arguments])


def test_plans_are_printed_for_people(capsys: pytest.CaptureFixture[str]):
    assert run("gpt3-175b", "--site", SITE, "--top", "3", "--details") == 0
    out = capsys.readouterr().out
    for words in (
        "verdict: fits",
        "valid plans",
        "peak GPU memory of the first plan",
        "goodput",
        "power mitigations",
        "placement of the mesh axes",
    ):
        assert words in out


def test_json_is_the_same_each_time(capsys: pytest.CaptureFixture[str]):
    texts = []
    for _ in range(2):
        assert run("tiny-gpt", "--site", "laptop", "--json") == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["plans"]


def test_what_if_shows_the_difference(capsys: pytest.CaptureFixture[str]):
    assert run("tiny-gpt", "--site", "laptop", "--what-if", "planes=8", "--what-if", "batch=32") == 0
    assert "planes=8" in capsys.readouterr().out
    assert run("tiny-gpt", "--site", "laptop", "--what-if", "link_rate=400 Mb/s", "--json") == 0
    assert json.loads(capsys.readouterr().out)["what_if"][0]["change"] == "link_rate=400 Mb/s"


def test_a_plan_is_drawn(tmp_path: Path):
    picture = tmp_path / "plan.svg"
    assert run("tiny-gpt", "--site", "laptop", "--json", "--plot", str(picture)) == 0
    assert picture.stat().st_size > 10_000


def test_jobs_and_sites_are_compared(capsys: pytest.CaptureFixture[str]):
    assert run("compare", "gpt3-175b", "llama3-405b", "--site", SITE) == 0
    assert "llama3-405b" in capsys.readouterr().out
    assert run("compare", SITE, "gb200-3tier-64k", "--job", "gpt3-175b", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gpt3-175b",), "--site"),
        (("gpt3-175b", "--site", "nowhere"), "there is no site"),
        (("gpt-3", "--site", SITE), "did you mean"),
        (("gpt3-175b", "--site", SITE, "--fix", "tp"), "write it as tp=8"),
        (("gpt3-175b", "--site", SITE, "--fix", "tp=7"), "the nearest are"),
        (("tiny-gpt", "--site", "laptop", "--fix", "tp=2"), "a scale-up domain of 1 GPU evenly; the nearest is 1"),
        (("gpt3-175b", "--site", SITE, "--top", "0"), "at least 1"),
        (("gpt3-175b", "--site", SITE, "--what-if", "x=1"), "is not a change"),
        (("gpt3-175b", "--site", SITE, "--precision", "int4"), "precision"),
        (("gpt-1t", "--site", "laptop"), "nothing fits"),
        (("compare", "gpt3-175b", "gpt-1t"), "give --site"),
    ],
)
def test_wrong_questions_end_with_status_2(arguments, words: str, capsys: pytest.CaptureFixture[str]):
    assert run(*arguments) == 2
    err = capsys.readouterr().err
    assert words in err, err
    assert "Traceback" not in err


def test_a_job_without_layers_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    job = tmp_path / "job.toml"
    job.write_text('extends = "gpt3-175b"\n[model]\nlayers = 0\n')
    assert run(str(job), "--site", SITE) == 2
    assert "model.layers" in capsys.readouterr().err
