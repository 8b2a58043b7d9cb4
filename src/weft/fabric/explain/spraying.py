"""Spraying: why every packet takes another path."""

import math

from weft.core.errors import UsageError
from weft.core.quantity import RATE, counted, significant
from weft.core.seeds import Seed
from weft.fabric.explain.base import ClosedFormCheck, Explanation, Panel, PlotSeries, Table, curves, named, points
from weft.fabric.explain.figures import Figures, figures_of
from weft.fabric.theory import balls, queues, skipping
from weft.specs.site import SiteSpec

TOPIC = "spraying"
_LOAD = 0.95
_SMALL_CLUSTER = 8
_MARK_FROM, _MARK_ALL = 0.2, 0.8
_SUBFLOWS = (1, 2, 4, 8, 16, 32, 64, 128)
_LOADS = tuple(step / 100 for step in range(50, 100))
_WINDOW_UNIT = 128
_LOOPS, _PLANES = 16, 4
_PERCENT = f"{100 * _LOAD:.0f} %"


def explain(site: SiteSpec, seed: Seed) -> Explanation:
    """Explain spraying over many paths for a site."""
    figures = figures_of(site)
    if figures.shape.up == 0:
        raise UsageError(
            f"{site.name} has one tier, so each plane has one path and there is nothing to spray over; "
            f"try weft explain {TOPIC} gb200-8x100g-131k"
        )
    branch = seed.branch("explain", TOPIC)
    plane = _plane(figures)
    # Long enough for the loop of rotation and round trip to settle in the first half.
    slots = _LOOPS * (plane.round_trip + plane.chosen)
    balance = {
        skip: skipping.simulated(branch.stream("skip", int(skip)), plane, slots=slots, trials=_PLANES, skip=skip)
        for skip in (False, True)
    }
    return Explanation(
        topic=TOPIC,
        title="Spray every packet over many paths",
        site=site.name,
        decision=f"Each connection rotates, packet by packet, over {figures.values} paths "
        f"({figures.values_per_plane} in each of {counted(figures.fabric.planes, 'plane')}), instead of keeping a "
        "flow on the one path that a hash picks.",
        surprise="Networks have kept flows on one path for forty years so that packets arrive in order. But a training "
        "step has few, large, simultaneous flows, for which hashing is at its worst; and order is not needed when "
        "every packet carries the address where its bytes belong.",
        paragraphs=_paragraphs(figures, balance),
        table=_table(figures),
        checks=(*_collisions(figures, branch), *_queues(figures, branch), *_balance(balance)),
        panels=_panels(figures, branch.branch("plot")),
        sources=(
            "Feller, Probability Theory vol. 1, chapters II and IV; Raab and Steger, RANDOM 1998: balls into bins",
            "Kleinrock, Queueing Systems vol. 1, section 5.6: M/D/1",
            "Roberts and Virtamo, IEEE Transactions on Communications 39(2), 1991: nD/D/1",
            "arXiv 2605.04333, sections 2.3, 4 and figures 16, 17 and A2; arXiv 2507.21372: queues of sprayers",
        ),
        provenance=named(TOPIC, site, seed),
    )


def _senders(figures: Figures) -> int:
    return min(figures.shape.down, figures.fabric.gpus)


def _plane(figures: Figures) -> skipping.Plane:
    shape, depth = figures.shape, figures.plane_in_flight
    mark_from = max(1.0, _MARK_FROM * depth)
    return skipping.Plane(
        links=shape.up,
        paths=shape.paths,
        senders=_senders(figures),
        chosen=figures.values_per_plane,
        load=_LOAD,
        round_trip=max(1, round(depth)),
        mark_from=mark_from,
        mark_all=max(mark_from + 1, _MARK_ALL * depth),
    )


def _static_max(figures: Figures) -> float:
    senders, chosen = _senders(figures), figures.values_per_plane
    shape = figures.shape
    return balls.mean_max_load_of_subsets(senders, chosen, shape.paths, shape.up) * shape.up / (senders * chosen)


def _paragraphs(figures: Figures, balance: dict[bool, skipping.Balance]) -> tuple[str, ...]:
    shape, n = figures.shape, figures.shape.up
    senders = _senders(figures)
    largest = balls.mean_max_load(senders, n)
    random = queues.md1_backlog(_LOAD)
    bits = math.ceil(figures.in_flight)
    window = -(-bits // _WINDOW_UNIT) * _WINDOW_UNIT
    return (
        f"Hash {senders} flows to the {n} uplinks of a T0. They meet nowhere with probability "
        f"{_probability(senders, n)}, {significant(100 * balls.busy_share(senders, n))} % of the links carry anything, "
        f"and the unluckiest link carries {significant(largest)} flows. A synchronous step waits for that one: it runs "
        f"at 1/{significant(largest)} of the network that was paid for.",
        *_spread(figures, balance),
        f"Taking turns also beats chance in the queue. Random arrivals at {_PERCENT} load queue "
        f"{significant(random)} frames ({significant(random * figures.port_frame_us)} us at "
        f"{RATE.format(figures.fabric.port_rate)}) and without bound towards 100 %; {_sources(figures)} senders that "
        f"each come round once a rotation queue {significant(_periodic(figures, _LOAD))} frames, and even at 100 % "
        f"only {significant(_periodic(figures, 1.0))}.",
        "The price is disorder, and it is small: paths differ by at most a round trip of queueing "
        f"({significant(figures.round_trip_us)} us), which is {bits} packets at "
        f"{RATE.format(figures.fabric.nic_rate)}. One bit each: a window of {window} "
        f"is {window // 8} bytes a connection. Data is placed at once; nothing waits in a reorder buffer. There are "
        f"{shape.paths * figures.fabric.planes:,} longest paths between two NICs to choose from.",
    )  # fmt: skip


def _spread(figures: Figures, balance: dict[bool, skipping.Balance]) -> tuple[str, ...]:
    """Return what a fixed choice of paths leaves, and what feedback makes of it."""
    if figures.values_per_plane == figures.shape.paths:
        return (
            f"Here a connection uses all {figures.shape.paths} paths of a plane, so its load is even from the start "
            "and marks have nothing left to do. On larger fabrics it has a random part of them, and they do.",
        )
    skip, static = balance[True], balance[False]
    return (
        f"Cut each flow over {figures.values_per_plane} random paths of the plane and the fullest link carries "
        f"{significant(_static_max(figures))} times the mean: the excess falls with 1/sqrt(q), slowly. (At 64 links, "
        "256 sub-flows still leave 15 %.) A fixed random choice is not enough, however wide.",
        "Feedback removes the rest. Switches mark packets on filling queues, the mark comes back with the path's name, "
        f"the sender skips that path once. Simulated here at {_PERCENT} load, the fullest link goes from "
        f"{significant(static.load.value)} to {significant(skip.load.value)} times the mean (its capacity is "
        f"{significant(1 / _LOAD)}), and the longest queue from {significant(static.queue.value)} frames and growing "
        f"to a steady {significant(skip.queue.value, 2)}, "
        f"{significant(skip.queue.value * figures.port_frame_us, 2)} us.",
    )


def _probability(flows: int, links: int) -> str:
    if flows > links:
        return "0"
    log10 = (math.lgamma(links + 1) - math.lgamma(links - flows + 1) - flows * math.log(links)) / math.log(10)
    return f"10^{log10:.0f}" if log10 < -3 else f"{significant(100 * 10**log10)} %"  # noqa: PLR2004  a shown limit


def _us(figures: Figures, frames: float) -> float:
    return frames * figures.port_frame_us


def _sources(figures: Figures) -> int:
    """Return how many senders take turns on one uplink: each comes once in a rotation of its paths in the plane."""
    shape = figures.shape
    return max(1, round(_senders(figures) * figures.values_per_plane / shape.up))


def _periodic(figures: Figures, load: float) -> float:
    sources = _sources(figures)
    return queues.ndd1_backlog(sources, sources / load)


def _table(figures: Figures) -> Table:
    n, senders = figures.shape.up, _senders(figures)

    def times(subflows: int) -> float:
        return balls.mean_max_load(senders * subflows, n) * n / (senders * subflows)

    rows = [
        (f"{q} sub-flow{'s' if q > 1 else ''}", f"{significant(times(q))} x",
         f"{significant(1 + balls.excess(n, q))} x", f"{significant(100 / times(q))} %")
        for q in (1, 8, 32, 128)
    ]  # fmt: skip
    return Table(
        (f"hashed over {n} uplinks", "fullest link, exact", "1 + sqrt(2 ln n / q)", "speed of the step"), tuple(rows)
    )


def _collisions(figures: Figures, seed: Seed) -> tuple[ClosedFormCheck, ...]:
    n, senders, paths = figures.shape.up, _senders(figures), figures.shape.paths
    chosen = figures.values_per_plane
    return (
        ClosedFormCheck(
            f"{_SMALL_CLUSTER} flows on {_SMALL_CLUSTER} links meet nowhere",
            "n!/n^n",
            "share",
            balls.collision_free(_SMALL_CLUSTER),
            balls.simulated_collision_free(seed.stream("free"), _SMALL_CLUSTER, 40_000),
        ),
        ClosedFormCheck(
            f"links in use, {senders} flows on {n}",
            "1-(1-1/n)^m",
            "share",
            balls.busy_share(senders, n),
            balls.simulated_busy_share(seed.stream("busy"), senders, n, 1000),
        ),
        ClosedFormCheck(
            f"fullest link, {senders} flows on {n}",
            "exact",
            "x",
            balls.mean_max_load(senders, n) * n / senders,
            balls.simulated_max_load(seed.stream("max"), senders, 1, n, 1000),
        ),
        ClosedFormCheck(
            "fullest link, 64 flows of 256 sub-flows on 64",
            "exact",
            "x",
            balls.mean_max_load(64 * 256, 64) / 256,
            balls.simulated_max_load(seed.stream("sub"), 64, 256, 64, 200),
        ),
        ClosedFormCheck(
            f"fullest link, {chosen} different paths each",
            "within 0.5 %",
            "x",
            _static_max(figures),
            balls.simulated_max_load_of_subsets(seed.stream("subsets"), senders, chosen, paths, n, trials=200),
            tolerance=0.005,
        ),
    )


def _queues(figures: Figures, seed: Seed) -> tuple[ClosedFormCheck, ...]:
    sources = _sources(figures)
    return (
        ClosedFormCheck(
            f"mean queue at {_PERCENT}, random spray (M/D/1)",
            "rho/(2(1-rho))",
            "frames",
            queues.md1_backlog(_LOAD),
            queues.simulated_md1_backlog(seed.stream("md1"), _LOAD, 64, 40_000, 12_000),
        ),
        ClosedFormCheck(
            f"mean queue at {_PERCENT}, {sources} senders in turn (nD/D/1)",
            "integral of the tail",
            "frames",
            queues.ndd1_backlog(sources, sources / _LOAD),
            queues.simulated_ndd1_backlog(seed.stream("ndd1"), sources, sources / _LOAD, 4000),
        ),
    )


def _balance(balance: dict[bool, skipping.Balance]) -> tuple[ClosedFormCheck, ...]:
    words = {False: "marks ignored", True: "marked paths skipped once"}
    return tuple(
        ClosedFormCheck(f"fullest link at {_PERCENT} load, {words[skip]}", "", "x", None, balance[skip].load)
        for skip in words
    )


def _panels(figures: Figures, seed: Seed) -> tuple[Panel, ...]:
    n = figures.shape.up
    x = [float(q) for q in _SUBFLOWS]
    exact = [balls.mean_max_load(n * q, n) / q for q in _SUBFLOWS]
    thrown = [balls.simulated_max_load(seed.stream("max", q), n, q, n, 60) for q in _SUBFLOWS]
    loads = Panel(
        f"The fullest of {n} links",
        "random sub-flows of each flow (q)",
        "load of the fullest link over the mean",
        (
            *curves(x, {"exact": exact}),
            PlotSeries(
                "1 + sqrt(2 ln n / q)", tuple(x), tuple(1 + balls.excess(n, q) for q in _SUBFLOWS), marks="dashes"
            ),
            points("simulated", x, thrown),
        ),
        x_log=True,
    )
    sources = _sources(figures)
    random = [_us(figures, queues.md1_backlog(load)) for load in _LOADS]
    turns = [_us(figures, _periodic(figures, load)) for load in _LOADS]
    shown = _LOADS[5::11]
    periodic = [
        queues.simulated_ndd1_backlog(seed.stream("turn", i), sources, sources / load, 2000)
        for i, load in enumerate(shown)
    ]
    scaled = [type(e)(_us(figures, e.value), _us(figures, e.standard_error), e.trials) for e in periodic]
    waiting = Panel(
        f"Mean queue of a {RATE.format(figures.fabric.port_rate)} uplink",
        "load (share of the port's rate)",
        "mean queue (us)",
        (
            *curves(_LOADS, {"random (M/D/1)": random, f"{sources} senders in turn (nD/D/1)": turns}),
            points("in turn, simulated", shown, scaled),
        ),
        y_log=True,
    )
    return loads, waiting
