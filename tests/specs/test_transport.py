from typing import Any

import pytest

from weft.core.errors import SpecError
from weft.core.specfile import validate
from weft.mrc.columns import PARAMS
from weft.mrc.rules.settings import settings
from weft.specs.transport import MrcSpec, window_packets


def test_the_defaults_are_the_published_ones() -> None:
    spec = MrcSpec()
    params = settings(spec, planes=8, rate_bps=800 * 10**9)[0]
    assert (params["active"], params["evs"], params["min_active"]) == (256, 320, 64)
    assert window_packets(spec.window) == params["window"] == 1024
    assert params["timeout_ps"] == 262_144_000


def test_every_field_says_what_it_is() -> None:
    tables = [MrcSpec, *(type(getattr(MrcSpec(), name)) for name in ("ev", "loss", "window", "congestion"))]
    assert all(field.description for table in tables for field in table.model_fields.values())


@pytest.mark.parametrize("planes", [1, 2, 4, 8])
def test_planes_share_the_evs_evenly(planes: int) -> None:
    params = settings(MrcSpec(), planes=planes, rate_bps=10**11)[0]
    assert params["active"] % planes == 0
    assert params["evs"] % planes == 0
    assert all(params[name] >= 0 for name in PARAMS.names or ())


@pytest.mark.parametrize(
    ("table", "hint"),
    [
        ({"ev": {"active": 8}}, "min_active is 64"),
        ({"loss": {"spread": "200 us"}}, "loss.spread"),
        ({"loss": {"probe_after": "1 us"}}, "probe could prove nothing"),
        ({"loss": {"timeout": 25}}, "write at most 24"),
        ({"port_remap_delay": 5}, "has no unit"),
        ({"speed": 1}, "unknown key"),
    ],
)
def test_mistakes_are_named(table: Any, hint: Any) -> None:
    with pytest.raises(SpecError, match=hint):
        validate(table, MrcSpec, "a file")


def test_without_trimming_one_loss_retires_nothing() -> None:
    assert settings(MrcSpec(), planes=8, rate_bps=10**11)[0]["losses_to_retire"] == 1
    assert settings(MrcSpec(trimming=False), planes=8, rate_bps=10**11)[0]["losses_to_retire"] == 3
