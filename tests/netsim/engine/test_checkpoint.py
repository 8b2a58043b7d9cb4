"""A run that is kept and taken up again ends like one that was never cut off."""

from pathlib import Path

import pytest
from tests.netsim.worlds import fault, scenario, small_site

from weft.core.errors import UsageError
from weft.netsim.engine.checkpoint import load, save
from weft.netsim.simulate import prepare_engine, set_up, transports_of
from weft.specs.scenario import TrafficSpec

# The first one compiles, which takes minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def worlds(seed: int = 1, hosts: int = 16):
    spec = scenario(
        TrafficSpec.model_construct(pattern="permutation", size=300_000),
        faults=(fault("switch-down", "t1-p0-i2", 4, 40), fault("slow", "link0-p0-i5", 6, amount=0.1)),
    )
    setup = set_up(spec, small_site(gpus=hosts), seed)
    (chosen,) = transports_of(setup, ("mrc",))
    return prepare_engine(setup, chosen)[1]


def ends(world):
    world.run()
    world.finish()
    times = [(each.began_ps, each.arrived_ps, each.acknowledged_ps) for each in world.board.progress]
    return times, world.records.trace, world.records.hops, world.slot, world.records.faults, world.records.counts


class EnoughError(Exception):
    """Raised to cut a run off."""


def test_a_run_taken_up_again_ends_the_same(tmp_path: Path):
    whole = ends(worlds())
    cut = worlds()
    calls = 0

    def stop(_world) -> None:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise EnoughError

    with pytest.raises(EnoughError):
        cut.run(stop)
    save(cut, tmp_path / "kept")
    again = worlds()
    load(again, tmp_path / "kept")
    assert 0 < again.slot < whole[3]
    assert ends(again) == whole


def test_another_scenario_is_refused(tmp_path: Path):
    save(worlds(), tmp_path / "kept")
    with pytest.raises(UsageError, match="another scenario"):
        load(worlds(hosts=8), tmp_path / "kept")
