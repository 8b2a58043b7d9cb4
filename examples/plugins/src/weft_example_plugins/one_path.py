"""A transport: MRC's packets, acknowledgements and recovery, but a single path for each queue pair.

It shows what spraying is worth: everything else is as in MRC.
"""

from typing_extensions import override

from weft.core.seeds import Seed
from weft.netsim.host.host_state import TURN
from weft.netsim.model.network import Network
from weft.netsim.transports.sprayed import Spray, SprayedTransport
from weft.specs.rivals import TransportsSpec
from weft.specs.transport import EvSpec, MrcSpec


class OnePath(SprayedTransport[MrcSpec]):
    """MRC with one EV, which is never skipped or retired: there is no other to take its place."""

    name = "one-path"
    ecn_last_hop = False

    @override
    def protocol(self, network: Network) -> MrcSpec:
        """Return MRC's parameters with a single EV."""
        one = EvSpec(active=1, backup=0, min_active=1)
        return self.spec.model_copy(update={"ev": one, "retire": False, "skip": False})

    @override
    def spray(self, network: Network, seed: Seed) -> Spray:
        """Return how senders choose among their EVs: in turn, of which there is one."""
        return Spray(TURN)


def one_path(spec: TransportsSpec) -> OnePath:
    """Return the transport, set as a scenario's `[transport]` says for MRC."""
    return OnePath(spec.mrc, spec.fit, spec.forwarding)
