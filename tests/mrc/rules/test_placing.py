"""Paths by the places of both ends: no path twice, every uplink of a T0 alike, the same number in every plane."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.seeds import Seed
from weft.fabric.graph.shape import Shape
from weft.mrc import columns
from weft.mrc.invariants import check_evs
from weft.mrc.rules.evs import Paths
from weft.mrc.rules.placing import Place, place_evs
from weft.mrc.rules.sender import start_sender
from weft.mrc.rules.settings import settings
from weft.netsim.transports.routing import places_of
from weft.specs.transport import MrcSpec

PLANES = 2
STRIDE = 1024


def placed(shape: Shape, ends: list[tuple[int, int]], per_plane: int, seed: int = 0, lane: int = 0) -> np.ndarray:
    """Return the paths of every pair: pairs x planes x EVs of a plane."""
    spec = MrcSpec.model_validate({"ev": {"active": per_plane * PLANES, "backup": 0, "min_active": 1}})
    sender = columns.make_sender(settings(spec, planes=PLANES, rate_bps=10**11), len(ends))
    places = places_of(shape, Seed(seed))
    paths = Paths(shape.paths, STRIDE, np.zeros(shape.paths, np.int64))
    for pair, (source, destination) in enumerate(ends):
        start_sender(sender, pair, seed + pair, 0, paths)
        near, far = (Place(places.begin[nic], places.add[nic // shape.down], lane) for nic in (source, destination))
        place_evs(sender, pair, near, far, paths)
        check_evs(sender, pair)
    values = sender.evs["value"].reshape(len(ends), PLANES, per_plane)
    assert (values // STRIDE == np.arange(PLANES)[None, :, None]).all() or per_plane > shape.paths
    return values % STRIDE


def shape_of(t0s: int, down: int, up: int) -> Shape:
    return Shape(t0s * down, PLANES, 2, max(down + up, t0s), down=down, up=up)


@given(st.integers(2, 5), st.integers(1, 12), st.integers(1, 16), st.integers(1, 16), st.integers(0, 2**32))
def test_no_path_is_taken_twice_on_any_fabric(t0s: int, down: int, up: int, per_plane: int, seed: int) -> None:
    shape = shape_of(t0s, down, up)
    ends = [(nic, (nic * 7 + down) % shape.hosts) for nic in range(shape.hosts)]
    found = placed(shape, ends, per_plane, seed)
    used = min(per_plane, shape.paths)
    for row in found[:, :, :used].reshape(-1, used):
        assert len(set(row.tolist())) == used


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("down", "up"), [(32, 32), (64, 64), (32, 16), (24, 24)])
def test_the_nics_of_a_t0_load_its_uplinks_more_evenly_than_drawn_ones(down: int, up: int, seed: int) -> None:
    shape, per_plane = shape_of(4, down, up), 8
    to = np.random.default_rng(seed).permutation(shape.hosts)
    found = placed(shape, list(enumerate(to.tolist())), per_plane, seed)
    loads = np.zeros((2, 4, PLANES, up), np.int64)
    for source, destination in enumerate(to.tolist()):
        for plane in range(PLANES):
            loads[0, source // down, plane, found[source, plane]] += 1
            loads[1, destination // down, plane, found[source, plane]] += 1
    share = per_plane / up
    drawn = down * share * (1 - share)
    assert loads.sum() == 2 * shape.hosts * PLANES * per_plane
    # Half of the EVs add nothing to the variance at either end; what is left of chance in so few T0s is a third.
    assert loads.var(axis=-1).mean(axis=(1, 2)).max() < 0.8 * drawn


def test_what_one_end_asks_for_is_even_for_any_t0() -> None:
    shape = shape_of(3, 16, 16)
    places = places_of(shape, Seed(5))
    for t0 in range(3):
        for plane in range(PLANES):
            begin = places.begin.reshape(3, 16, PLANES)[t0, :, plane]
            assert sorted(begin.tolist()) == list(range(16)), "every place begins elsewhere"
            assert sorted(places.add[t0, plane].tolist()) == list(range(16)), "no distance comes twice"


def test_pairs_in_parallel_take_different_paths() -> None:
    shape = shape_of(2, 64, 64)
    one, two = (placed(shape, [(3, 70)], 8, lane=lane)[0] for lane in (0, 8))
    assert len(set(one[0].tolist()) & set(two[0].tolist())) < 6
