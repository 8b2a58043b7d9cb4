"""Recorded results: a closed form is found again, an error shows as large as it is, what is missing is named."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.cli.main import main
from weft.core.errors import UsageError
from weft.netsim.golden import cases_of, compare, shares_of, times_of

TOPOLOGY = (
    "Nodes 16\nTiers 2\nPodsize 16\n"
    "Tier 0\nDownlink_speed_Gbps 400\nRadix_Down 4\nRadix_Up 4\nDownlink_Latency_ns 500\n"
    "Tier 1\nDownlink_speed_Gbps 400\nRadix_Down 4\nDownlink_Latency_ns 500\n"
)
FRAME, ACK, BPS = 4160, 64, 400e9


def lone_us(packets: int) -> float:
    """Return when a lone flow across T1s is acknowledged: store and forward over four hops there and back."""
    hop_us = 0.5
    there = (packets + 3) * FRAME * 8e6 / BPS + 4 * hop_us
    return there + 4 * (ACK * 8e6 / BPS + hop_us)


def write_case(folder: Path, name: str, packets: int, factor: float = 1.0, *, printed: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.topo").write_text(TOPOLOGY)
    (folder / f"{name}.cm").write_text(f"Nodes 16\nConnections 1\n0->13 id 1 start 0 size {packets * 4096}\n")
    time_us = lone_us(packets) * factor
    said = f"Flow Uec_0_13 flowId 1 finished at {time_us} total\n" if printed else f"# us\n1,{time_us}\n"
    (folder / f"{name}.fct").write_text(said)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(packets=st.integers(1, 60), factor=st.floats(0.8, 1.25), printed=st.booleans())
def test_the_error_is_the_one_that_was_written(tmp_path: Path, packets: int, factor: float, printed: bool) -> None:
    write_case(tmp_path, "a", packets, factor, printed=printed)
    row = compare(cases_of(tmp_path)[0])
    assert row.mean_error == pytest.approx(1 / factor - 1, abs=0.01)
    assert row.flows == 1
    assert shares_of((row,))["mean"] == tuple(float(abs(row.mean_error) <= limit) for limit in (0.05, 0.1))


def test_a_folder_is_run_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, factor in (("exact", 1.0), ("near", 1.07), ("far/off", 1.5)):
        write_case(tmp_path / Path(name).parent, Path(name).name, 20, factor)
    assert main(["simulate", "golden", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [case["case"] for case in found["cases"]] == ["exact", "far/off", "near"]
    assert found["share"]["mean"] == pytest.approx([1 / 3, 2 / 3])
    assert main(["simulate", "golden", str(tmp_path)]) == 0
    assert "33% within 5%, 67% within 10%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("remove", "reason"),
    [("a.topo", "has no topology"), ("a.fct", "has no recorded times"), ("a.cm", "no recorded case")],
)
def test_what_is_missing_is_named(tmp_path: Path, remove: str, reason: str) -> None:
    write_case(tmp_path, "a", 3)
    (tmp_path / remove).unlink()
    with pytest.raises(UsageError, match=reason):
        cases_of(tmp_path)


@given(st.text(max_size=40))
def test_any_text_gives_times_or_one_sentence(text: str) -> None:
    found = None
    said = ""
    try:
        found = times_of(text, "x.fct")
    except UsageError as error:
        said = str(error)
    assert said.startswith("x.fct") if found is None else found == sorted(found)
