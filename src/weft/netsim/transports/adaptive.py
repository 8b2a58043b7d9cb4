"""Adaptive routing: switches pick the least loaded uplink for every packet and pause instead of dropping.

What Spectrum-X is described to do (facts section 8): the choice is the switch's, NICs place packets in any order, the
network is lossless. NICs here run MRC's rules with one entropy value for each plane, which no switch looks at. Its
congestion control is not published; NSCC stands in for it, with marks on every hop.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.seeds import Seed
from weft.netsim.host.host_state import TURN
from weft.netsim.model.network import Frames, Network
from weft.netsim.model.switching import MARK_ONE, Marking, Switching
from weft.netsim.transports.base import Endpoints, Pair
from weft.netsim.transports.mrc import frames_of
from weft.netsim.transports.roce import pause_of
from weft.netsim.transports.sprayed import SprayedEndpoints, fitted
from weft.specs.rivals import AdaptiveSpec, Forwarding
from weft.specs.transport import EvSpec, MrcSpec


@dataclass(frozen=True)
class Adaptive:
    """Adaptive routing over a lossless fabric."""

    spec: AdaptiveSpec
    """Its parameters."""
    fit: bool = True
    """Whether its times are scaled to the fabric's round trip."""
    ecn_last_hop: bool = True
    """Whether the last hop marks: everywhere, because that is where congestion is."""
    trimming: bool = False
    """Whether its switches trim: they pause."""
    forwarding: Forwarding = "srv6"
    """Whether its frames are those of MRC over SRv6 or with structured EVs."""
    name: str = "adaptive"
    """Its name."""
    queue_pairs: int = 1
    """Queue pairs of a flow: its packets are spread whatever it is."""

    def frames(self, payload: int) -> Frames:
        """Return how large its packets are around `payload` bytes: MRC's, so that only the choice of paths differs."""
        return frames_of(payload, self.forwarding)

    def switching(self, network: Network) -> Switching:
        """Return pauses, the scenario's marks, and the choice of uplinks."""
        queues, bdp = network.spec.queues, network.plane_bdp
        return Switching(
            pause=pause_of(self.spec.pfc, network),
            marking=Marking(round(queues.ecn_low * bdp), round(queues.ecn_high * bdp), MARK_ONE),
            adaptive=True,
            reconvergence_ps=self.spec.reconvergence,
        )

    def open(self, network: Network, pairs: Sequence[Pair], seed: Seed, *, fast: bool) -> Endpoints:
        """Return the endpoints of `pairs`."""
        base = MrcSpec(
            ev=EvSpec(active=network.shape.planes, backup=0, min_active=1),
            loss=self.spec.loss,
            window=self.spec.window,
            congestion=self.spec.congestion,
            trimming=False,
            retire=False,
            skip=False,
        )
        spec = fitted(base, network) if self.fit else base
        return SprayedEndpoints(network, pairs, spec, seed, spray=TURN, ev_paths=1, fast=fast)
