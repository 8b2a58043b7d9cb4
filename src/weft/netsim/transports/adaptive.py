"""Adaptive routing: switches pick the least loaded uplink for every packet and pause instead of dropping.

What Spectrum-X is described to do (facts section 8): the choice is the switch's, NICs place packets in any order, the
network is lossless. NICs here run MRC's rules with one entropy value for each plane, which no switch looks at. Its
congestion control is not published; NSCC stands in for it, with marks on every hop.
"""

from dataclasses import dataclass

from typing_extensions import override

from weft.core.seeds import Seed
from weft.netsim.host.host_state import TURN
from weft.netsim.model.network import Network
from weft.netsim.model.switching import MARK_ONE, Marking, Switching
from weft.netsim.transports.roce import pause_of
from weft.netsim.transports.sprayed import Spray, SprayedTransport
from weft.specs.rivals import AdaptiveSpec
from weft.specs.transport import EvSpec, MrcSpec


@dataclass(frozen=True)
class Adaptive(SprayedTransport[AdaptiveSpec]):
    """Adaptive routing over a lossless fabric."""

    ecn_last_hop: bool = True
    """Whether the last hop marks: everywhere, because that is where congestion is."""
    name: str = "adaptive"
    """Its name."""

    @override
    def switching(self, network: Network) -> Switching:
        """Return pauses, the scenario's marks, and the choice of uplinks."""
        queues, bdp = network.spec.queues, network.plane_bdp
        return Switching(
            pause=pause_of(self.spec.pfc, network),
            marking=Marking(round(queues.ecn_low * bdp), round(queues.ecn_high * bdp), MARK_ONE),
            adaptive=True,
            reconvergence_ps=self.spec.reconvergence,
        )

    @override
    def protocol(self, network: Network) -> MrcSpec:
        """Return MRC's recovery and NSCC with one EV for each plane."""
        return MrcSpec(
            ev=EvSpec(active=network.shape.planes, backup=0, min_active=1),
            loss=self.spec.loss,
            window=self.spec.window,
            congestion=self.spec.congestion,
            trimming=False,
            retire=False,
            skip=False,
        )

    @override
    def spray(self, network: Network, seed: Seed) -> Spray:
        """Return planes in turn: which path a packet takes is the switches' choice."""
        return Spray(TURN, ev_paths=1)
