"""Lossy: why nothing is paused and packets may be dropped."""

from weft.core.quantity import RATE, SIZE, significant
from weft.core.seeds import Seed
from weft.fabric.explain.base import ClosedFormCheck, Explanation, Panel, Table, curves, named, points
from weft.fabric.explain.figures import PS_PER_US, TIMEOUT_PS, Figures, figures_of
from weft.fabric.theory import frames, loss
from weft.mrc.wire.overhead import payload_share
from weft.specs.site import SiteSpec

TOPIC = "lossy"
_RATES = (1e-4, 1e-3, 1e-2)
_SWEEP = tuple(10 ** (step / 4 - 6) for step in range(18))
_INCAST = 7
_MARK_FROM, _MARK_ALL, _TRIM, _TRIM_LAST = 0.2, 0.8, 1.0, 1.5
_PAUSE_RESPONSE_BYTES = 3840
_LIGHT_NS_PER_M = 4.9


def explain(site: SiteSpec, seed: Seed) -> Explanation:
    """Explain lossy Ethernet for a site."""
    figures = figures_of(site)
    branch = seed.branch("explain", TOPIC)
    return Explanation(
        topic=TOPIC,
        title="Let the network drop packets",
        site=site.name,
        decision="Priority flow control is off everywhere: a switch whose queue is full cuts the packet to its header "
        "and forwards that, and the sender repeats exactly that packet one round trip later.",
        surprise="RDMA networks are built lossless, because their NICs fall apart at the first lost packet. That is a "
        "property of go-back-N, not of loss. Once a NIC repeats only what is missing, the pause frames that prevented "
        "loss are the larger evil: they stop bystanders.",
        paragraphs=_paragraphs(figures),
        table=_table(figures),
        checks=_checks(figures, branch),
        panels=_panels(figures, branch.branch("plot")),
        sources=(
            "Bertsekas and Gallager, Data Networks, 2nd edition, section 2.4: go-back-N and selective repeat",
            "Guo et al., SIGCOMM 2016: pause frames at scale; IEEE 802.1Qbb, annex O: pause headroom",
            "arXiv 2605.04333, figures 16 to 18: loss of 0.1 and 1 %, incast with a bystander",
            "Ultra Ethernet 1.0.3, section 3.6.17: marking and trimming thresholds",
        ),
        provenance=named(TOPIC, site, seed),
    )


def _window(figures: Figures) -> int:
    return max(1, round(figures.in_flight))


def _links(figures: Figures) -> int:
    """Return the links by which traffic enters a T0 from above; in a single tier, its other ports."""
    return figures.shape.up or figures.shape.down - 1


def _paragraphs(figures: Figures) -> tuple[str, ...]:
    window, links = _window(figures), _links(figures)
    fabric, shape = figures.fabric, figures.shape
    plain = frames.in_flight(fabric.nic_rate, figures.round_trip_ps, fabric.packet)
    efficiency = [f"{significant(100 * loss.go_back_n(p, window))} % at {_percent(p)} loss" for p in _RATES]
    victims = max(0, min(shape.down, fabric.gpus) - 1)
    trip = significant(figures.round_trip_us)
    timer_us = TIMEOUT_PS / PS_PER_US
    plane_kb = fabric.port_rate * figures.round_trip_ps / 8e15
    fill_us = figures.round_trip_us / (_INCAST - 1)
    return (
        f"A NIC at {RATE.format(fabric.nic_rate)} has {window} frames of {figures.frame_bytes:,} B in flight in a "
        f"round trip of {trip} us ({plain:.0f} packets of {SIZE.format(fabric.packet)} if headers weighed nothing). "
        f"With go-back-N one loss throws all of them away: efficiency {', '.join(efficiency)}. Selective repeat sends "
        "one packet again and keeps 1 - p: loss stops being an event. Published at 400 Gb/s: RoCE is poor "
        "at 0.1 % and unusable at 1 %.",
        "Trimming makes repair quick: the header arrives, the receiver asks for that packet, and it is back one round "
        f"trip later, {trip} us instead of a timer of {significant(timer_us)} us. It also tells congestion (a "
        "header came) from a broken path (nothing came), which pause frames and silence do not.",
        f"Losslessness is paid by bystanders. {_INCAST} senders to one NIC fill a plane's round trip of buffer "
        f"({significant(plane_kb)} kB, {significant(figures.plane_in_flight, 2)} frames) in {significant(fill_us)} us. "
        f"A pause then stops whole links, not flows: the T0 pauses those of its {links} links on which the incast "
        f"arrives, and with them what flows to the other {victims} NICs below it. With one path per flow "
        f"{significant(100 * loss.paused_share(_INCAST, links))} % of bystanders stop; sprayed over all links the "
        "incast pauses every one and they all stop. Spraying and pausing do not go together.",
        f"Buffers follow from the round trip: per port, mark from {_frames(figures, _MARK_FROM)} to "
        f"{_frames(figures, _MARK_ALL)} frames, trim at {_frames(figures, _TRIM)}, at the last hop at "
        f"{_frames(figures, _TRIM_LAST)}. Pause needs room for what is already on the cable instead: "
        f"{significant(_headroom(figures) / 1e3)} kB for each port and class, "
        f"{significant(_headroom(figures) * fabric.radix / 1e6)} MB of a switch that can never be used.",
    )


def _percent(share: float) -> str:
    return f"{significant(100 * share)} %"


def _frames(figures: Figures, share: float) -> int:
    return max(1, round(share * figures.plane_in_flight))


def _headroom(figures: Figures) -> float:
    """Return the bytes that may still arrive after a pause is sent.

    Both ways of the longest cable, a frame at each end and the peer's reaction.
    """
    links = figures.fabric.links
    longest_mm = max(link.length for link in (links.nic_t0, links.t0_t1, links.t1_t2) if link is not None)
    cable = 2 * longest_mm / 1000 * _LIGHT_NS_PER_M * 1e-9 * figures.fabric.port_rate / 8
    return cable + 2 * figures.frame_bytes + _PAUSE_RESPONSE_BYTES


def _table(figures: Figures) -> Table:
    window = _window(figures)
    headroom_mb = _headroom(figures) * figures.fabric.radix / 1e6
    rows = [
        ("packets sent again for one loss", "1", f"{window:,}"),
        *((f"efficiency at {_percent(p)} loss", f"{significant(100 * loss.selective_repeat(p), 4)} %",
           f"{significant(100 * loss.go_back_n(p, window))} %") for p in _RATES),
        ("repair of a congestion loss", f"{significant(figures.round_trip_us)} us (trim)", "not allowed to happen"),
        ("who waits in an incast", "the incast", "everybody behind a paused link"),
        ("buffer set aside for pauses, per switch", "0", f"{significant(headroom_mb)} MB"),
        ("payload of the wire", f"{significant(100 * payload_share(figures.fabric.packet))} %", "-"),
    ]  # fmt: skip
    return Table(("", "lossy, selective repeat", "lossless, go-back-N"), tuple(rows))


def _checks(figures: Figures, seed: Seed) -> tuple[ClosedFormCheck, ...]:
    window, links = _window(figures), _links(figures)
    packets = 64 * max(window, 64)
    again = [
        ClosedFormCheck(
            f"go-back-N at {_percent(p)} loss, {window} in flight",
            "(1-p)/(1-p+pW)",
            "share",
            loss.go_back_n(p, window),
            loss.simulated_go_back_n(seed.stream("gbn", i), p, window, 60, packets),
            # A run starts without a loss outstanding and ends within one: at most one window of it.
            tolerance=window / packets / 4,
        )
        for i, p in enumerate(_RATES)
    ]
    once = ClosedFormCheck(
        f"selective repeat at {_percent(_RATES[-1])} loss",
        "1-p",
        "share",
        loss.selective_repeat(_RATES[-1]),
        loss.simulated_selective_repeat(seed.stream("sr"), _RATES[-1], window, 60, 4000),
    )
    paused = [
        ClosedFormCheck(
            f"bystanders stopped by a {incast}:1 incast, {links} links",
            "1-(1-1/u)^m",
            "share",
            loss.paused_share(incast, links),
            loss.simulated_paused_share(seed.stream("pause", incast), incast, links, links, 2000),
        )
        for incast in sorted({_INCAST, links})
    ]
    return (*again, once, *paused)


def _panels(figures: Figures, seed: Seed) -> tuple[Panel, ...]:
    window, links = _window(figures), _links(figures)
    some = _SWEEP[6::2]
    packets = 32 * max(window, 64)
    stepped = [loss.simulated_go_back_n(seed.stream("gbn", i), p, window, 30, packets) for i, p in enumerate(some)]
    repair = Panel(
        f"Share of the wire that counts, {window} packets in flight",
        "loss rate of a packet",
        "efficiency (share)",
        (
            *curves(_SWEEP, {"selective repeat, 1 - p": [loss.selective_repeat(p) for p in _SWEEP],
                             "go-back-N": [loss.go_back_n(p, window) for p in _SWEEP]}),
            points("go-back-N, simulated", some, stepped),
        ),
        x_log=True,
    )  # fmt: skip
    degrees = sorted({max(1, round(10 ** (step / 6))) for step in range(19)})
    few = degrees[::3]
    thrown = [loss.simulated_paused_share(seed.stream("pause", m), m, links, links, 300) for m in few]
    pause = Panel(
        f"Bystanders below a T0 with {links} uplinks",
        "senders of the incast",
        "share of bystanders that a pause stops",
        (
            *curves(degrees, {
                "pause, one path per flow": [loss.paused_share(m, links) for m in degrees],
                "pause, sprayed": [1.0 for _ in degrees],
                "lossy, trimming": [0.0 for _ in degrees],
            }),
            points("one path, simulated", few, thrown),
        ),
        x_log=True,
    )  # fmt: skip
    return repair, pause
