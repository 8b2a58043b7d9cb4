"""Ultra Ethernet's transport: NSCC with spraying over hashed entropy values; no path is ever blamed for silence."""

from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.seeds import Seed
from weft.mrc.columns import EV_PROBE, NACK, PORT_STATUS, PROBE, SACK
from weft.netsim.host.host_state import EV_ANSWER, PORT_ANSWER, RECYCLE, TURN
from weft.netsim.model.network import Frames, Network
from weft.netsim.model.switching import PLAIN, Switching
from weft.netsim.transports.base import Endpoints, Pair
from weft.netsim.transports.routing import HASHED
from weft.netsim.transports.sprayed import Spray, SprayedEndpoints, fitted
from weft.specs.rivals import UetSpec
from weft.specs.transport import EvSpec, MrcSpec

_CONTROL = (SACK, NACK, PROBE, EV_PROBE, PORT_STATUS, EV_ANSWER, PORT_ANSWER)


@dataclass(frozen=True)
class Uet:
    """UET with sender-based control."""

    spec: UetSpec
    """Its parameters."""
    fit: bool = True
    """Whether its times are scaled to the fabric's round trip."""
    ecn_last_hop: bool = True
    """Whether the last hop marks: everywhere, as UEC recommends."""
    name: str = "uet"
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
        """Return how large its packets are around `payload` bytes."""
        return Frames(payload, self.spec.header, dict.fromkeys(_CONTROL, self.spec.control))

    def open(self, network: Network, pairs: Sequence[Pair], seed: Seed, *, fast: bool) -> Endpoints:
        """Return the endpoints of `pairs`."""
        mixed = self.spec.spray == "mixed"
        base = MrcSpec(
            ev=EvSpec(active=self.spec.evs, backup=0, min_active=1, most_skips=1),
            loss=self.spec.loss,
            window=self.spec.window,
            congestion=self.spec.congestion,
            trimming=self.spec.trimming,
            retire=False,
            skip=self.spec.spray != "oblivious",
            even=False,
        )
        spec = fitted(base, network) if self.fit else base
        return SprayedEndpoints(
            network, pairs, spec, seed, spray=Spray(RECYCLE if mixed else TURN, echoes=True), route_by=HASHED,
            route_word=seed.branch("hash").word(), ev_paths=max(1, self.spec.evs // network.shape.planes), fast=fast,
        )  # fmt: skip
