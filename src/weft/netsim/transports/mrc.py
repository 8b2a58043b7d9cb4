"""MRC: EVs are paths (SRv6), marks mean imbalance inside the fabric, silence retires a path."""

from dataclasses import dataclass

from typing_extensions import override

from weft.core.seeds import Seed
from weft.netsim.host.host_state import TURN
from weft.netsim.model.network import Network
from weft.netsim.transports.sprayed import Spray, SprayedTransport
from weft.specs.transport import MrcSpec


@dataclass(frozen=True)
class Mrc(SprayedTransport[MrcSpec]):
    """MRC, over SRv6 or with structured EVs."""

    denied: frozenset[int] = frozenset()
    """Links that no EV may cross."""
    name: str = "mrc"
    """Its name."""

    @property
    def ecn_last_hop(self) -> bool:
        """Return whether the last hop marks: not in MRC, where incast is no imbalance (facts section 4.4)."""
        return self.spec.ecn_last_hop

    @override
    def protocol(self, network: Network) -> MrcSpec:
        """Return the parameters of MRC's rules."""
        return self.spec

    @override
    def spray(self, network: Network, seed: Seed) -> Spray:
        """Return EVs in turn, each of them a path."""
        return Spray(TURN, denied=self.denied, placed=self.spec.ev.placed)
