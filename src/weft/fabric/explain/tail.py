"""Tail: why the worst of everything counts, and what feedback on each path does to it."""

import math

from weft.core.quantity import significant
from weft.core.seeds import Seed
from weft.fabric.explain.base import ClosedFormCheck, Explanation, Panel, PlotSeries, Table, curves, named, points
from weft.fabric.explain.figures import Figures, figures_of
from weft.fabric.theory import extremes, flaps
from weft.specs.site import SiteSpec

TOPIC = "tail"
_CHANCES = (1e-6, 1e-5, 1e-4)
_JITTER = 0.01
_PERCENT = f"{100 * _JITTER:.0f} %"
_PARETO = 3.0
_DRAWS = 20_000_000
_MESSAGE_BYTES = 2**30
_MOST_TRIALS = 4000
_SIZES = tuple(2**step for step in range(21))


def explain(site: SiteSpec, seed: Seed) -> Explanation:
    """Explain for a site why the slowest of all counts."""
    figures = figures_of(site)
    branch = seed.branch("explain", TOPIC)
    return Explanation(
        topic=TOPIC,
        title="Design for the worst, not for the mean",
        site=site.name,
        decision=f"The network is judged by the slowest of {site.fabric.gpus:,} transfers of a step; every mechanism "
        "is there to shorten the tail, even where that costs a little of the mean.",
        surprise="Throughput is usually a mean, and a mean hides one bad path in a million. A synchronous step is a "
        "maximum: it ends when the last of all has finished, so a one-in-a-million delay is an everyday event.",
        paragraphs=_paragraphs(figures),
        table=_table(figures),
        checks=_checks(figures, branch),
        panels=_panels(figures, branch.branch("plot")),
        sources=(
            "David and Nagaraja, Order Statistics, 3rd edition, chapters 2 and 3: F^N, harmonic numbers",
            "Dean and Barroso, The Tail at Scale, CACM 56(2), 2013",
            "arXiv 2605.04333, section 4 and figures 6 and 7: one of four planes of one node costs the job 25 %",
        ),
        provenance=named(TOPIC, site, seed),
    )


def _packets(figures: Figures) -> int:
    return max(1, _MESSAGE_BYTES // max(1, figures.fabric.packet))


def _feedback_packets(figures: Figures) -> int:
    return max(1, round(figures.round_trip_ps / figures.rotation_ps * figures.values))


def _paragraphs(figures: Figures) -> tuple[str, ...]:
    gpus, planes = figures.fabric.gpus, figures.fabric.planes
    chances = ", ".join(f"{p:.0e}: {significant(100 * extremes.any_bad(p, gpus))} %" for p in _CHANCES)
    normal = extremes.mean_of_max_normal(gpus)
    turns = _packets(figures) / figures.values
    lost = flaps.lost_reshuffled(_feedback_packets(figures), figures.values)
    repair = math.ceil(lost)
    return (
        f"Let each of {gpus:,} transfers be bad with a small chance p. The step is bad with 1 - (1 - p)^N: {chances}. "
        "Rare is as good as never only far below 1/N.",
        f"How bad? If delays are exponential, the mean of the largest is H_N = {significant(extremes.harmonic(gpus))} "
        f"times the mean of one, and each doubling of N adds only ln 2. With normal jitter of {_PERCENT} the largest "
        f"is {significant(normal)} deviations out, so the step is {significant(100 * _JITTER * normal)} % longer. With "
        f"a heavy tail (x^-{_PARETO:.0f}) it grows like N^(1/{_PARETO:.0f}): "
        f"{significant(_pareto(gpus))} times. Tails must be cut off, not thinned.",
        f"Spraying without feedback makes it worse: each connection now uses {figures.values} paths, and if a share f "
        "of paths is bad, 1 - (1 - f)^values of connections meet one, for as long as it is bad: a message of 1 GiB "
        f"comes round {significant(turns)} times and loses a packet each time.",
        f"Feedback on each path turns that into a constant. The set is rotated in {significant(figures.rotation_us)} "
        f"us and the answer takes {significant(figures.round_trip_us)} us, so a sender knows about every path before "
        f"it has used it {repair + 1} times: {significant(lost)} packets lost once, repaired in a round trip, whatever "
        "the message's size. A longer set would learn later, a shorter one would see fewer paths: the rotation should "
        "last about a round trip.",
        f"What cannot be hidden is shared capacity: one NIC port down slows one NIC to {planes - 1}/{planes}, and so "
        f"the whole job by {significant(100 / planes)} %. That is published too: one of four planes of one node cost a "
        "job of 50,000 GPUs a quarter of its speed for a minute, and nothing else."
        if planes > 1
        else "What cannot be hidden is shared capacity: with one plane, a NIC port down stops that NIC, and so the "
        "job.",
    )  # fmt: skip


def _table(figures: Figures) -> Table:
    sizes = sorted({8, 1024, figures.fabric.gpus})
    rows = [
        *((f"step meets a delay of chance {p:.0e}", *(f"{significant(100 * extremes.any_bad(p, n))} %" for n in sizes))
          for p in _CHANCES),
        ("largest of N exponentials, in means", *(significant(extremes.harmonic(n)) for n in sizes)),
        ("largest of N normals, in deviations", *(significant(extremes.mean_of_max_normal(n)) for n in sizes)),
        (f"step with {_PERCENT} jitter",
         *(f"+{significant(100 * _JITTER * extremes.mean_of_max_normal(n))} %" for n in sizes)),
        (f"largest of N with tail x^-{_PARETO:.0f}, in means", *(significant(_pareto(n)) for n in sizes)),
    ]  # fmt: skip
    return Table(("transfers in a step", *(f"{n:,}" for n in sizes)), tuple(rows))


def _pareto(count: int) -> float:
    """Return the mean of the largest of `count` heavy-tailed delays, in means of one."""
    return extremes.mean_of_max_pareto(count, _PARETO) * (_PARETO - 1) / _PARETO


def _trials(count: int) -> int:
    return max(100, min(_MOST_TRIALS, _DRAWS // count))


def _checks(figures: Figures, seed: Seed) -> tuple[ClosedFormCheck, ...]:
    gpus = figures.fabric.gpus
    trials = _trials(gpus)
    exponential, normal = seed.stream("exponential"), seed.stream("normal")
    packets = _feedback_packets(figures)
    bad = tuple(
        ClosedFormCheck(
            f"a step of {gpus:,} meets a delay of chance {p:.0e}",
            "1-(1-p)^N",
            "share",
            extremes.any_bad(p, gpus),
            extremes.simulated_any_bad(seed.stream("bad", i), p, gpus, trials),
        )
        for i, p in enumerate(_CHANCES)
    )
    return (
        *bad,
        ClosedFormCheck(
            f"largest of {gpus:,} exponential delays, in means",
            "H_N",
            "x",
            extremes.harmonic(gpus),
            extremes.simulated_max(exponential.standard_exponential, gpus, trials),
        ),
        ClosedFormCheck(
            f"step of {gpus:,} with {_PERCENT} normal jitter",
            "1 + s E[max of N]",
            "x",
            1 + _JITTER * extremes.mean_of_max_normal(gpus),
            _step(extremes.simulated_max(normal.standard_normal, gpus, trials)),
        ),
        ClosedFormCheck(
            "packets that a bad path costs, with feedback",
            "1 + E[(T/R + X - 1)+]",
            "packets",
            flaps.lost_reshuffled(packets, figures.values),
            flaps.simulated_lost(seed.stream("lost"), figures.values, packets, 20_000, shuffled=True),
        ),
    )


def _step(largest: extremes.Estimate) -> extremes.Estimate:
    return extremes.Estimate(1 + _JITTER * largest.value, _JITTER * largest.standard_error, largest.trials)


def _panels(figures: Figures, seed: Seed) -> tuple[Panel, ...]:
    x = [float(n) for n in _SIZES]
    gpus = float(figures.fabric.gpus)
    some = _SIZES[2:17:2]
    small = [extremes.simulated_any_bad(seed.stream("bad", n), _CHANCES[-1], n, 400) for n in some]
    bad = Panel(
        "A step meets at least one bad transfer",
        "transfers in the step (N)",
        "probability",
        (
            *curves(x, {f"chance {p:.0e}": [extremes.any_bad(p, n) for n in _SIZES] for p in _CHANCES}),
            points(f"chance {_CHANCES[-1]:.0e}, simulated", [float(n) for n in some], small),
            PlotSeries(figures.name, (gpus, gpus), (0.0, 1.0), marks="dashes"),
        ),
        x_log=True,
    )
    generator = seed.stream("exponential")
    largest = [extremes.simulated_max(generator.standard_exponential, n, 100) for n in some]
    slow = Panel(
        "The slowest of N",
        "transfers in the step (N)",
        "mean of the largest, in means of one",
        (
            *curves(x, {
                "exponential: H_N": [extremes.harmonic(n) for n in _SIZES],
                "tail x^-3: N^(1/3)": [_pareto(n) for n in _SIZES],
                "1 % normal jitter": [1 + _JITTER * extremes.mean_of_max_normal(n) for n in _SIZES],
            }),
            points("exponential, simulated", [float(n) for n in some], largest),
            PlotSeries(figures.name, (gpus, gpus), (1.0, 100.0), marks="dashes"),
        ),
        x_log=True,
        y_log=True,
    )  # fmt: skip
    return bad, slow
