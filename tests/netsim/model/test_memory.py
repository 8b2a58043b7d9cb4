"""Memory is planned before a run, and refused where there is not enough."""

import pytest
from tests.netsim.scenarios import fault, flows, run_world, scenario

from weft.core.errors import UsageError
from weft.mrc.rules.settings import settings
from weft.netsim.model.memory import check_memory, free_memory, planned_bytes
from weft.netsim.transports import sprayed
from weft.specs.transport import MrcSpec, WindowSpec

GB = 10**9


def test_the_whole_fabric_fits_into_sixteen_gibibytes():
    params = settings(MrcSpec(window=WindowSpec(mpr=4)), planes=8, rate_bps=800 * GB)
    assert sum(planned_bytes(params, 131_072, 62_000_000)) < 16 * 2**30


def test_more_pairs_and_packets_take_more():
    params = settings(MrcSpec(), planes=8, rate_bps=800 * GB)
    pairs, packets = planned_bytes(params, 10, 1000)
    assert planned_bytes(params, 20, 2000) == (2 * pairs, 2 * packets)


def test_what_does_not_fit_is_refused_with_the_figures():
    assert "at most 2.79 GiB" in check_memory(2 * GB, GB, 4 * GB)
    with pytest.raises(UsageError, match=r"2\.33 GiB are free"):
        check_memory(2 * GB, GB, int(2.5 * GB))


def test_this_machine_says_what_is_free():
    free = free_memory()
    assert free is None or free > 0


@pytest.mark.parametrize("transport", ["mrc", "uet", "reps"])
def test_windows_have_room_for_the_packets_there_will_be_and_nothing_else_changes(
    transport: str, monkeypatch: pytest.MonkeyPatch
):
    faults = (fault("loss", "link0-p0-i0", amount=0.2), fault("black-hole", "t1-p1-i1", 3, 30))
    spec = scenario(flows((0, 5, 600_000), (1, 5, 10_000), (5, 0, 600_000)), faults=faults)
    found = []
    for least in (sprayed._LEAST_SLOTS, 2**20):
        monkeypatch.setattr(sprayed, "_LEAST_SLOTS", least)
        world = run_world(spec, transport=transport, seed=4)
        assert isinstance(world.endpoints, sprayed.SprayedEndpoints)
        halves, counters = world.endpoints.host_state, world.endpoints.counters()
        counted = {name: column.tolist() for name, column in counters.items()}
        found.append((halves.s.packets.shape[1], halves.r.qp.tolist(), counted))
    (few, *first), (many, *second) = found
    assert few == 256 < many, "147 packets of the longest pair need no more"
    assert first == second
