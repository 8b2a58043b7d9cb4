"""Ordinary routes take one fixed path, and it is the path of one EV."""

from hypothesis import given
from tests.fabric.conftest import fabric_specs

from weft.fabric.addressing.forwarding import ForwardingPlane
from weft.fabric.addressing.paths import links_on_path
from weft.fabric.addressing.srv6 import Addressing
from weft.fabric.graph.shape import shape_of
from weft.fabric.graph.topology import build
from weft.specs.fabric import FabricSpec
from weft_lab.network import plain_routes as plain


@given(fabric_specs())
def test_ordinary_routes_lead_every_pair_along_the_path_of_one_ev(spec: FabricSpec):
    addressing, topology = Addressing(shape_of(spec)), build(spec)
    routes = plain.plain_routes(addressing, ForwardingPlane(topology, addressing.plan))
    next_port = {(node, match): port for (node, port), matches in routes.by_port.items() for match in matches}
    for source in range(min(3, spec.gpus)):
        for destination in {0, spec.gpus // 2, spec.gpus - 1} - {source}:
            plane = (source + destination) % spec.planes
            crossed = [topology.ports.of(source)[plane]]
            node = topology.far_end(int(crossed[0]), source)
            while node != destination:
                assert len(crossed) <= 6
                port = next_port[node, f"{plain.plane_address(plane, destination)}/128"]
                crossed.append(topology.ports.of(node)[port])
                node = topology.far_end(int(crossed[-1]), node)
            ev = plain.ev_to(addressing, plane, destination)
            assert tuple(map(int, crossed)) == links_on_path(addressing.shape, source, destination, ev)
