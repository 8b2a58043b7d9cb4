"""Planes: why a NIC is split into slow ports."""

from weft.core.quantity import RATE, significant
from weft.core.seeds import Seed
from weft.fabric.explain.base import ClosedFormCheck, Explanation, Panel, PlotSeries, Table, curves, named, points
from weft.fabric.explain.figures import LIGHT_PS_PER_MM, PS_PER_US, Figures, figures_of
from weft.fabric.theory import balls, flaps, reach
from weft.specs.site import SiteSpec

TOPIC = "planes"
_SPLITS = (1, 2, 4, 8, 16)
_TWO, _THREE = 2, 3
_DEFAULT_SPLIT = 8
_TRIALS = 4000
_PULLED_SHARE = 1024


def explain(site: SiteSpec, seed: Seed) -> Explanation:
    """Explain the split of the NIC for a site."""
    figures = figures_of(site)
    return Explanation(
        topic=TOPIC,
        title="Split every NIC over many slow planes",
        site=site.name,
        decision=_decision(figures),
        surprise="Many slow networks look worse than one fast one: more cables, more ports, more things to break. "
        "But a switch chip has a fixed capacity, so slower ports are more ports, and reach grows with the square.",
        paragraphs=_paragraphs(figures),
        table=_table(figures),
        checks=_checks(figures, seed.branch("explain", TOPIC)),
        panels=_panels(figures, seed.branch("explain", TOPIC, "plot")),
        sources=(
            "Clos, Bell System Technical Journal 32(2), 1953; Al-Fares et al., SIGCOMM 2008, section 2.2: k^2/2, k^3/4",
            "arXiv 2605.04333, section 2: multi-plane fabrics; 65,536 against 131,072 NICs, 2/3 optics, 3/5 switches",
            "Feller, Probability Theory vol. 1, section II.3: the birthday problem",
        ),
        provenance=named(TOPIC, site, seed),
    )


def _radix(figures: Figures, planes: int) -> int:
    """Return the ports of the site's switch where the NIC is split into `planes`, rounded down to an even number."""
    fabric = figures.fabric
    if planes == fabric.planes:
        return fabric.radix
    return fabric.parts.switch.capacity * planes // fabric.nic_rate // 2 * 2


def _split(figures: Figures) -> int:
    """Return the number of planes to argue for: the site's own, or the usual eight where it has one."""
    return figures.fabric.planes if figures.fabric.planes > 1 else _DEFAULT_SPLIT


def _decision(figures: Figures) -> str:
    fabric, split = figures.fabric, _split(figures)
    rate = RATE.format(fabric.nic_rate)
    if fabric.planes == 1:
        return (
            f"Instead of one {rate} port per NIC into a {fabric.tiers}-tier network, as {figures.name} has it, use "
            f"{split} ports of {RATE.about(fabric.nic_rate / split)} into {split} separate two-tier networks."
        )
    tiers = "one-tier" if fabric.tiers == 1 else "two-tier" if fabric.tiers == _TWO else "three-tier"
    return (
        f"{figures.name} splits each {rate} NIC into {fabric.planes} ports of {RATE.format(fabric.port_rate)}, each "
        f"into its own {tiers} network, instead of one {rate} port into a deeper one."
    )


def _paragraphs(figures: Figures) -> tuple[str, ...]:
    fabric, split = figures.fabric, _split(figures)
    one, many = _radix(figures, 1), _radix(figures, split)
    capacity, rate = RATE.about(fabric.parts.switch.capacity), RATE.format(fabric.nic_rate)
    if one < _TWO:
        first = (
            f"A switch of {capacity} has not even two ports of {rate}: without the split there is no network at all. "
            f"With {split} planes it has k = {many} ports and two tiers reach k^2/2 = {reach.hosts(_TWO, many):,} NICs."
        )
    else:
        needed = reach.tiers_needed(fabric.gpus, one)
        deep = "no practical number of" if needed is None else str(needed)
        first = (
            f"A switch of {capacity} is k = {one} ports of {rate} or k = {many} ports of "
            f"{RATE.about(fabric.nic_rate / split)}. Two tiers reach k^2/2 NICs: {reach.hosts(_TWO, one):,} or "
            f"{reach.hosts(_TWO, many):,}. In one plane, {fabric.gpus:,} NICs need {deep} tiers; three reach "
            f"k^3/4 = {reach.hosts(_THREE, one):,}."
        )
    cable_us = 4 * _middle_mm(figures) * LIGHT_PS_PER_MM / PS_PER_US
    saved_us = 2 * fabric.parts.switch.latency / PS_PER_US
    return (
        first,
        "Parts do not grow with the split: p planes of k-port switches take 3p/k switches per NIC, and p/k = NIC rate "
        "/ switch capacity is the same for every split. Only tiers cost: two take 3 p/k switches and 2 cable stages, "
        "three take 5 p/k and 3, so the split saves 2/5 of the switches and 1/3 of the optics, for ever.",
        f"It is also nearer: 3 switches on the longest path instead of 5, {significant(saved_us)} us less in switches "
        f"each way and about {significant(cable_us, 2)} us less in cable at this site's lengths.",
        f"And it breaks in smaller pieces: a dead NIC port takes 1/{split} of one NIC, not the node out of the job. "
        "What the split does not save is the NIC's own optic: all ports share it.",
    )


def _middle_mm(figures: Figures) -> int:
    links = figures.fabric.links
    longest = links.t1_t2 or links.t0_t1 or links.nic_t0
    return longest.length // 2


def _table(figures: Figures) -> Table:
    split, fabric = _split(figures), figures.fabric
    one, many = _radix(figures, 1), _radix(figures, split)
    rate = RATE.about(fabric.nic_rate)
    columns = ("", f"{split} planes of {RATE.about(fabric.nic_rate / split)}, 2 tiers", f"1 plane of {rate}, 3 tiers")
    lanes = max(1, fabric.parts.optic.rate * split // fabric.nic_rate)

    def share(parts: int) -> str:
        return f"{significant(100 / parts)} %" if parts else "-"

    few = one >= _TWO
    rows: list[tuple[str, str, str]] = [
        ("switch ports (k)", f"{many:,}", f"{one:,}" if few else "below 2"),
        ("NICs reached", f"{reach.hosts(_TWO, many):,}", f"{reach.hosts(_THREE, one):,}" if few else "none"),
        (
            "switches per 1,024 NICs",
            significant(float(1024 * reach.switches_per_nic(_TWO, many, split))),
            significant(float(1024 * reach.switches_per_nic(_THREE, one))) if few else "-",
        ),
        # A NIC's bandwidth is cabled once into the fabric and once between each two tiers.
        ("optic ends per NIC, in NIC rates", str(2 * _TWO), str(2 * _THREE)),
        ("switches on the longest path", str(reach.longest_path(_TWO)), str(reach.longest_path(_THREE))),
        ("a T0-T1 link down: share of a T0's uplinks", share(many // 2), share(one // 2)),
        ("a switch optic down: share of a T0's uplinks", share(many // 2 // min(lanes, many // 2)), share(one // 2)),
        ("a NIC port down: share of that NIC", share(split), share(1)),
        ("a T0 down: share of each NIC under it", share(split), share(1)),
        (
            "a T1 down: share of all cross-T1 capacity",
            share(split * many // 2),
            f"one pod: {share(one // 2)}" if few else "-",
        ),
        ("the NIC's optic down: share of that NIC", share(1), share(1)),
    ]
    return Table(columns, tuple(rows))


def _pulled(figures: Figures) -> int:
    return max(_TWO, figures.fabric.gpus // _PULLED_SHARE)


def _checks(figures: Figures, seed: Seed) -> tuple[ClosedFormCheck, ...]:
    gpus, split, ports = figures.fabric.gpus, _split(figures), _pulled(figures)
    if ports > gpus * split:
        return ()
    return (
        ClosedFormCheck(
            f"{ports:,} random NIC ports down: no NIC lost more than 1/{split}",
            "prod (Np - ip) / (Np - i)",
            "share",
            flaps.still_whole(ports, gpus, split),
            flaps.simulated_still_whole(seed.stream("whole"), ports, gpus, split, _TRIALS),
        ),
        ClosedFormCheck(
            f"{ports:,} random NIC ports down: speed of the slowest NIC, so of the job",
            "1 - E[most ports lost by one NIC] / p, exact",
            "share",
            _slowest(ports, gpus, split),
            flaps.simulated_slowest(seed.stream("slowest"), ports, gpus, split, _TRIALS),
        ),
    )


def _slowest(ports: int, gpus: int, split: int) -> float:
    # Pulling ports at random is one sender's choice among all ports, with the NICs as links.
    return 1 - balls.mean_max_load_of_subsets(1, ports, gpus * split, gpus) / split


def _panels(figures: Figures, seed: Seed) -> tuple[Panel, ...]:
    splits = [p for p in _SPLITS if _radix(figures, p) >= _TWO]
    radix = [_radix(figures, p) for p in splits]
    x = [float(p) for p in splits]
    own = figures.fabric.planes
    reached = Panel(
        "NICs reached by one switch type",
        "planes that each NIC is split into",
        "NICs reached",
        (
            *curves(
                x, {f"{t} tier{'s' * (t > 1)}": [float(reach.hosts(t, k)) for k in radix] for t in (1, _TWO, _THREE)}
            ),
            PlotSeries(figures.name, (float(own),), (float(figures.fabric.gpus),), marks="points"),
        ),
        x_log=True,
        y_log=True,
        x_ticks=tuple(x),
    )
    gpus, split = figures.fabric.gpus, _split(figures)
    most = max(_TWO, min(gpus, 8 * _pulled(figures)))
    counts = sorted({max(1, round(most ** (step / 8))) for step in range(9)})
    some = counts[:: max(1, len(counts) // 5)]
    slow = [flaps.simulated_slowest(seed.stream(n), n, gpus, split, 200) for n in some]
    job = Panel(
        "Speed of a synchronous job with dead NIC ports",
        "random NIC ports down, of " + f"{gpus * split:,}",
        "speed of the slowest NIC (share)",
        (
            *curves([float(n) for n in counts], {f"{split} planes": [_slowest(n, gpus, split) for n in counts]}),
            points(f"{split} planes, simulated", [float(n) for n in some], slow),
            PlotSeries("1 plane: the node is cut off", (1.0, float(most)), (0.0, 0.0), marks="dashes"),
        ),
        x_log=True,
    )
    return reached, job
