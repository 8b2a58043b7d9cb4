"""What can be written about the transport: every parameter of MRC with its unit, its meaning and where it comes from.

Section numbers mean the fact sheet on MRC that the documentation reprints (docs/protocol.md); "ours" marks a choice
where the public record is silent.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from weft.core.spec import Check, Duration, Size, Spec
from weft.core.units import Bytes, Picoseconds

_US = 10**6
_INFINITE_RETRIES = 25
_PSN_PER_MPR = 128


class EvSpec(Spec):
    """The entropy values of a queue pair: how many, and when one is left and taken back."""

    active: Annotated[int, Field(ge=1, le=4096)] = 256
    """EVs in rotation, all planes together. 128 to 256 in use; about one per packet in flight (section 4.1)."""
    backup: Annotated[int, Field(ge=0, le=4096)] = 64
    """EVs kept ready to replace a retired one of the same plane. The size is not published; ours: a quarter."""
    min_active: Annotated[int, Field(ge=1, le=4096)] = 64
    """EVs below which silence retires no more of them, the same share where there are fewer paths than EVs: the
    interface's example has a quarter (section 4.1)."""
    losses_to_retire: Annotated[int, Field(ge=1, le=100)] = 3
    """Fewest silent losses in a row, with nothing delivered between, that retire an EV where switches do not trim:
    there, a loss is more often a full queue than a dead path. The more of all packets are lost, the more it takes: so
    many that chance alone brings them less than once in 1,024 times. 1 blames an EV at its first loss whatever happens
    on others, as is right where switches trim, and is done there (section 4.2). Ours."""
    placed: bool = True
    """Whether the paths of a plane are drawn by the places of both ends below their T0s, so that EVs load every uplink
    of a T0 alike while all its NICs send, and half of them every downlink to it; otherwise each pair draws for itself
    alone, as published (section 4.1). Nobody talks to anybody for it: a NIC's place is part of its address. Ours."""
    most_skips: Annotated[int, Field(ge=1, le=1024)] = 32
    """Most rounds for which an EV that is marked again and again is passed over after each packet that it carries. A
    mark skips it once (section 4.2); from the fourth in a row on each doubles the rounds, each unmarked packet takes
    a quarter off; where many EVs are marked alike, none is passed over for longer. With 1 it is always skipped once, an
    EV whose path is always full still carries every other packet of its turn, and two flows on one EV never part
    (section 6, R13). Ours: section 4.2 leaves open how an EV gets from SKIP to GOOD."""
    probe_interval: Duration = Picoseconds(50 * _US)
    """Time between two probes of retired EVs by one queue pair. Not published; ours: about 1/100 of a per mille of 800
    Gb/s, and a repaired path returns within milliseconds."""
    probe_timeout: Duration = Picoseconds(100 * _US)
    """Time after which an EV probe counts as unanswered. Ours: several round trips."""
    probes_to_readmit: Annotated[int, Field(ge=1, le=100)] = 3
    """Probes answered in a row that bring an EV back: "enough" in the paper (section 4.2). Ours."""


class LossSpec(Spec):
    """How silence is distinguished from reordering."""

    infer: bool = True
    """Whether packets are presumed lost because later ones have arrived; without it the timer alone says so, as in
    Ultra Ethernet's transport where switches trim."""
    spread: Duration = Picoseconds(10 * _US)
    """A packet is presumed lost once one that was sent this much later has been acknowledged: more than two paths
    differ by while queues are balanced. The longest wait in queues that was lately seen comes on top. Not published;
    ours: three quarters of a round trip, so that a dead path is known after a round trip and a spread, "tens of
    microseconds" (section 4.3)."""
    spread_max: Duration = Picoseconds(40 * _US)
    """Most to which the spread grows, waits included; it doubles, once in a round trip, when a presumed loss turns out
    to have arrived.
    Ours: three hops of full queues, which hold a round trip each before they trim (section 4.4)."""
    spread_decay: Duration = Picoseconds(1000 * _US)
    """Time without such a mistake after which the spread halves again. Ours."""
    passed_packets: Annotated[int, Field(ge=1, le=1000)] = 3
    """Later transmissions, besides the time, that must have passed a packet before it is presumed lost. Ours, after
    the three duplicate acknowledgements of TCP (RFC 5681)."""
    probe_after: Duration = Picoseconds(26 * _US)
    """Quiet time, with packets in flight, after which a reliability probe is sent: it is the later transmission that
    lets the last packets of a message be presumed lost. Ours: two round trips."""
    timeout: Annotated[int, Field(ge=1, le=24)] = 8
    """Local acknowledgement timeout t: 1.024 us x 2^t, so 262 us. The interface's example (section 4.3)."""
    linear_retries: Annotated[int, Field(ge=0, le=7)] = 7
    """Timeouts in a row at the same length. The interface's example (section 4.3)."""
    exponential_retries: Annotated[int, Field(ge=0, le=_INFINITE_RETRIES)] = 14
    """Timeouts after that, each twice as long; 25 means for ever, as in the interface's example. Ours: about 9 s, then
    the queue pair ends in an error with a name, because everything has a limit."""


class WindowSpec(Spec):
    """How much may be in flight."""

    mpr: Annotated[int, Field(ge=1, le=255)] = 8
    """Receive window in units of 128 packets; 8 is the interface's example and about three bandwidth-delay products of
    800 Gb/s (section 4.3)."""
    messages: Annotated[int, Field(ge=1, le=65536)] = 128
    """Messages that one queue pair holds at a time. Ours."""
    immediates: Annotated[int, Field(ge=1, le=4096)] = 128
    """Writes with immediate in flight at a time: `max_wimm_inflight` of the interface's example (section 4.3)."""
    ack_bytes: Size = Bytes(16384)
    """Bytes received that make a SACK due: the default of Ultra Ethernet's ACK_Gen_Trigger, from which section 4.3 has
    the other triggers (an emulator has 4096). A SACK for each packet would take 4 % of every link."""
    ack_packet_bytes: Size = Bytes(1024)
    """Least that one packet counts towards it (same place)."""


class CongestionSpec(Spec):
    """The congestion window."""

    algorithm: Literal["nscc", "fixed"] = "nscc"
    """UET's sender-based control, or a window that never moves, as a baseline."""
    base_rtt: Duration = Picoseconds(13 * _US)
    """Round trip through an empty fabric, longest path, with the hosts' own time (section 4.3)."""
    max_window: Annotated[float, Field(gt=0, le=16)] = 1.25
    """Largest and first window, in bandwidth-delay products. Ultra Ethernet has 1.5 (section 4.4); the interface sets
    it, as `max_cwnd`. Ours: where marks are left to load balancing, what a window holds beyond one product stands in
    queues until the message ends, and with a quarter the last packets of a full fabric are there sooner than with a
    half."""
    target_delay: Annotated[float, Field(gt=0, le=16)] = 0.75
    """Queueing delay aimed at, in base round trips: 0.75 with trimming, 1.0 without (section 4.4)."""
    quick_adapt: bool = True
    """Whether the window jumps to what was delivered after trims or losses (section 4.4)."""
    delay_cuts: bool = True
    """Whether a delay at the target or above shrinks the window without a mark too. NSCC lets the window grow then,
    since where every queue marks such a delay is no queue's. Ours: MRC's last hop does not mark, so that delay is all
    that tells of an incast before packets are trimmed (section 4.4)."""


class ReverseSpec(Spec):
    """The reverse path, on which acknowledgements go."""

    probe_interval: Duration = Picoseconds(0)
    """Least time between two probes of the reverse path by a queue pair that receives and does not send. It is never
    less than a round trip, which is what is published (section 4.3). Ours: software needs longer."""
    heard_lately: Duration = Picoseconds(0)
    """Answers rather leave on planes on which something has come within this time; 0 lets all planes take turns, as
    published (section 4.3). Ours, for networks where a plane may die silently and nothing is sent that would
    show it."""


class UecCongestionSpec(CongestionSpec):
    """The congestion window as Ultra Ethernet has it."""

    max_window: Annotated[float, Field(gt=0, le=16)] = 1.5
    """Largest and first window, in bandwidth-delay products (section 4.4)."""
    delay_cuts: bool = False
    """As in NSCC: a long delay without a mark lets the window grow (section 4.4)."""


def _floor_below_active(spec: Any) -> str | None:
    if spec.ev.min_active <= spec.ev.active:
        return None
    return f"min_active is {spec.ev.min_active}, more than the {spec.ev.active} active EVs; lower it"


def _spread_grows(spec: Any) -> str | None:
    if 0 < spec.loss.spread <= spec.loss.spread_max:
        return None
    return "loss.spread must lie above 0 and not above loss.spread_max; change one of them"


def _probe_after_spread(spec: Any) -> str | None:
    if spec.loss.probe_after >= spec.loss.spread:
        return None
    return "loss.probe_after is shorter than loss.spread, so a probe could prove nothing; make it longer"


class MrcSpec(Spec):
    """The Multipath Reliable Connection: everything that can be set."""

    ev: EvSpec = EvSpec()
    """Entropy values."""
    loss: LossSpec = LossSpec()
    """Loss and timers."""
    window: WindowSpec = WindowSpec()
    """Windows and acknowledgement."""
    congestion: CongestionSpec = CongestionSpec()
    """Congestion control."""
    reverse: ReverseSpec = ReverseSpec()
    """The reverse path."""
    trimming: bool = True
    """Whether switches trim instead of dropping, so that silence means a dead path (section 4.3)."""
    retire: bool = True
    """Whether a silent EV is retired at all; off only to show what that mechanism is worth."""
    skip: bool = True
    """Whether EVs are passed over for congestion, a marked one once at least; off only to show what that is worth."""
    even: bool = True
    """Whether, besides what marks say, an EV loses its turn that has more packets in flight than its share of a
    bandwidth-delay product, and the end of a message leaves out EVs that were marked last; off only to show what that
    is worth. Ours: section 4.1 asks for about one EV for each packet in flight, so that what is known of an EV is
    fresh; what is on one beyond that waits in a queue."""
    same_plane: bool = True
    """Whether a retired EV's place goes to a backup of its own plane; off only to show what that is worth (P1 section
    4: uneven planes cause false incast)."""
    shuffle: bool = True
    """Whether the rotation is shuffled in each round (section 4.1); off only to show what that is worth."""
    ecn_last_hop: bool = False
    """Whether the last hop to a NIC marks too; on only to show what leaving it out is worth: an incast then looks like
    imbalance inside the fabric, and healthy paths are skipped for it (section 4.4)."""
    port_remap_delay: Duration = Picoseconds(100 * _US)
    """From a NIC port's change to the EVs of its plane being left or used again. Ours: quick hardware; ConnectX-8 needs
    up to a second for many queue pairs (section 4.3)."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(("ev",), _floor_below_active),
        Check(("loss",), _spread_grows),
        Check(("loss",), _probe_after_spread),
    )


def window_packets(spec: WindowSpec) -> int:
    """Return the receive window in packets."""
    return spec.mpr * _PSN_PER_MPR
