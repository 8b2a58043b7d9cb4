"""MRC: EVs are paths (SRv6), marks mean imbalance inside the fabric, silence retires a path."""

from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.seeds import Seed
from weft.mrc.columns import DATA, EV_PROBE, NACK, PORT_STATUS, PROBE, SACK
from weft.netsim.hosts import EV_ANSWER, PORT_ANSWER, TURN
from weft.netsim.network import Frames, Network
from weft.netsim.switching import PLAIN, Switching
from weft.netsim.transports.base import Endpoints, Pair
from weft.netsim.transports.sprayed import SprayedEndpoints, fitted
from weft.specs.transport import MrcSpec

ETHERNET = 38
"""Bytes of Ethernet around a packet: header, check, preamble and gap."""
_OUTER, _INNER, _UDP, _BTH, _ICRC = 40, 40, 8, 12, 4
_AROUND = ETHERNET + _OUTER + _INNER + _UDP + _BTH + _ICRC
_BODY = {DATA: 24, SACK: 36, NACK: 20, PROBE: 16, EV_PROBE: 16, PORT_STATUS: 16, EV_ANSWER: 36, PORT_ANSWER: 36}
"""Bytes of MRC's own headers by kind (facts section 3): METH + TSETH + RETH = 24, SETH + CC_STATE = 36, and so on."""


@dataclass(frozen=True)
class Mrc:
    """MRC over SRv6."""

    spec: MrcSpec
    """Its parameters."""
    fit: bool = True
    """Whether its times are scaled to the fabric's round trip."""
    denied: frozenset[int] = frozenset()
    """Links that no EV may cross."""
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
        return Frames(payload, _AROUND + _BODY[DATA], {kind: _AROUND + size for kind, size in _BODY.items()})

    def open(self, network: Network, pairs: Sequence[Pair], seed: Seed, *, fast: bool) -> Endpoints:
        """Return the endpoints of `pairs`."""
        spec = fitted(self.spec, network) if self.fit else self.spec
        return SprayedEndpoints(network, pairs, spec, seed, spray=TURN, denied=self.denied, fast=fast)
