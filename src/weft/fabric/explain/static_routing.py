"""Static routing: why the sender picks the path and the switches never change theirs."""

from weft.core.errors import UsageError
from weft.core.quantity import FAILURE_RATE, RATE, significant
from weft.core.seeds import Seed
from weft.fabric.explain.base import ClosedFormCheck, Explanation, Panel, PlotSeries, Table, curves, named, points
from weft.fabric.explain.figures import PS_PER_US, TIMEOUT_PS, Figures, figures_of
from weft.fabric.theory import balls, flaps
from weft.specs.site import SiteSpec

TOPIC = "static-routing"
_SECOND_PS = 10**12
_FAST_S, _SLOW_S = 1, 10
_DEAD_LINKS = 3
_MANY = 0.3
_OUTAGES_S = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_FEEDBACKS = tuple(step / 50 for step in range(5, 201))


def explain(site: SiteSpec, seed: Seed) -> Explanation:
    """Explain static source routing for a site."""
    figures = figures_of(site)
    if figures.shape.up == 0:
        raise UsageError(
            f"{site.name} has one tier: a NIC's T0 is all there is, and there is nothing to route; "
            f"try weft explain {TOPIC} gb200-8x100g-131k"
        )
    branch = seed.branch("explain", TOPIC)
    return Explanation(
        topic=TOPIC,
        title="Switch dynamic routing off",
        site=site.name,
        decision="The sender writes the whole path into each packet (SRv6) and leaves a path that fails within a round "
        "trip; switches hold a table that is written once and run no routing protocol.",
        surprise="A network that does not route round failures sounds like one that stops at the first. But the sender "
        "notices first, and a second loop that repairs the same fault more slowly only moves the paths under its feet.",
        paragraphs=_paragraphs(figures),
        table=_table(figures),
        checks=_checks(figures, branch),
        panels=_panels(figures, branch.branch("plot")),
        sources=(
            "arXiv 2605.04333, sections 2.2 and 2.3: ECMP sets, two loops, SRv6 uSIDs; figures 5 and 8: flaps and a T1",
            "RFC 9800: compressed SRv6 segment lists (uSID)",
            "Takacs, Introduction to the Theory of Queues, 1962: the infinite-server queue, for outages that overlap",
            f"link flaps: {FAILURE_RATE.format(figures.flap_fit)} a link, from the site file",
        ),
        provenance=named(TOPIC, site, seed),
    )


def _packets(figures: Figures, time_ps: int) -> int:
    """Return the packets that a connection at the NIC's rate sends in a time."""
    return max(1, round(time_ps / figures.rotation_ps * figures.values))


def _lost(figures: Figures, packets: int) -> float:
    return flaps.lost_reshuffled(packets, figures.values)


def _dead(figures: Figures) -> int:
    return min(_DEAD_LINKS, figures.shape.pod_t0)


def _days(figures: Figures) -> str:
    return significant(1e9 / figures.flap_fit / 24, 2)


def _core_links(figures: Figures) -> int:
    return sum(figures.shape.links[1:])


def _hit(figures: Figures) -> float:
    """Return the chance that a dead T0-T1 link carried a flow of a permutation hashed by ECMP."""
    return balls.busy_share(min(figures.shape.down, figures.fabric.gpus), figures.shape.up)


def _through_t1(figures: Figures) -> int:
    shape = figures.shape
    return shape.paths // shape.pod_t1


def _paragraphs(figures: Figures) -> tuple[str, ...]:
    shape = figures.shape
    per_minute = flaps.flaps_per_minute(_core_links(figures), figures.flap_fit)
    stalls = per_minute * _hit(figures)
    packets = _packets(figures, figures.round_trip_ps)
    ordered = flaps.lost_in_order(packets, figures.values)
    touched = flaps.touched_share(shape.paths, _through_t1(figures), figures.values_per_plane)
    members = (shape.t0 - 1) * shape.up
    own = flaps.own_sets_share(shape.pod_t0, _dead(figures), shape.pod_t1)
    few = "Few are even touched:" if touched < _MANY else "A dead T1 touches many here, each for a packet or so:"
    flapping = (
        f"With {_core_links(figures):,} links between switches, each flapping once in {_days(figures)} days, this site "
        f"sees {significant(per_minute)} flaps a minute, and {significant(100 * _hit(figures))} % of them hit a hashed "
        f"flow. If each stalls that flow for the {_FAST_S} to {_SLOW_S} s of a reconvergence, and a step waits for "
        "every flow, the job stands still "
        f"{significant(100 * flaps.stalled_share(stalls, _FAST_S * _SECOND_PS))} to "
        f"{significant(100 * flaps.stalled_share(stalls, _SLOW_S * _SECOND_PS))} % of the time. With repair in one "
        f"round trip of {significant(figures.round_trip_us)} us it is "
        f"{100 * flaps.stalled_share(stalls, figures.round_trip_ps):.1g} %."
        if per_minute
        else "This site's links never flap (its file says 0 FIT), so only the cost of one failure is known, not how "
        "often it is paid."
    )
    return (
        flapping,
        f"The loop is fast because it is short. A connection at {RATE.format(figures.fabric.nic_rate)} comes back to "
        f"the same path after one rotation: {figures.values} paths x one frame = {significant(figures.rotation_us)} "
        f"us, against a round trip of {significant(figures.round_trip_us)} us. So a dead path swallows (round trip / "
        f"rotation) packets, {significant(_lost(figures, packets))} on average with shuffled rotation ({ordered} in "
        f"fixed order), and {significant(_lost(figures, max(1, packets // 4)))} for one of four connections that "
        "share the NIC. With the "
        f"{significant(TIMEOUT_PS / PS_PER_US)} us timer alone it would be "
        f"{significant(_lost(figures, _packets(figures, TIMEOUT_PS)))}. Published: typically one per flap.",
        f"{few} a connection uses {figures.values_per_plane} of {shape.paths:,} paths in a plane, so a "
        f"T1 that swallows everything while its links stay up, which routing does not see, touches "
        f"{significant(100 * touched)} % of them.",
        f"Tables stay small and never change: a T0 holds {shape.down + shape.up} entries. With ECMP and "
        f"{_dead(figures)} dead links per T1, {significant(100 * own)} % of all destination T0s need a next-hop set of "
        f"their own: up to {members:,} members in a T0, rewritten at every flap.",
        "And two loops fight: the sender leaves a bad path; seconds later routing rehashes everybody, the sender's "
        "knowledge of which label means which path is void, and it must learn again. One loop has to go: the slow one.",
    )  # fmt: skip


def _table(figures: Figures) -> Table:
    shape, fabric = figures.shape, figures.fabric
    outage_bytes = fabric.nic_rate // 8
    packets = _packets(figures, figures.round_trip_ps)
    through = _through_t1(figures)
    touched = flaps.touched_share(shape.paths, through, figures.values_per_plane)
    top = shape.t0 if shape.pods == 1 else shape.pod_t0 + shape.t1_up
    return Table(
        ("", "static, sender decides", "routing protocol and ECMP"),
        (
            ("time to leave a dead path", f"{significant(figures.round_trip_us)} us and up",
             f"{_FAST_S} to {_SLOW_S} s"),
            ("what one NIC could have sent meanwhile", f"{significant(figures.in_flight)} frames",
             f"{significant(outage_bytes / 1e9)} GB and more"),
            ("packets lost by a touched connection", significant(_lost(figures, packets)),
             "all on that path"),
            ("connections touched by a dead T1", f"{significant(100 * touched)} %",
             f"{significant(100 / shape.pod_t1)} %, for seconds"),
            ("a T1 that is up and swallows packets", "path left in a round trip", "not seen"),
            ("T0 table", f"{shape.down + shape.up:,} entries, static",
             f"{shape.t0 - 1:,} routes, {shape.up} hops each"),
            ("T1 table", f"{top * shape.bundle:,} entries, static", f"{shape.t0:,} routes"),
            ("who changes a table at a flap", "nobody", "every T0 of the plane"),
        ),
    )  # fmt: skip


def _checks(figures: Figures, seed: Seed) -> tuple[ClosedFormCheck, ...]:
    shape = figures.shape
    packets = _packets(figures, figures.round_trip_ps)
    through, dead = _through_t1(figures), _dead(figures)
    checks = [
        ClosedFormCheck(
            "packets swallowed by a dead path, shuffled rotation",
            "1 + E[(T/R + X - 1)+]",
            "packets",
            _lost(figures, packets),
            flaps.simulated_lost(seed.stream("lost"), figures.values, packets, 20_000, shuffled=True),
        ),
        ClosedFormCheck(
            "packets swallowed by a dead path, fixed order",
            "ceil(T/R)",
            "packets",
            float(flaps.lost_in_order(packets, figures.values)),
            flaps.simulated_lost(seed.stream("order"), figures.values, packets, 2000, shuffled=False),
        ),
        ClosedFormCheck(
            "connections touched by one dead T1",
            "1 - C(P-c, e) / C(P, e)",
            "share",
            flaps.touched_share(shape.paths, through, figures.values_per_plane),
            flaps.simulated_touched(seed.stream("touched"), shape.paths, through, figures.values_per_plane, 4000),
        ),
        ClosedFormCheck(
            f"T0s that need their own ECMP set, {dead} dead links per T1",
            "1 - (1 - d/T0s)^T1s",
            "share",
            flaps.own_sets_share(shape.pod_t0, dead, shape.pod_t1),
            flaps.simulated_own_sets(seed.stream("sets"), shape.pod_t0, dead, shape.pod_t1, 100),
        ),
    ]
    stalls = flaps.flaps_per_minute(_core_links(figures), figures.flap_fit) * _hit(figures)
    if stalls:
        checks += [
            ClosedFormCheck(
                f"time that a job stands still, {seconds} s reconvergence",
                "1 - exp(-rate T)",
                "share",
                flaps.stalled_share(stalls, seconds * _SECOND_PS),
                flaps.simulated_stalled(seed.stream("stall", seconds), stalls, seconds, _hours(stalls), 60),
            )
            for seconds in (_FAST_S, _SLOW_S)
        ]
    return tuple(checks)


def _hours(per_minute: float) -> float:
    """Return a span that holds about a hundred outages."""
    return 100 / per_minute / 60


def _panels(figures: Figures, seed: Seed) -> tuple[Panel, ...]:
    per_minute = flaps.flaps_per_minute(_core_links(figures), figures.flap_fit) * _hit(figures)
    panels = [_lost_panel(figures, seed)]
    if per_minute:
        panels.insert(0, _stall_panel(figures, seed, per_minute))
    return tuple(panels)


def _stall_panel(figures: Figures, seed: Seed, per_minute: float) -> Panel:
    formula = [flaps.stalled_share(per_minute, seconds * _SECOND_PS) for seconds in _OUTAGES_S]
    simulated = [
        flaps.simulated_stalled(seed.stream("stall", i), per_minute, seconds, _hours(per_minute), 20)
        for i, seconds in enumerate(_OUTAGES_S)
    ]
    own = figures.round_trip_ps / _SECOND_PS
    repaired = flaps.stalled_share(per_minute, figures.round_trip_ps)
    return Panel(
        f"Job standing still, {significant(per_minute)} felt flaps a minute",
        "time to leave a dead path (s)",
        "share of time that the job stands still",
        (
            *curves(_OUTAGES_S, {"1 - exp(-rate x time)": formula}),
            points("simulated", _OUTAGES_S, simulated),
            PlotSeries("sender decides: one round trip", (own,), (repaired,), marks="points"),
            PlotSeries("reconvergence: 1 to 10 s", (1.0, 10.0), (formula[6], formula[8]), marks="points"),
        ),
        x_log=True,
        y_log=True,
    )


def _lost_panel(figures: Figures, seed: Seed) -> Panel:
    values = figures.values
    counts = sorted({max(1, round(t * values)) for t in _FEEDBACKS})
    x = tuple(count / values for count in counts)
    some = counts[4 :: max(1, len(counts) // 8)]
    simulated = [flaps.simulated_lost(seed.stream("lost", n), values, n, 4000, shuffled=True) for n in some]
    here = _packets(figures, figures.round_trip_ps)
    return Panel(
        "Packets that one dead path swallows",
        "time to know of a loss, in rotations of the path set",
        "packets lost on that path",
        (
            *curves(x, {"shuffled rotation": [_lost(figures, n) for n in counts]}),
            PlotSeries("fixed order", x, tuple(float(flaps.lost_in_order(n, values)) for n in counts), marks="dashes"),
            points("shuffled, simulated", [n / values for n in some], simulated),
            PlotSeries(f"{figures.name}: one round trip", (here / values,), (_lost(figures, here),), marks="points"),
        ),
    )
