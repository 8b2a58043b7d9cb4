"""Collectives beside MRC: a ring, everybody to everybody, and packets lost at random (S4 to S6)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from verification.findings import Experiment, Finding, scenario, site_of, within
from verification.rivals import COLOURS, MRC_LINE, ROCE_LINE, bed, mean_of, order, shown, simulate
from weft.collectives.algorithms import ring_all_reduce
from weft.netsim.results import Report
from weft.specs.site import SiteSpec


def ring_traffic(ranks: int, part: int, rounds: int, stride: int) -> dict[str, Any]:
    """Return the first rounds of a ring all-reduce; rank r sits on the T0 after that of rank r - 1."""
    schedule = ring_all_reduce(ranks)
    place = [(rank % stride) * (ranks // stride) + rank // stride for rank in range(ranks)]
    flows = [
        {
            "name": f"s{send}", "source": place[int(schedule.source[send])],
            "destination": place[int(schedule.target[send])], "size": f"{part} B",
            "after": [f"s{before}" for before in schedule.before_of(send)],
        }
        for send in range(min(len(schedule), rounds * ranks))
    ]  # fmt: skip
    return {"pattern": "flows", "flows": flows}


def round_ends_ps(report: Report, ranks: int) -> Any:
    """Return when the last send of every round of a ring had arrived."""
    return np.array([flow.arrived_ps for flow in report.flows]).reshape(-1, ranks).max(axis=1)


def bus_gbps(report: Report, part: int, ranks: int, first: int = 0, last: int | None = None) -> float:
    """Return the bus bandwidth of a ring: what each rank sends in rounds `first` to before `last` over their time."""
    ends_ps = round_ends_ps(report, ranks)
    end = len(ends_ps) if last is None else last
    return part * 8 * 1000 * (end - first) / int(ends_ps[end - 1] - (ends_ps[first - 1] if first else 0))


RINGS = {"4 MiB": (2**16, 126, 0, 126), "64 MiB": (2**20, 126, 0, 126), "1 GiB": (2**24, 28, 8, 20)}
"""For every size: bytes of a part, rounds that are run, and those that are measured."""


def s4() -> Experiment:
    """A ring over 64 NICs."""
    ranks = 64
    site = bed(64, 16)
    table: dict[str, dict[str, list[float]]] = {}
    begins: dict[str, list[float]] = {}
    for name in ("mrc", "roce:1", "roce:2", "roce:4", "roce:8", "roce:16", "reps", "adaptive"):
        table[name] = {}
        for label, (part, rounds, first, last) in RINGS.items():
            spec = scenario(ring_traffic(ranks, part, rounds, 8), bin_us=100)
            seeds = 10 if name in ("roce:8", "roce:16") and label == "1 GiB" else 3
            runs = [simulate(spec, site, name, seed) for seed in range(seeds)]
            table[name][label] = [bus_gbps(each, part, ranks, first, last) for each in runs]
            if label == "1 GiB":
                begins[name] = [bus_gbps(each, part, ranks, 0, 4) for each in runs]
    means = {label: {name: float(np.mean(row[label])) for name, row in table.items()} for label in RINGS}
    large, small = means["1 GiB"], means["4 MiB"]
    found = (
        within("RoCE 1 QP over MRC, 1 GiB", large["roce:1"] / large["mrc"], 0.2, 0.6, "", "R15: about half"),
        order("more queue pairs help", {"mrc": large["mrc"], "roce:8": large["roce:8"], "roce:1": large["roce:1"]}, "Gb/s",
              "R15: MRC with one QP highest"),
        within("16 QPs over 8, 1 GiB", large["roce:16"] / large["roce:8"], 0.8, 1.25, "", "R15: small gain past 8"),
        shown("the same in Gb/s, 10 seeds", f"{mean_of(table['roce:16']['1 GiB'])} over {mean_of(table['roce:8']['1 GiB'])}; "
              f"in the first 4 rounds {mean_of(begins['roce:16'])} over {mean_of(begins['roce:8'])}"),
        within("RoCE 1 QP over MRC, 4 MiB", small["roce:1"] / small["mrc"], 0.7, 1.1, "", "R15: equal at small sizes"),
        *(shown(f"{name}, 4 MiB / 64 MiB / 1 GiB", " / ".join(f"{np.mean(v):.0f}" for v in row.values()) + " Gb/s")
          for name, row in table.items()),
    )  # fmt: skip

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        sizes = [part * ranks / 2**20 for part, *_ in RINGS.values()]
        for colour, (name, row) in zip([*COLOURS, "#000000", "#999999"], table.items(), strict=False):
            axes.plot(sizes, [float(np.mean(values)) for values in row.values()], "o-", label=name, color=colour)
        axes.set_xscale("log")
        axes.set(title="S4: bus bandwidth of a ring over 64 NICs", xlabel="MiB", ylabel="Gb/s")
        axes.legend(ncols=2)

    return Experiment(
        "S4", "A ring over 64 NICs", "64 NICs at 400G, 8 T0s of 8, 8 T1s, one plane; ring neighbours hang on neighbouring "
        "T0s, so that every flow crosses T1s. All 126 rounds, of 1 GiB rounds 9 to 20; the mean of 3 seeds. The published "
        "cluster has 4 planes of 100G for MRC; its placement is not known.", found, draw,
        remark="The first rounds of 1 GiB are left out: queue pairs of DCQCN begin at line rate with alpha = 1, so that each "
        "of the first CNPs halves the rate, and a gain of 1/256 takes milliseconds to forget that. The published runs last "
        "seconds on the same queue pairs. The last rounds are not all there either: ranks that are ahead have left the links "
        "to the others.",
    )  # fmt: skip


def s5() -> Experiment:
    """Everybody to everybody."""
    site = bed(64, 16)
    sizes = {"16 KiB": (2**14, 10), "128 KiB": (2**17, 10), "1 MiB": (2**20, 3)}
    table: dict[str, dict[str, list[float]]] = {}
    for name in ("mrc", "roce:1", "roce:2", "roce:8"):
        table[name] = {}
        for label, (size, seeds) in sizes.items():
            spec = scenario({"pattern": "all-to-all", "size": f"{size} B"}, bin_us=100)
            reports = [simulate(spec, site, name, seed) for seed in range(seeds)]
            ends_ps = [max(flow.arrived_ps for flow in report.flows) for report in reports]
            table[name][label] = [63 * size * 8 * 1000 / end_ps for end_ps in ends_ps]
    means = {label: {name: float(np.mean(row[label])) for name, row in table.items()} for label in sizes}
    found = (
        *(_best_at(label, row, "16 KiB") for label, row in means.items()),
        *(replace(within(f"8 QPs over 1, {label}", means[label]["roce:8"] / means[label]["roce:1"], 0.8, 1.2, "", "R17: no help"),
                  why=why)
          for label, why in (("128 KiB", ""), ("1 MiB", "queue pairs cost a NIC nothing here, see below"))),
        *(shown(f"{name}, 16 / 128 KiB / 1 MiB each", " / ".join(mean_of(v) for v in row.values()) + " Gb/s a NIC")
          for name, row in table.items()),
        *(shown(f"{name}, 1 MiB, of what its frames let through",
                f"{100 * means['1 MiB'][name] / (MRC_LINE if name == 'mrc' else ROCE_LINE):.1f} %")
          for name in ("mrc", "roce:8")),
    )  # fmt: skip
    return Experiment(
        "S5", "Everybody to everybody", "64 NICs as in S4; each sends so many bytes to each of 63 others, all at once and a "
        "packet to each in turn; 10 seeds, 3 of 1 MiB.", found,
        remark="Of the 400 Gb/s, MRC's headers (166 bytes around 4,096, with both IPv6 headers) take 3.9 %, RoCE's (82 bytes "
        "over IPv4) 2 %; MRC's acknowledgements take 1 % and its probes of the way back 2 %, because each of 63 receiving "
        "queue pairs proves its own. The first packet arrives after 9 us, which is 5 % of 128 KiB each. A queue pair of RoCE "
        "costs nothing here: 504 of them on a NIC spread an all-to-all as evenly as spraying does, while NICs get slower "
        "with the number of queue pairs, which is not modelled.",
    )  # fmt: skip


def _best_at(label: str, row: Mapping[str, float], equal_at: str) -> Finding:
    """Return the finding that MRC is best at a size, or within 3 % of it where messages are shorter than a round trip."""
    name, best = max(((n, v) for n, v in row.items() if n != "mrc"), key=lambda each: each[1])
    return Finding(
        f"MRC is best, {label}", "R17: at all sizes", f"{row['mrc']:.1f} against at most {best:.1f} Gb/s ({name})",
        row["mrc"] > best * (0.97 if label == equal_at else 1),
        "RoCE's headers are half as long, see below" if row["mrc"] / MRC_LINE > best / ROCE_LINE else "",
    )  # fmt: skip


LOSSES = (0.0, 0.001, 0.01)


def _under_loss(
    name: str, site: SiteSpec, part: int, seeds: Sequence[int] = (1, 2, 3), losses: Sequence[float] = LOSSES
) -> list[float]:
    """Return the bus bandwidth of a ring over all NICs where packets are lost at random, in Gb/s; the mean of seeds."""
    ranks, t0s = site.fabric.gpus, site.fabric.gpus // (site.fabric.radix // 2)
    links = [f"link0-p{plane}-i{nic}" for plane in range(site.fabric.planes) for nic in range(ranks)]
    rates = []
    for loss in losses:
        # A packet crosses the links of two NICs, and each loses half of what the published switch drops.
        faults = [{"kind": "loss", "target": link, "amount": loss / 2} for link in links]
        spec = scenario(
            ring_traffic(ranks, part, 4, t0s), bin_us=1000, faults=faults if loss else [],
            transport={"roce": {"timeout": 8}}, until_us=200_000,
        )  # fmt: skip
        found = [simulate(spec, site, name, seed) for seed in seeds]
        done = [all(flow.arrived_ps >= 0 for flow in each.flows) for each in found]
        each = [bus_gbps(r, part, ranks) if whole else _so_far(r) for r, whole in zip(found, done, strict=True)]
        rates.append(sum(each) / len(each))
    return rates


def s6() -> Experiment:
    """Packets lost at random."""
    many, few = site_of(4, gpus=64, radix=16, rate_gbps=100), bed()
    large = {
        label: _under_loss("mrc", many, part)
        for label, part in (("64 MiB", 2**20), ("256 MiB", 2**22), ("1 GiB", 2**24))
    }
    beside = {name: _under_loss(name, bed(64, 16), 2**22, (1,)) for name in ("roce:1", "roce:8")}
    small = {
        name: {
            label: _under_loss(name, few, part)
            for label, part in (("1 MiB", 2**16), ("16 MiB", 2**20), ("256 MiB", 2**24))
        }
        for name in ("mrc", "roce:1", "roce:8")
    }
    kept = {label: [rate / row[0] for rate in row] for label, row in large.items()}
    each = {name: [rate / rows["256 MiB"][0] for rate in rows["256 MiB"]] for name, rows in small.items()}
    found = (
        within("MRC at 0.1 %, 1 GiB over 64 NICs", kept["1 GiB"][1], 0.93, 1.02, "of its rate", "R16: negligible"),
        within("MRC at 1 %, 1 GiB over 64 NICs", kept["1 GiB"][2], 0.6, 0.9, "of its rate", "R16: loses about a third"),
        order("kept at 0.1 %, 256 MiB over 16", {"mrc": each["mrc"][1], "roce:1": each["roce:1"][1]}, "", "R16: RoCE poor"),
        within("RoCE 1 QP at 1 %, 256 MiB over 16", each["roce:1"][2], 0, 0.25, "of its rate", "R16: unusable"),
        *(shown(f"mrc, 64 NICs, {label}", _at_losses(row)) for label, row in large.items()),
        *(shown(f"{name}, 64 NICs, 256 MiB", _at_losses(row)) for name, row in beside.items()),
        *(shown(f"{name}, 16 NICs, {label}", _at_losses(row)) for name, rows in small.items() for label, row in rows.items()),
    )  # fmt: skip
    return Experiment(
        "S6", "Packets lost at random", "The first 4 of 126 rounds of a ring, neighbours on different T0s, 3 seeds. MRC over the 64 "
        "NICs of S4 with 4 planes of 100G, as in the paper's cluster C, and over the 16 of test bed D; RoCE over one plane of "
        "400G. RoCE's timer is 1 ms (t = 8) instead of 67 ms, scaled down with the sizes; a run ends after 200 ms at the latest.",
        found,
        remark="A round is over with the slowest of 64 sends: at 0.1 % the mean send takes 1 % longer and the slowest a fifth. "
        "What MRC loses is the tail of a message, whose last packets are missed after a quiet time and a probe, and once more "
        "where the repair is lost too. On test bed D a queue pair has four paths and as many EVs: there a retired one is a "
        "quarter of its paths, others fill up, packets that come late are taken for lost and retire more. The 256 EVs of the "
        "paper are paths of their own only on larger fabrics. RoCE's rows are those of test bed D because over 64 NICs its "
        "first rounds are slow without any loss (S4): one seed there, with no row held to it. Two rows fail: MRC's mistaken "
        "retirements on four paths cost as large a share as go-back-N costs a RoCE flow that ECMP has left a third of the line, "
        "and of so little 1 % of loss leaves a larger share; in Gb/s MRC has three and eight times as much. The "
        "same mistakes come without any loss where rings stay full for long: 4 GiB over 64 NICs with 4 planes begin at 378 Gb/s and "
        "have 313 over four rounds, with 2,681 packets that came late taken for lost and 716 EVs retired for it (seed 1).",
    )  # fmt: skip


def _at_losses(rates: Sequence[float]) -> str:
    return " / ".join(f"{rate:.0f}" for rate in rates) + " Gb/s at 0 / 0.1 / 1 %"


def _so_far(report: Report) -> float:
    """Return the rate of an unfinished run: what had arrived of the traffic of one NIC, in Gb/s."""
    return float(report.series.received[-1].sum()) / report.hosts * 8 * 1000 / report.end_ps
