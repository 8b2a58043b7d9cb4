"""Capacity over years: nothing is had that there is no room for, and what binds is what is short."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.campaign.capacity import forecast, future
from weft.cli.main import main
from weft.core.seeds import Seed
from weft.core.specfile import validate
from weft.specs import load_capacity
from weft.specs.capacity import CapacitySpec


def table(**more: Any) -> dict[str, Any]:
    growth = {"now": "10 EFLOP/s", "growth": 2.0, "spread": 0.0, "utilisation": 0.5}
    generation = {"name": "one", "year": 2025.0, "speed": "1000 TFLOP/s", "power": "2 kW", "gpus_per_rack": 100,
                  "per_year": 10**6}  # fmt: skip
    sites = [{"year": 2025.0, "power": "1 GW", "racks": 10**6}]
    return {"years": 4.0, "training": growth, "serving": {**growth, "now": "1 EFLOP/s"}, "generations": [generation],
            "sites": sites, **more}  # fmt: skip


def spec(**more: Any) -> CapacitySpec:
    return validate(table(**more), CapacitySpec, "test")


@given(
    st.integers(1, 2000), st.integers(0, 20_000), st.integers(0, 400_000), st.floats(1.1, 6), st.integers(0, 100)
)  # fmt: skip
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_nothing_is_had_that_there_is_no_room_for(power_mw: int, racks: int, per_year: int, growth: float, seed: int):
    made = table()
    made["sites"] = [{"year": 2025.0, "power": f"{power_mw} MW", "racks": racks}]
    made["generations"][0]["per_year"] = per_year
    made["training"] = {**made["training"], "growth": growth, "spread": 0.4}
    for quarter in future(validate(made, CapacitySpec, "test"), Seed(seed).stream("one")):
        assert quarter.power_w <= power_mw * 1e6 * (1 + 1e-9)
        assert quarter.racks <= racks + 1e-6
        assert quarter.had <= quarter.wanted * (1 + 1e-9)
        # What is missing has a reason, and nothing binds where nothing is missing.
        assert (quarter.had < quarter.wanted * (1 - 1e-9)) <= bool(quarter.limit)


def test_demand_that_doubles_meets_a_limit_when_arithmetic_says():
    # 22 EFLOP/s raw at 1 PFLOP/s each are 22,000 GPUs of 2 kW: 44 MW, doubling every year; 1 GW is 4.5 years' worth.
    found = forecast(spec(years=6.0), 3, Seed(0))
    assert found["first_binds"]["power"]["year"]["median"] == pytest.approx(2026 + 4.5, abs=0.26)
    assert found["first_binds"]["floor"]["year"] is None


def test_the_same_seed_gives_the_same_futures():
    built = load_capacity("frontier")
    assert forecast(built, 20, Seed(1)) == forecast(built, 20, Seed(1))
    assert forecast(built, 20, Seed(1)) != forecast(built, 20, Seed(2))


def test_the_command_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["capacity", "--futures", "20", "--plot", str(tmp_path / "c.svg")]) == 0
    assert "binds in" in capsys.readouterr().out
    assert main(["capacity", "--futures", "20", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["quarters"]) == 24


@pytest.mark.parametrize(("text", "what"), [
    ("growth = 4.0", "growth = -4.0"), ("year = 2027.0", "year = 2020.0"), ("begin = 2026.0", "begin = 2010.0"),
    ('power = "2.1 kW"', 'power = "-1 kW"'),
])  # fmt: skip
def test_a_bad_file_is_refused_with_status_2(text: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    built = Path(__file__).parents[2] / "src/weft/specs/builtin/capacities/frontier.toml"
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(built.read_text().replace(text, what, 1))
    assert main(["capacity", str(wrong)]) == 2
    assert "wrong.toml:" in capsys.readouterr().err


def test_no_futures_are_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["capacity", "--futures", "0"]) == 2
    assert "--futures 0" in capsys.readouterr().err
