import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.fabric.graph.shape import shape_of
from weft.specs import load_site
from weft.specs.fabric import FabricSpec


@pytest.mark.parametrize(
    ("site", "sizes"),
    [
        # NICs, NICs under a T0 and hops as in arXiv 2605.04333, section 2; the 4x200G ones and all other counts follow
        # from k ports: k^2/2 or k^3/4 NICs, 3k/2 or 5k^2/4 switches in a plane.
        ("gb200-8x100g-131k", (131_072, 6_144, 256, 256, 3, (1_048_576, 1_048_576))),
        ("gb200-4x200g-32k", (32_768, 1_536, 128, 128, 3, (131_072, 131_072))),
        ("gb200-3tier-64k", (65_536, 5_120, 32, 1_024, 5, (65_536, 65_536, 65_536))),
    ],
)
def test_the_built_in_sites_have_the_published_sizes(site: str, sizes: tuple[int | tuple[int, ...], ...]):
    shape = shape_of(load_site(site).fabric)
    assert (shape.hosts, shape.switches, shape.down, shape.paths, shape.hops_max, shape.links) == sizes


@given(spec=st.from_type(FabricSpec))
def test_a_compact_build_has_the_same_links_and_never_more_switches(spec: FabricSpec):
    growable = shape_of(spec.model_copy(update={"build": "growable"}))
    compact = shape_of(spec.model_copy(update={"build": "compact"}))
    assert compact.links == growable.links
    assert compact.switches <= growable.switches
    assert growable.bundle == 1
    top = compact.t1 if spec.tiers == 2 else compact.t2
    assert top * compact.bundle == (growable.t1 if spec.tiers == 2 else growable.t2)


def test_a_half_empty_plane_is_built_compactly_with_half_the_spines():
    fabric = load_site("gb200-8x100g-131k").fabric.model_copy(update={"gpus": 65_536, "build": "compact"})
    shape = shape_of(fabric)
    assert (shape.t0, shape.t1, shape.bundle) == (256, 128, 2)
