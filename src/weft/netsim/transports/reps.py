"""REPS: entropies hashed to paths by the switches; those that worked are used again (arXiv 2407.21625).

NICs run MRC's acknowledgements, repair and NSCC, as UET's do here, and answer on the entropy of what they answer; only
the choice of entropies differs from UET, and no path is ever retired.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.seeds import Seed
from weft.netsim.host.host_state import REPS
from weft.netsim.model.network import Frames, Network
from weft.netsim.model.switching import PLAIN, Switching
from weft.netsim.transports.base import Endpoints, Pair
from weft.netsim.transports.mrc import frames_of
from weft.netsim.transports.routing import HASHED
from weft.netsim.transports.sprayed import Spray, SprayedEndpoints, fitted
from weft.specs.rivals import Forwarding, RepsSpec
from weft.specs.transport import EvSpec, MrcSpec


@dataclass(frozen=True)
class Reps:
    """REPS with sender-based control."""

    spec: RepsSpec
    """Its parameters."""
    fit: bool = True
    """Whether its times are scaled to the fabric's round trip."""
    ecn_last_hop: bool = True
    """Whether the last hop marks: everywhere."""
    forwarding: Forwarding = "srv6"
    """Whether its frames are those of MRC over SRv6 or with structured EVs."""
    name: str = "reps"
    """Its name."""
    queue_pairs: int = 1
    """Queue pairs of a flow: spraying needs no more than one."""

    @property
    def trimming(self) -> bool:
        """Return whether its switches trim."""
        return self.spec.trimming

    def switching(self, network: Network) -> Switching:  # noqa: ARG002  others need it
        """Return what it wants of switches: nothing more."""
        return PLAIN

    def frames(self, payload: int) -> Frames:
        """Return how large its packets are around `payload` bytes: MRC's, so that only the choice of paths differs."""
        return frames_of(payload, self.forwarding)

    def open(self, network: Network, pairs: Sequence[Pair], seed: Seed, *, fast: bool) -> Endpoints:
        """Return the endpoints of `pairs`."""
        base = MrcSpec(
            ev=EvSpec(active=self.spec.evs, backup=0, min_active=1),
            loss=self.spec.loss,
            window=self.spec.window,
            congestion=self.spec.congestion,
            trimming=self.spec.trimming,
            retire=False,
            skip=False,
        )
        spec = fitted(base, network) if self.fit else base
        spray = Spray(REPS, self.spec.ring, self.spec.freeze, echoes=True)
        return SprayedEndpoints(
            network, pairs, spec, seed, spray=spray, route_by=HASHED,
            route_word=seed.branch("hash").word(), ev_paths=max(1, self.spec.evs // network.shape.planes), fast=fast,
        )  # fmt: skip
