"""MRC: EVs are paths (SRv6), marks mean imbalance inside the fabric, silence retires a path."""

from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.seeds import Seed
from weft.mrc.columns import DATA, EV_PROBE, NACK, PORT_STATUS, PROBE, SACK
from weft.netsim.host.host_state import EV_ANSWER, PORT_ANSWER, TURN
from weft.netsim.model.network import Frames, Network
from weft.netsim.model.switching import PLAIN, Switching
from weft.netsim.transports.base import Endpoints, Pair
from weft.netsim.transports.sprayed import SprayedEndpoints, fitted
from weft.specs.rivals import Forwarding
from weft.specs.transport import MrcSpec

ETHERNET = 38
"""Bytes of Ethernet around a packet: header, check, preamble and gap."""
_IPV6, _UDP, _BTH, _ICRC = 40, 8, 12, 4
_BODY = {DATA: 24, SACK: 36, NACK: 20, PROBE: 16, EV_PROBE: 16, PORT_STATUS: 16, EV_ANSWER: 36, PORT_ANSWER: 36}
"""Bytes of MRC's own headers by kind (facts section 3): METH + TSETH + RETH = 24, SETH + CC_STATE = 36, and so on."""


def frames_of(payload: int, forwarding: Forwarding) -> Frames:
    """Return how large MRC's packets are around `payload` bytes; SRv6 puts a second IPv6 header around each."""
    around = ETHERNET + _IPV6 * (2 if forwarding == "srv6" else 1) + _UDP + _BTH + _ICRC
    return Frames(payload, around + _BODY[DATA], {kind: around + size for kind, size in _BODY.items()})


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
