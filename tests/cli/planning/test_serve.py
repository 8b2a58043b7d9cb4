"""`weft serve-plan`: tables and JSON, the site's currency, and one sentence for what cannot be done."""

import json
from pathlib import Path

import pytest

from weft.cli.main import main

SITE = """extends = "gb200-4x200g-32k"
name = "euros"

[prices]
currency = "EUR"
gpu_hour = "4 USD"
"""


def test_a_model_is_served_at_the_sites_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "site.toml").write_text(SITE)
    command = ["serve-plan", "llama3-405b", "--site", str(tmp_path / "site.toml")]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "EUR for a million tokens" in said
    assert "USD" not in said
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    prices = found["per_million_tokens"]
    assert found["currency"] == "EUR"
    assert prices["gpu_cents"] == pytest.approx(400 * prices["gpu_hours"])
    assert prices["gpu_hours"] == pytest.approx(1e6 / found["tokens_per_s_per_gpu"] / 3600)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tpot", "1 us"], "ask for a TPOT of no less"),
        (["--ttft", "1 ms"], "ask for a TTFT of no less"),
        (["--tpot", "5"], "has no unit"),
        (["--prompt", "0"], "from 1 to"),
        (["--rate", "1e12"], "ask for at most"),
        (["--rate", "-1"], "above zero"),
    ],
)
def test_what_cannot_be_served_is_refused(options: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["serve-plan", "llama3-405b", "--site", "gb200-4x200g-32k", *options]) == 2
    assert said in capsys.readouterr().err
