"""MRC: EVs are paths (SRv6), marks mean imbalance inside the fabric, silence retires a path."""

from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.seeds import Seed
from weft.mrc.columns import DATA, EV_PROBE, NACK, PORT_STATUS, PROBE, SACK
from weft.mrc.wire import packets
from weft.mrc.wire.overhead import frame_overhead
from weft.netsim.host.host_state import EV_ANSWER, PORT_ANSWER, TURN
from weft.netsim.model.network import Frames, Network
from weft.netsim.model.switching import PLAIN, Switching
from weft.netsim.transports.base import Endpoints, Pair
from weft.netsim.transports.sprayed import SprayedEndpoints, fitted
from weft.specs.rivals import Forwarding
from weft.specs.transport import MrcSpec

_OPCODES = {
    DATA: packets.MIDDLE,
    SACK: packets.SACK,
    NACK: packets.NACK,
    PROBE: packets.PROBE,
    **dict.fromkeys((EV_PROBE, PORT_STATUS), packets.ENDPOINT_REQUEST),
    **dict.fromkeys((EV_ANSWER, PORT_ANSWER), packets.ENDPOINT_RESPONSE),
}
"""The opcode that stands for each kind: from it follow the headers, and from these the size."""


def frames_of(payload: int, forwarding: Forwarding) -> Frames:
    """Return how large MRC's packets are around `payload` bytes; SRv6 puts a second IPv6 header around each."""
    ipv6_headers = 2 if forwarding == "srv6" else 1
    sizes = {kind: frame_overhead(opcode, ipv6_headers=ipv6_headers) for kind, opcode in _OPCODES.items()}
    return Frames(payload, sizes[DATA], sizes)


@dataclass(frozen=True)
class Mrc:
    """MRC, over SRv6 or with structured EVs."""

    spec: MrcSpec
    """Its parameters."""
    fit: bool = True
    """Whether its times are scaled to the fabric's round trip."""
    denied: frozenset[int] = frozenset()
    """Links that no EV may cross."""
    forwarding: Forwarding = "srv6"
    """How switches are told its paths."""
    name: str = "mrc"
    """Its name."""
    queue_pairs: int = 1
    """Queue pairs of a flow: spraying needs no more than one."""

    @property
    def ecn_last_hop(self) -> bool:
        """Return whether the last hop marks: not in MRC, where incast is no imbalance (facts section 4.4)."""
        return self.spec.ecn_last_hop

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
        spec = fitted(self.spec, network) if self.fit else self.spec
        return SprayedEndpoints(network, pairs, spec, seed, spray=TURN, denied=self.denied, fast=fast)
