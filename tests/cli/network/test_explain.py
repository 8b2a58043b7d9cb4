import json
from pathlib import Path

import pytest

from weft.cli.main import main


def test_the_page_shows_decision_formulas_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "static-routing", "laptop"]) == 0
    page = capsys.readouterr().out
    assert "Switch dynamic routing off" in page
    assert "1 + E[(T/R + X - 1)+]" in page, "square brackets of a formula are not colour codes"
    assert "agrees" in page
    assert "RFC 9800" in page


def test_json_carries_checks_and_provenance(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "planes", "laptop", "--json", "--seed", "3"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["provenance"]["seed"] == 3
    assert {"quantity", "closed", "simulated", "verdict"} <= document["checks"][0].keys()


def test_the_same_seed_prints_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for _ in range(2):
        assert main(["explain", "lossy", "laptop", "--json"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_plot_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str) -> None:
    target = tmp_path / f"tail.{suffix}"
    assert main(["explain", "tail", "laptop", "--plot", str(target)]) == 0
    assert target.stat().st_size > 10_000
    assert capsys.readouterr().err == ""
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sprayings"], "did you mean 'spraying'?"),
        (["xyzzy"], "topics are planes, spraying"),
        (["planes", "laptop", "--seed", "-1"], "--seed -1"),
        (["planes", "nowhere"], "no site called 'nowhere'"),
        (["planes", "laptop", "--plot", "x.gif"], ".svg or .png"),
    ],
)
def test_a_wrong_request_ends_with_status_2_and_a_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["explain", *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
