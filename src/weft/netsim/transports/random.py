"""Random spraying: every packet on a path drawn at random, under a window that never moves."""

from dataclasses import dataclass

from typing_extensions import override

from weft.core.seeds import Seed
from weft.netsim.host.host_state import DRAW
from weft.netsim.model.network import Network
from weft.netsim.transports.sprayed import Spray, SprayedTransport
from weft.specs.rivals import RandomSpec
from weft.specs.transport import CongestionSpec, EvSpec, MrcSpec


@dataclass(frozen=True)
class RandomSpray(SprayedTransport[RandomSpec]):
    """Paths at random, a fixed window; packets and recovery are MRC's, but no EV is skipped, retired or proved."""

    ecn_last_hop: bool = False
    """Whether the last hop marks; nobody looks at marks here."""
    name: str = "random"
    """Its name."""

    @override
    def protocol(self, network: Network) -> MrcSpec:
        """Return MRC's recovery under a window that never moves."""
        return MrcSpec(
            ev=EvSpec(active=self.spec.evs, backup=0, min_active=1),
            congestion=CongestionSpec(algorithm="fixed", max_window=self.spec.window),
            trimming=self.spec.trimming,
            retire=False,
            skip=False,
        )

    @override
    def spray(self, network: Network, seed: Seed) -> Spray:
        """Return a draw for every packet."""
        return Spray(DRAW, echoes=True)
