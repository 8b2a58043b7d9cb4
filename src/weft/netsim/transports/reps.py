"""REPS: entropies hashed to paths by the switches; those that worked are used again (arXiv 2407.21625).

NICs run MRC's acknowledgements, repair and NSCC, as UET's do here, and answer on the entropy of what they answer; only
the choice of entropies differs from UET, and no path is ever retired.
"""

from dataclasses import dataclass

from typing_extensions import override

from weft.core.seeds import Seed
from weft.netsim.host.host_state import REPS
from weft.netsim.model.network import Network
from weft.netsim.transports.sprayed import Spray, SprayedTransport, hashed
from weft.specs.rivals import RepsSpec
from weft.specs.transport import EvSpec, MrcSpec


@dataclass(frozen=True)
class Reps(SprayedTransport[RepsSpec]):
    """REPS with sender-based control."""

    ecn_last_hop: bool = True
    """Whether the last hop marks: everywhere."""
    name: str = "reps"
    """Its name."""

    @override
    def protocol(self, network: Network) -> MrcSpec:
        """Return MRC's recovery and NSCC, with no path blamed."""
        return MrcSpec(
            ev=EvSpec(active=self.spec.evs, backup=0, min_active=1),
            loss=self.spec.loss,
            window=self.spec.window,
            congestion=self.spec.congestion,
            trimming=self.spec.trimming,
            retire=False,
            skip=False,
        )

    @override
    def spray(self, network: Network, seed: Seed) -> Spray:
        """Return hashed entropies, those that worked first."""
        spray = Spray(REPS, self.spec.ring, self.spec.freeze, echoes=True)
        return hashed(spray, self.spec.evs, network, seed)
