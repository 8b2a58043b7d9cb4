"""Ultra Ethernet's transport: NSCC with spraying over hashed entropy values; no path is ever blamed for silence."""

from dataclasses import dataclass

from typing_extensions import override

from weft.core.seeds import Seed
from weft.netsim.host.host_state import RECYCLE, TURN
from weft.netsim.model.network import Frames, Network
from weft.netsim.transports.sprayed import CONTROL_KINDS, Spray, SprayedTransport, hashed
from weft.specs.rivals import UetSpec
from weft.specs.transport import EvSpec, MrcSpec


@dataclass(frozen=True)
class Uet(SprayedTransport[UetSpec]):
    """UET with sender-based control."""

    ecn_last_hop: bool = True
    """Whether the last hop marks: everywhere, as UEC recommends."""
    name: str = "uet"
    """Its name."""

    @override
    def frames(self, payload: int) -> Frames:
        """Return how large its packets are around `payload` bytes."""
        return Frames(payload, self.spec.header, dict.fromkeys(CONTROL_KINDS, self.spec.control))

    @override
    def protocol(self, network: Network) -> MrcSpec:
        """Return MRC's recovery and NSCC, with no path blamed."""
        return MrcSpec(
            ev=EvSpec(active=self.spec.evs, backup=0, min_active=1, most_skips=1),
            loss=self.spec.loss.model_copy(update={"infer": False}),
            window=self.spec.window,
            congestion=self.spec.congestion,
            trimming=self.spec.trimming,
            retire=False,
            skip=self.spec.spray != "oblivious",
            even=False,
        )

    @override
    def spray(self, network: Network, seed: Seed) -> Spray:
        """Return hashed entropies, in turn or unmarked ones again first."""
        kind = RECYCLE if self.spec.spray == "mixed" else TURN
        return hashed(Spray(kind, echoes=True), self.spec.evs, network, seed)
