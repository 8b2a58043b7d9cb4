"""Collectives beside MRC: a ring, everybody to everybody, and packets lost at random (S4 to S6)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from verification.findings import Experiment, Finding, site_of, within
from verification.rivals import COLOURS, MRC_LINE, ROCE_LINE, as_published, bed, mean_of, order, shown, simulate
from weft.collectives.algorithms import ring_all_reduce
from weft.netsim.flow import Flow
from weft.netsim.results import Report
from weft.netsim.simulate import run, set_up, transports_of
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
            spec = as_published(ring_traffic(ranks, part, rounds, 8), bin_us=100)
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


EXCHANGES = {"16 KiB": (2**14, 6, 2), "128 KiB": (2**17, 12, 8), "1 MiB": (2**20, 12, 8)}
"""For every size: bytes to each peer, how many follow each other, and how many of them are left out."""
SERVER = 8


def exchanges(ranks: int, size: int, times: int, inside: bool) -> tuple[Flow, ...]:
    """Return `times` times everybody to everybody, each rank's next one after everything of the last one that it sends or receives.

    Ranks of one server, 8 NICs in a row, have links of their own; with `inside` they use their NICs all the same.
    """
    ends = [(a, (a + step) % ranks) for step in range(1, ranks) for a in range(ranks)]
    ends = [(a, b) for a, b in ends if inside or a // SERVER != b // SERVER]
    into: list[list[int]] = [[] for _ in range(ranks)]
    out: list[list[int]] = [[] for _ in range(ranks)]
    for number, (a, b) in enumerate(ends):
        out[a].append(number)
        into[b].append(number)
    flows: list[Flow] = []
    before: list[tuple[int, ...]] = [()] * ranks
    for turn in range(times):
        first = len(flows)
        flows += [Flow(f"{turn}:{a}-{b}", a, b, size, 0, before[a]) for a, b in ends]
        before = [(len(flows) + rank,) for rank in range(ranks)]
        flows += [
            Flow(f"{turn}:{rank}", rank, rank, 0, 0, tuple(first + n for n in into[rank]),
                 after_sent=tuple(first + n for n in out[rank]))
            for rank in range(ranks)
        ]  # fmt: skip
    return tuple(flows)


def exchange_gbps(
    name: str,
    label: str,
    seed: int,
    *,
    below: int = SERVER,
    inside: bool = False,
    transport: Mapping[str, Any] | None = None,
) -> tuple[float, float]:
    """Return what a NIC sends in the exchanges that count, and in the first one, in Gb/s; `below` NICs hang on a T0."""
    size, times, left_out = EXCHANGES[label]
    spec = as_published({"pattern": "all-to-all", "size": f"{size} B"}, bin_us=1000, transport=transport)
    setup = replace(set_up(spec, bed(64, 2 * below), seed), flows=exchanges(64, size, times, inside))
    (chosen,) = transports_of(setup, (name,))
    report = run(setup, chosen, engine="engine")
    ends_ps = np.array([flow.arrived_ps for flow in report.flows]).reshape(times, -1).max(axis=1)
    bits = len(report.flows) // times // 64 * size * 8 * 1000
    counted = times - left_out
    return bits * counted / int(ends_ps[-1] - ends_ps[left_out - 1]), bits / int(ends_ps[0])


def s5() -> Experiment:
    """Everybody to everybody."""
    names, seeds = ("mrc", "roce:1", "roce:2", "roce:8", "roce:16"), range(3)
    runs = {
        name: {label: [exchange_gbps(name, label, seed) for seed in seeds] for label in EXCHANGES} for name in names
    }
    table = {name: {label: [late for late, _ in each] for label, each in row.items()} for name, row in runs.items()}
    firsts = {name: {label: [first for _, first in each] for label, each in row.items()} for name, row in runs.items()}
    means = {label: {name: float(np.mean(row[label])) for name, row in table.items()} for label in EXCHANGES}
    plain, _ = exchange_gbps("mrc", "1 MiB", 0, transport={"mrc": {"skip": False}})
    few = {name: {label: exchange_gbps(name, label, 0, below=32)[0] for label in EXCHANGES} for name in names}
    beside = {name: exchange_gbps(name, "1 MiB", 0, inside=True) for name in ("mrc", "roce:1", "roce:8")}
    found = (
        *(_best_at(label, row, "16 KiB") for label, row in means.items()),
        *(replace(within(f"8 QPs over 1, {label}", means[label]["roce:8"] / means[label]["roce:1"], 0.8, 1.2, "", "R17: no help"),
                  why=why)
          for label, why in (("128 KiB", ""), ("1 MiB", "queue pairs cost a NIC nothing here, see below"))),
        *(within(f"16 QPs over 1, {label}, 2 T0s of 32", few["roce:16"][label] / few["roce:1"][label], 0.8, 1.0, "",
                 "R17: slightly worse than 1")
          for label in EXCHANGES),
        *(replace(_best_at(f"{label}, 2 T0s of 32", {name: row[label] for name, row in few.items()}, "16 KiB, 2 T0s of 32"),
                  why="longer headers and SACKs, see below")
          for label in EXCHANGES),
        *(shown(f"{name}, 16 / 128 KiB / 1 MiB each", " / ".join(mean_of(v) for v in row.values()) + " Gb/s a NIC; the first "
                + " / ".join(f"{np.mean(v):.0f}" for v in firsts[name].values())) for name, row in table.items()),
        *(shown(f"{name}, 1 MiB, of what its frames let through",
                f"{100 * means['1 MiB'][name] / (MRC_LINE if name == 'mrc' else ROCE_LINE):.1f} %")
          for name in ("mrc", "roce:8")),
        *(shown(f"{name}, 16 / 128 KiB / 1 MiB each, 2 T0s of 32",
                " / ".join(f"{rate:.1f}" for rate in row.values()) + " Gb/s a NIC") for name, row in few.items()),
        shown("mrc, 1 MiB, no EV skipped for a mark", f"{plain:.1f} Gb/s a NIC"),
        *(shown(f"{name}, 1 MiB, the 7 others of a server over NICs too", f"{late:.1f} Gb/s a NIC; the first {first:.1f}")
          for name, (late, first) in beside.items()),
    )  # fmt: skip
    return Experiment(
        "S5", "Everybody to everybody", "64 NICs as in S4. The 64 GPUs of the paper's cluster C are 8 servers of 8, which have links of "
        "their own; the NICs of a server hang on one T0, as S4's ring has them and R15's collisions need: so a NIC sends so "
        "many bytes to each of 56 others, all across T1s, all at once and a packet to each in turn. 12 such exchanges (6 of 16 KiB) "
        "follow each other on the same queue pairs, a rank's next one after all that it sends and receives; the last 4 count, "
        "3 seeds.", found,
        remark=S5_REMARK,
    )  # fmt: skip


S5_REMARK = (
    "Every uplink is full here, and what differs is how evenly packets are spread over them. One of 56 queue pairs of a NIC "
    "sends a packet every 5 us: when an EV's turn comes its mark is old, so it skips nothing (docs/protocol.md). "
    "A queue pair carries data both ways, so that data proves the ways back and nobody has "
    "to probe them; MRC's acknowledgements take 0.8 % of a link, RoCE's 0.5 %. Where the 7 neighbours of a server use their "
    "NICs too, uplinks have a ninth to spare, 8 queue pairs fill every link as spraying does, and RoCE's shorter headers (82 "
    "bytes over IPv4 against 126) put it ahead, after its first milliseconds. A queue pair of RoCE costs a NIC nothing here: 448 "
    "of them spread data better than 56. What is published of their cost is of small messages (FaRM, NSDI 2014; eRPC, NSDI "
    "2019; SRNIC, NSDI 2023) and not of 4 KiB packets at 400 Gb/s, so that there is nothing to take a figure from; RCCL lets "
    "sends have fewer queue pairs than rings since ROCm 7.1 (RCCL_IB_QPS_PER_P2P), as R17 would ask for. "
    "How many T0s cluster C has is not published. With 2 T0s of 32 NICs 24 of 56 peers hang "
    "on the same T0 and uplinks are 57 % full: 1 queue pair is enough, 2 are as good, and more are worse, as R17 has it; MRC then "
    "is 0.9 to 1.3 % behind 1 queue pair, which its headers (1.1 %) and SACKs take. This was tried after 8 T0s had been seen to miss the line "
    "on queue pairs, and the limits of its rows were written down with its figures known; with 2, 4 or 8 T0s not all of R17 holds."
)


def _best_at(label: str, row: Mapping[str, float], equal_at: str) -> Finding:
    """Return the finding that MRC is best at a size, or within 3 % of it where messages are shorter than a round trip."""
    name, best = max(((n, v) for n, v in row.items() if n != "mrc"), key=lambda each: each[1])
    return Finding(
        f"MRC is best, {label}", "R17: at all sizes", f"{row['mrc']:.1f} against at most {best:.1f} Gb/s ({name})",
        row["mrc"] > best * (0.97 if label == equal_at else 1),
        "RoCE's headers are half as long, see below" if row["mrc"] / MRC_LINE > best / ROCE_LINE else "",
    )  # fmt: skip


LOSSES = (0.0, 0.001, 0.01)


def _under_loss(name: str, site: SiteSpec, part: int, rounds: int, seeds: Sequence[int] = (1, 2, 3)) -> list[float]:
    """Return the bus bandwidth of a ring over all NICs where packets are lost at random, in Gb/s; the mean of seeds."""
    ranks, t0s = site.fabric.gpus, site.fabric.gpus // (site.fabric.radix // 2)
    links = [f"link0-p{plane}-i{nic}" for plane in range(site.fabric.planes) for nic in range(ranks)]
    rates = []
    for loss in LOSSES:
        # A packet crosses the links of two NICs, and each loses half of what the published switch drops.
        faults = [{"kind": "loss", "target": link, "amount": loss / 2} for link in links]
        spec = as_published(
            ring_traffic(ranks, part, rounds, t0s), bin_us=1000, faults=faults if loss else [], until_us=500_000
        )
        found = [simulate(spec, site, name, seed) for seed in seeds]
        done = [all(flow.arrived_ps >= 0 for flow in each.flows) for each in found]
        each = [bus_gbps(r, part, ranks) if whole else _so_far(r) for r, whole in zip(found, done, strict=True)]
        rates.append(sum(each) / len(each))
    return rates


def s6() -> Experiment:
    """Packets lost at random."""
    many, few = site_of(4, gpus=64, radix=16, rate_gbps=100), bed()
    large = {
        label: _under_loss("mrc", many, part, 4)
        for label, part in (("64 MiB", 2**20), ("256 MiB", 2**22), ("1 GiB", 2**24))
    }
    beside = {name: _under_loss(name, bed(64, 16), 2**22, 4, (1,)) for name in ("roce:1", "roce:8")}
    small = {
        name: {
            label: _under_loss(name, few, part, 30)
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
        "S6", "Packets lost at random", "A ring, neighbours on different T0s, 3 seeds. MRC over the 64 NICs of S4 with 4 planes of "
        "100G, as in the paper's cluster C, the first 4 of 126 rounds; MRC and RoCE over the 16 of test bed D, one plane of "
        "400G, all 30 rounds. RoCE's timer is 67 ms (t = 14): the shortest that NCCL has had by default, before 18 and, since "
        "2.23, 20 (4.3 s; NCCL_IB_TIMEOUT in its user guide). A run ends after 500 ms at the latest, and what has arrived then "
        "counts.", found,
        remark="A round is over with the slowest of 64 sends: at 0.1 % the mean send takes 1 % longer and the slowest a fifth. "
        "What MRC loses is the tail of a message, whose last packets are missed after a quiet time and a probe, and once more "
        "where the repair is lost too. RoCE's receiver tells of a gap once, until it is filled: where that NAK is lost, or the "
        "end of a message, a queue pair waits for its timer, and the ring with it. Going back itself costs less: with a "
        "timer of 1 ms RoCE kept 0.86 and 0.32 of its rate over the first 4 rounds. "
        "RoCE's rows are those of test bed D because over 64 NICs its first rounds are slow without any loss (S4): one seed "
        "there, 4 rounds, with no row held to it.",
    )  # fmt: skip


def _at_losses(rates: Sequence[float]) -> str:
    return " / ".join(f"{rate:.0f}" for rate in rates) + " Gb/s at 0 / 0.1 / 1 %"


def _so_far(report: Report) -> float:
    """Return the rate of an unfinished run: what had arrived of the traffic of one NIC, in Gb/s."""
    return float(report.series.received[-1].sum()) / report.hosts * 8 * 1000 / report.end_ps
