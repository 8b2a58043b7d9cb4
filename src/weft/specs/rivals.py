"""What can be written about the transports that MRC is compared with."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from weft.core import quantity
from weft.core.spec import Check, Duration, Quantity, Rate, Size, Spec
from weft.core.units import BitsPerSecond, Bytes, Picoseconds
from weft.specs.transport import LossSpec, MrcSpec, UecCongestionSpec, WindowSpec

MOST_QUEUE_PAIRS = 16
"""Queue pairs that RoCE may cut a flow over: `roce:16`."""
TransportName = Literal[
    "mrc", "uet", "random", "reps", "adaptive", "roce", "roce:1", "roce:2", "roce:3", "roce:4", "roce:5", "roce:6",
    "roce:7", "roce:8", "roce:9", "roce:10", "roce:11", "roce:12", "roce:13", "roce:14", "roce:15", "roce:16",
]  # fmt: skip
Forwarding = Literal["srv6", "structured"]
"""How switches learn the path that an EV names."""
_US = 10**6
_MBPS = 10**6
_MOST_BURST = 10**6


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
    congestion: UecCongestionSpec = UecCongestionSpec()
    """NSCC (section 4.4)."""
    loss: LossSpec = LossSpec()
    """Loss and timers."""
    window: WindowSpec = WindowSpec()
    """Windows and acknowledgement: every 16 KiB, and marks at once. Of htsim's permutations 0.28 to 0.35 of the hops of
    data packets are counted for control packets (facts, simulators 2), which is that and not one for each."""
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


class PfcSpec(Spec):
    """Priority flow control (IEEE 802.1Qbb): a switch pauses who sends to it before it would have to drop.

    The thresholds are in bandwidth-delay products of one plane and count what came over one port and waits. Headroom
    above `xoff` is what the longest link can still bring.
    """

    xoff: Annotated[float, Field(gt=0, le=64)] = 1.0
    """Above so much a pause is sent. Ours: what a queue holds before it would trim."""
    xon: Annotated[float, Field(ge=0, le=64)] = 0.8
    """At so much or less the port may go on. Ours: below `xoff` by more than a pause takes to travel twice."""
    reaction: Duration = Picoseconds(600_000)
    """From a pause frame's arrival to the port stopping; IEEE 802.1Qbb allows 614 ns."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(("xon", "xoff"), lambda s: None if s.xon < s.xoff else "xon must lie below xoff; lower it"),
    )


class DcqcnSpec(Spec):
    """DCQCN (Zhu et al., SIGCOMM 2015); defaults are the values that section 5 of the paper ends with, for 40 Gb/s.

    Queue limits and steps of the rate are scaled from `line_rate` to that of the fabric's ports, times are not. The
    built-in scenario `rccl-all-to-all` has what AMD recommends for its NICs instead.
    """

    on: bool = True
    """Whether there is any: without it PFC alone holds senders back."""
    line_rate: Rate = BitsPerSecond(40_000 * _MBPS)
    """Line rate for which the queue limits and the steps below were chosen."""
    ecn_low: Size = Bytes(5_000)
    """Queue from which packets are marked: Kmin."""
    ecn_high: Size = Bytes(200_000)
    """Queue from which all packets are marked: Kmax."""
    ecn_most: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share of packets marked just below `ecn_high`: Pmax."""
    gain: Annotated[float, Field(gt=0, le=1)] = 1 / 256
    """Weight of the newest CNP in alpha: g."""
    first_alpha: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Alpha before the first CNP: at 1 it halves the rate."""
    cnp_interval: Duration = Picoseconds(50 * _US)
    """Least time between two CNPs of a queue pair: N."""
    alpha_timer: Duration = Picoseconds(55 * _US)
    """Time without a CNP after which alpha decays: K."""
    rise_timer: Duration = Picoseconds(55 * _US)
    """Time between two increases of the rate: T."""
    rise_bytes: Size = Bytes(10_000_000)
    """Bytes between two increases of the rate: B."""
    fast_rounds: Annotated[int, Field(ge=1, le=100)] = 5
    """Increases that only halve the distance to the target: F."""
    additive: Rate = BitsPerSecond(40 * _MBPS)
    """Step of the target after that: R_AI."""
    hyper: Rate = BitsPerSecond(400 * _MBPS)
    """Step of the target after F rounds of both: R_HAI; ten times R_AI, as NICs are set by default."""
    least_rate: Rate = BitsPerSecond(100 * _MBPS)
    """The rate never falls below this. Ours."""
    burst: Size = Bytes(0)
    """Bytes that a queue pair which has rested may send at once, whatever its rate: its token bucket."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(("burst",), lambda s: None if s.burst <= _MOST_BURST else "burst is 1 MB at most; write less"),
    )


class RoceSpec(Spec):
    """RoCEv2 with PFC, DCQCN and go-back-N, each queue pair on one path that switches hash it to."""

    pfc: PfcSpec = PfcSpec()
    """Pauses."""
    dcqcn: DcqcnSpec = DcqcnSpec()
    """Rate control."""
    timeout: Annotated[int, Field(ge=1, le=31)] = 14
    """Local acknowledgement timeout t: 4.096 us x 2^t, so 67 ms, as RDMA tools set it (InfiniBand 9.7.6.1.3)."""
    retries: Annotated[int, Field(ge=0, le=7)] = 7
    """Timeouts in a row after which a queue pair fails."""
    ack_every: Annotated[int, Field(ge=1, le=1024)] = 4
    """Packets that one acknowledgement answers for within a message. Ours."""
    window: Annotated[int, Field(ge=1, le=8_388_608)] = 65536
    """Most packets in flight; the numbers on the wire allow 2^23, and nothing but the rate limits a sender."""
    reconvergence: Duration | None = None
    """How long routing takes to go round a dead link: seconds with BGP; never (static routes) where absent."""


class RepsSpec(Spec):
    """REPS (arXiv 2407.21625): entropy values that worked are used again, oldest first; others are drawn at random."""

    evs: Annotated[int, Field(ge=1, le=4096)] = 256
    """Entropy values to draw from, hashed to paths by the switches."""
    ring: Annotated[int, Field(ge=1, le=256)] = 8
    """Values kept that came back unmarked."""
    freeze: Duration = Picoseconds(10_000 * _US)
    """How long, after a loss that is no congestion, only values known to work are used."""
    congestion: UecCongestionSpec = UecCongestionSpec()
    """Congestion control: REPS leaves it open; NSCC here."""
    loss: LossSpec = LossSpec()
    """Loss and timers."""
    window: WindowSpec = WindowSpec.model_validate({"ack_bytes": "4 KiB"})
    """Windows and acknowledgement; every packet is acknowledged, because what is not named is not used again."""
    trimming: bool = True
    """Whether switches trim instead of dropping."""


class AdaptiveSpec(Spec):
    """Adaptive routing: switches pick the least loaded uplink for each packet, and nothing is dropped (PFC).

    NICs take packets in any order, as Spectrum-X's do (section 8).
    """

    pfc: PfcSpec = PfcSpec()
    """Pauses."""
    congestion: UecCongestionSpec = UecCongestionSpec(target_delay=1.0)
    """Congestion control at the sender: the vendor's own is not published; NSCC here."""
    loss: LossSpec = LossSpec.model_validate({"spread": "40 us", "spread_max": "160 us", "probe_after": "52 us"})
    """Loss and timers; nothing is dropped, so packets that a pause holds up are given four times as long."""
    window: WindowSpec = WindowSpec()
    """Windows and acknowledgement."""
    reconvergence: Duration | None = None
    """How long routing takes to go round a dead link beyond a switch's own; never where absent."""


class PostingSpec(Spec):
    """How a flow is handed to its queue pairs: as one message, or in pieces as a collective library does it."""

    piece: Annotated[Bytes, Quantity(quantity.SIZE, at_least=1)] | None = None
    """Bytes of a message; a flow is one message where absent. NCCL and RCCL: 128 KiB of a send
    (NCCL_P2P_NET_CHUNKSIZE), 1 MiB of a ring (two steps of an eighth of NCCL_BUFFSIZE)."""
    under_way: Annotated[int, Field(ge=1, le=1024)] = 8
    """Messages of a flow that its sender may wait for at once: buffers of a channel (NCCL_STEPS)."""
    turns: bool = False
    """Whether a message goes to one queue pair of its flow, the next in turn, as NCCL and RCCL do it unless set
    otherwise (NCCL_IB_SPLIT_DATA_ON_QPS = 0); else every queue pair takes an equal part of it."""


class TransportsSpec(Spec):
    """Which transports run, and how each is set."""

    use: Annotated[tuple[TransportName, ...], Field(min_length=1, strict=False)] = ("mrc",)
    """The transports that run one after the other on the same traffic; `--transport` overrides it."""
    fit: bool = True
    """Whether every time in these tables is scaled by the fabric's round trip over `congestion.base_rtt`, for which it
    was chosen (the port remap delay excepted). Off takes them as they are written."""
    forwarding: Forwarding = "srv6"
    """How switches learn an EV's path: by an SRv6 address in a second IPv6 header, 166 bytes in all around 4,096,
    as in the published clusters of 100,000 GPUs; or by fields of the EV that switches read themselves (structured EVs),
    without that header, 126 bytes in all (section 3). Paths are the same. REPS, random spraying and adaptive routing
    have MRC's frames, whichever these are."""
    posting: PostingSpec = PostingSpec()
    """Messages and queue pairs of a flow, whichever transport carries it."""
    mrc: MrcSpec = MrcSpec()
    """MRC."""
    uet: UetSpec = UetSpec()
    """Ultra Ethernet's transport."""
    random: RandomSpec = RandomSpec()
    """Random spraying."""
    roce: RoceSpec = RoceSpec()
    """RoCEv2."""
    reps: RepsSpec = RepsSpec()
    """REPS."""
    adaptive: AdaptiveSpec = AdaptiveSpec()
    """Adaptive routing in the switches."""
