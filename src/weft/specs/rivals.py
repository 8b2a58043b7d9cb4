"""What can be written about the transports that MRC is compared with."""

from typing import Annotated, Literal

from pydantic import Field

from weft.core.spec import Size, Spec
from weft.core.units import Bytes
from weft.specs.transport import CongestionSpec, LossSpec, MrcSpec, WindowSpec

TransportName = Literal["mrc", "uet", "random"]


class UetSpec(Spec):
    """Ultra Ethernet's transport with sender-based control (NSCC), as UEC 1.0 recommends it."""

    spray: Literal["oblivious", "bitmap", "mixed"] = "mixed"
    """How an entropy value is chosen: in a shuffled turn whatever happens; the same, passing over marked ones once; or
    values whose last packet came back unmarked first, and then the bitmap (section 8)."""
    evs: Annotated[int, Field(ge=1, le=4096)] = 64
    """Entropy values of a connection; switches hash them, so two may share a path. UET uses 64 to 256 (section 8)."""
    header: Size = Bytes(64)
    """Bytes around a payload on the wire, as htsim counts them."""
    control: Size = Bytes(64)
    """Bytes of an acknowledgement on the wire."""
    congestion: CongestionSpec = CongestionSpec()
    """NSCC (section 4.4)."""
    loss: LossSpec = LossSpec()
    """Loss and timers."""
    window: WindowSpec = WindowSpec()
    """Windows and acknowledgement."""
    trimming: bool = True
    """Whether switches trim instead of dropping."""


class RandomSpec(Spec):
    """Every packet on a path drawn at random, a window that never moves: the baseline of all spraying."""

    evs: Annotated[int, Field(ge=1, le=4096)] = 256
    """Entropy values to draw from."""
    window: Annotated[float, Field(gt=0, le=16)] = 1.5
    """The window, in bandwidth-delay products."""
    trimming: bool = True
    """Whether switches trim instead of dropping."""


class TransportsSpec(Spec):
    """Which transports run, and how each is set."""

    use: Annotated[tuple[TransportName, ...], Field(min_length=1, strict=False)] = ("mrc",)
    """The transports that run one after the other on the same traffic; `--transport` overrides it."""
    fit: bool = True
    """Whether every time in these tables is scaled by the fabric's round trip over `congestion.base_rtt`, for which it
    was chosen (the port remap delay excepted). Off takes them as they are written."""
    mrc: MrcSpec = MrcSpec()
    """MRC."""
    uet: UetSpec = UetSpec()
    """Ultra Ethernet's transport."""
    random: RandomSpec = RandomSpec()
    """Random spraying."""
