"""Random spraying: every packet on a path drawn at random, under a window that never moves."""

from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.seeds import Seed
from weft.netsim.host.host_state import DRAW
from weft.netsim.model.network import Frames, Network
from weft.netsim.model.switching import PLAIN, Switching
from weft.netsim.transports.base import Endpoints, Pair
from weft.netsim.transports.mrc import frames_of
from weft.netsim.transports.sprayed import Spray, SprayedEndpoints, fitted
from weft.specs.rivals import Forwarding, RandomSpec
from weft.specs.transport import CongestionSpec, EvSpec, MrcSpec


@dataclass(frozen=True)
class RandomSpray:
    """Paths at random, a fixed window; packets and recovery are MRC's, but no EV is skipped, retired or proved."""

    spec: RandomSpec
    """Its parameters."""
    fit: bool = True
    """Whether its times are scaled to the fabric's round trip."""
    ecn_last_hop: bool = False
    """Whether the last hop marks; nobody looks at marks here."""
    forwarding: Forwarding = "srv6"
    """Whether its frames are those of MRC over SRv6 or with structured EVs."""
    name: str = "random"
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
        return frames_of(payload, self.forwarding)

    def open(self, network: Network, pairs: Sequence[Pair], seed: Seed, *, fast: bool) -> Endpoints:
        """Return the endpoints of `pairs`."""
        base = MrcSpec(
            ev=EvSpec(active=self.spec.evs, backup=0, min_active=1),
            congestion=CongestionSpec(algorithm="fixed", max_window=self.spec.window),
            trimming=self.spec.trimming,
            retire=False,
            skip=False,
        )
        spec = fitted(base, network) if self.fit else base
        return SprayedEndpoints(network, pairs, spec, seed, spray=Spray(DRAW, echoes=True), fast=fast)
