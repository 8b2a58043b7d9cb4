"""The row that the rules read follows from the spec, to the whole number."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mrc.channel import small_spec

from weft.mrc.columns import PARAMS
from weft.mrc.rules.congestion import ALGORITHMS
from weft.mrc.rules.settings import TIMEOUT_UNIT_PS, settings, slots_mask
from weft.specs.transport import MrcSpec


def row_of(spec: MrcSpec | None = None, **more: Any) -> Any:
    return settings(spec or MrcSpec(), **{"planes": 2, "rate_bps": 10**11, **more})[0]


@given(st.integers(1, 2**20))
def test_slots_are_the_smallest_power_of_two_that_holds_them(count: int) -> None:
    mask = slots_mask(count)
    assert mask + 1 >= count
    assert (mask + 1) & mask == 0
    assert count == 1 or (mask + 1) // 2 < count


@pytest.mark.parametrize("planes", [1, 2, 4, 8])
def test_every_plane_gets_the_same_number_of_evs(planes: int) -> None:
    row = row_of(small_spec(), planes=planes)
    assert row["evs"] % planes == 0
    assert row["active"] % planes == 0
    assert 0 < row["active"] <= row["evs"]
    assert 0 < row["min_active"] <= row["active"]


@pytest.mark.parametrize(("trimming", "losses"), [(True, 1), (False, None)])
def test_one_silence_retires_a_path_only_where_switches_trim(trimming: bool, losses: int | None) -> None:
    spec = small_spec(trimming=trimming)
    assert row_of(spec)["losses_to_retire"] == (spec.ev.losses_to_retire if losses is None else losses)
    assert row_of(spec)["trimming"] == int(trimming)


@pytest.mark.parametrize("shift", [1, 2, 6, 24])
def test_the_timeout_doubles_with_its_exponent(shift: int) -> None:
    spec = MrcSpec.model_validate({"loss": {"timeout": shift}})
    assert row_of(spec)["timeout_ps"] == TIMEOUT_UNIT_PS * 2**shift


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_is_known_by_its_place(algorithm: str) -> None:
    spec = MrcSpec.model_validate({"congestion": {"algorithm": algorithm}})
    assert ALGORITHMS[row_of(spec)["congestion"]] == algorithm


@pytest.mark.parametrize("rate_bps", [10**11, 4 * 10**11, 8 * 10**11])
def test_the_window_scales_with_the_rate(rate_bps: int) -> None:
    row, base = row_of(rate_bps=rate_bps), row_of()
    assert row["bdp"] * 10**11 == base["bdp"] * rate_bps
    assert row["mtu"] == base["mtu"]
    assert row["window_max"] >= row["mtu"]
    assert row["fair_gain"] >= base["fair_gain"]


def test_even_spreading_needs_skipping() -> None:
    spec = MrcSpec.model_validate({"skip": False, "even": True, "ev": {"most_skips": 1}})
    row = row_of(spec)
    assert (row["skip"], row["even"], row["paced"]) == (0, 0, 0)


def test_every_parameter_is_a_whole_number_of_64_bits() -> None:
    row = settings(MrcSpec(), planes=8, rate_bps=8 * 10**11)
    assert {PARAMS[name].str for name in PARAMS.names or ()} == {"<i8"}
    assert (row["payload"], row["planes"]) == (4096, 8)
