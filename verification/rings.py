"""Collectives beside MRC: a ring, everybody to everybody, and packets lost at random (S4 to S6)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from verification.findings import Experiment, Finding, site_of, within
from verification.rivals import COLOURS, MRC_LINE, ROCE_LINE, as_published, bed, mean_of, order, shown, simulate
from weft.collectives.algorithms import ring_all_reduce
from weft.netsim.report import SimulationReport
from weft.netsim.run import prepare_engine
from weft.netsim.setup import set_up, transports_of
from weft.netsim.transports.roce import RoceEndpoints
from weft.netsim.workload.posting import NCCL_RINGS, NCCL_SENDS
from weft.specs import load_scenario
from weft.specs.rivals import PostingSpec
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


def cluster_c(posting: PostingSpec = NCCL_SENDS) -> dict[str, Any]:
    """Return transports as the paper's cluster C has them: posted as RCCL does, and DCQCN as AMD recommends it."""
    found = load_scenario("rccl-all-to-all").transport.as_written()
    return {"roce": found["roce"], "posting": posting.as_written()}


def round_ends_ps(report: SimulationReport, ranks: int) -> Any:
    """Return when the last send of every round of a ring had arrived."""
    return np.array([flow.arrived_ps for flow in report.flows]).reshape(-1, ranks).max(axis=1)


def bus_gbps(report: SimulationReport, part: int, ranks: int, first: int = 0, last: int | None = None) -> float:
    """Return the bus bandwidth of a ring: what each rank sends in rounds `first` to before `last` over their time."""
    ends_ps = round_ends_ps(report, ranks)
    end = len(ends_ps) if last is None else last
    return part * 8 * 1000 * (end - first) / int(ends_ps[end - 1] - (ends_ps[first - 1] if first else 0))


RINGS = {
    "4 MiB": (2**16, 126, 0, 126),
    "64 MiB": (2**20, 126, 0, 126),
    "1 GiB": (2**24, 28, 8, 20),
    "16 GiB": (2**28, 4, 0, 4),
}
"""For every size: bytes of a part, rounds that are run, and those that are measured."""
LARGE_RINGS = ("1 GiB", "16 GiB")


def s4() -> Experiment:
    """A ring over 64 NICs."""
    ranks = 64
    site = bed(64, 16)
    table: dict[str, dict[str, list[float]]] = {}
    begins: dict[str, list[float]] = {}
    for name in ("mrc", "roce:1", "roce:2", "roce:4", "roce:8", "roce:16", "reps", "adaptive"):
        table[name] = {}
        for label, (part, rounds, first, last) in RINGS.items():
            spec = as_published(ring_traffic(ranks, part, rounds, 8), bin_us=1000, transport=cluster_c(NCCL_RINGS))
            seeds = 10 if name in ("roce:8", "roce:16") and label in LARGE_RINGS else 3
            runs = [simulate(spec, site, name, seed) for seed in range(seeds)]
            table[name][label] = [bus_gbps(each, part, ranks, first, last) for each in runs]
            if label == "1 GiB":
                begins[name] = [bus_gbps(each, part, ranks, 0, 4) for each in runs]
    means = {label: {name: float(np.mean(row[label])) for name, row in table.items()} for label in RINGS}
    small = means["4 MiB"]
    found = (
        *(within(f"RoCE 1 QP over MRC, {label}", means[label]["roce:1"] / means[label]["mrc"], 0.2, 0.6, "", "R15: about half")
          for label in LARGE_RINGS),
        *(order(f"MRC with one QP is highest, {label}", {name: means[label][name] for name in ("mrc", "roce:8", "roce:1")},
                "Gb/s", "R15: and more QPs help")
          for label in LARGE_RINGS),
        *(within(f"16 QPs over 8, {label}", means[label]["roce:16"] / means[label]["roce:8"], 0.8, 1.25, "",
                 "R15: small gain past 8") for label in LARGE_RINGS),
        *(within(f"16 QPs over MRC, {label}", means[label]["roce:16"] / means[label]["mrc"], 0, 1, "", "R15: MRC beats 16 QPs")
          for label in LARGE_RINGS),
        *(shown(f"the same in Gb/s, {label}, 10 seeds", f"{mean_of(table['roce:16'][label])} over "
                f"{mean_of(table['roce:8'][label])}") for label in LARGE_RINGS),
        shown("the same in the first 4 rounds of 1 GiB", f"{mean_of(begins['roce:16'])} over {mean_of(begins['roce:8'])}"),
        within("RoCE 1 QP over MRC, 4 MiB", small["roce:1"] / small["mrc"], 0.7, 1.1, "", "R15: equal at small sizes"),
        *(shown(f"{name}, {' / '.join(row)}", " / ".join(f"{np.mean(v):.0f}" for v in row.values()) + " Gb/s")
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
        "T0s, so that every flow crosses T1s. Posted as RCCL does it: 1 MiB in a message, four under way, queue pairs in turn; "
        "DCQCN as AMD recommends it for cluster C's NICs (`rccl-all-to-all`). All 126 rounds, of 1 GiB rounds 9 to 20, of 16 GiB "
        "the first 4, since all are alike; the mean of 3 seeds, or of 10 where it says so. The published cluster has 4 planes of 100G for MRC; its placement is not known.", found, draw,
        remark="The first rounds of 1 GiB are left out, in which all ranks still send at the same time; the published runs last "
        "seconds. The last rounds are not all there either: ranks that are ahead have left the links to the others.",
    )  # fmt: skip


EXCHANGES = {"16 KiB": (2**14, 6, 2), "128 KiB": (2**17, 12, 8), "1 MiB": (2**20, 12, 8)}
"""For every size: bytes to each peer, how many follow each other, and how many of them are left out."""
LARGE = "1 MiB"
FEW = (5, 2)
"""How many exchanges are enough to see what could be otherwise, and how many of them are left out."""
WIRINGS = {"4 T0s of 16": 16, "2 T0s of 32": 32}
"""Other ways to wire the 64 NICs, and how many hang on a T0."""
BEFORE = {"at_once": 64, "channels": 1}
"""All peers at once over one connection, as S5 had it before it was done as RCCL does it."""


def exchange_gbps(
    name: str,
    label: str,
    seed: int,
    *,
    below: int = 8,
    transport: Mapping[str, Any] | None = None,
    few: bool = False,
    **traffic: Any,
) -> tuple[float, float]:
    """Return what a NIC sends in the exchanges that count, and in the first one, in Gb/s; `below` NICs hang on a T0."""
    size, times, left_out = EXCHANGES[label]
    times, left_out = FEW if few else (times, left_out)
    table = {"pattern": "nccl-all-to-all", "size": f"{size} B", "times": times, **traffic}
    spec = as_published(table, bin_us=1000, transport=cluster_c() if transport is None else transport)
    report = simulate(spec, bed(64, 2 * below), name, seed)
    ends_ps = np.array([flow.arrived_ps for flow in report.flows]).reshape(times, -1).max(axis=1)
    bits = sum(flow.size for flow in report.flows) // times // 64 * 8 * 1000
    counted = times - left_out
    return bits * counted / int(ends_ps[-1] - ends_ps[left_out - 1]), bits / int(ends_ps[0])


def hashing_gbps(queue_pairs: int, seed: int) -> float:
    """Return what a NIC could send at most where every link is busy until the fullest one is done: hashing alone."""
    size, times, _ = EXCHANGES[LARGE]
    table = {"pattern": "nccl-all-to-all", "size": f"{size} B", "times": times}
    setup = set_up(as_published(table, transport=cluster_c()), bed(64, 16), seed)
    (chosen,) = transports_of(setup, (f"roce:{queue_pairs}",))
    _, world = prepare_engine(setup, chosen)
    endpoints, board = world.endpoints, world.board
    assert isinstance(endpoints, RoceEndpoints)
    loads: Counter[int] = Counter()
    for pair, flow in zip(board.pair_of, board.flows, strict=True):
        if not flow.is_wait:
            for port in endpoints.route(pair, 0, int(endpoints.host_state.s.qp[pair]["route"])):
                loads[port] += flow.size
    sent = sum(flow.size for flow in board.flows) / 64
    return ROCE_LINE * sent / max(loads.values())


def s5() -> Experiment:
    """Everybody to everybody."""
    names, seeds = ("mrc", "roce:1", "roce:2", "roce:8", "roce:16"), range(3)
    runs = {
        name: {label: [exchange_gbps(name, label, seed) for seed in seeds] for label in EXCHANGES} for name in names
    }
    table = {name: {label: [late for late, _ in each] for label, each in row.items()} for name, row in runs.items()}
    firsts = {name: {label: [first for _, first in each] for label, each in row.items()} for name, row in runs.items()}
    means = {label: {name: float(np.mean(row[label])) for name, row in table.items()} for label in EXCHANGES}
    wired = {
        wiring: {label: {name: exchange_gbps(name, label, 0, below=below)[0] for name in names} for label in EXCHANGES}
        for wiring, below in WIRINGS.items()
    }
    found = (
        *(_best_at(label, row, "16 KiB") for label, row in means.items()),
        *(within(f"{count} QPs over 1, {label}", means[label][f"roce:{count}"] / means[label]["roce:1"], 0.8, 1.2, "",
                 "R17: no help, 16 slightly worse than 1")
          for count in (8, 16) for label in EXCHANGES),
        *(shown(f"{name}, 16 / 128 KiB / 1 MiB each", " / ".join(mean_of(v) for v in row.values()) + " Gb/s a NIC; the first "
                + " / ".join(f"{np.mean(v):.0f}" for v in firsts[name].values())) for name, row in table.items()),
        *(shown(f"{name}, 1 MiB, of what its frames let through",
                f"{100 * means[LARGE][name] / (MRC_LINE if name == 'mrc' else ROCE_LINE):.1f} %")
          for name in ("mrc", "roce:16")),
        shown("1, 8, 16 QPs, 1 MiB, by hashing alone", ", ".join(
            f"{np.mean([hashing_gbps(count, seed) for seed in seeds]):.0f}" for count in (1, 8, 16)) + " Gb/s a NIC"),
        *(_otherwise(what, transport, traffic) for what, (transport, traffic) in otherwise().items()),
        *(replace(_best_at(f"{label}, {wiring}", row, ""), why="its headers are longer, see below")
          for wiring, rows in wired.items() for label, row in rows.items()),
        *(within(f"16 QPs over 1, {label}, 2 T0s of 32", wired["2 T0s of 32"][label]["roce:16"]
                 / wired["2 T0s of 32"][label]["roce:1"], 0.8, 1.2, "", "R17: no help, 16 slightly worse than 1")
          for label in EXCHANGES),
    )  # fmt: skip
    return Experiment(
        "S5", "Everybody to everybody", "64 NICs as in S4, set as there. The 64 GPUs of cluster C are 8 servers of 8, which have links of "
        "their own; the NICs of a server hang on one T0, as S4's ring has them and R15's collisions need. A NIC sends so many "
        "bytes to each of 56 others in RCCL's order: two channels to a peer, 32 peers at a time, 128 KiB in a message, at most 8 "
        "messages of a channel under way. 12 such exchanges (6 of 16 KiB) follow each other on the same queue pairs, a rank's "
        "next one after all that it sends and receives; the last 4 count, 3 seeds (`weft simulate rccl-all-to-all` is 4 of them).",
        found, remark=S5_REMARK,
    )  # fmt: skip


def otherwise() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return what else could be the case: the transports' table, and what differs in the traffic."""
    usual = cluster_c()
    roce = usual["roce"]
    often = roce | {"dcqcn": roce["dcqcn"] | {"cnp_interval": "4 us"}}
    return {
        "as above": (usual, {}),
        "16 peers at a time": (usual, {"at_once": 16}),
        "CNPs every 4 us": (usual | {"roce": often}, {}),
        "PFC from 12 BDP on": (usual | {"roce": roce | {"pfc": {"xoff": 12.0, "xon": 11.8}}}, {}),
        "each message split over all QPs": (usual | {"posting": usual["posting"] | {"turns": False}}, {}),
        "DCQCN of 2015": ({"posting": usual["posting"]}, {}),
        "DCQCN of 2015, all peers at once, whole sends split over QPs": ({}, BEFORE),
    }


def _otherwise(what: str, transport: dict[str, Any], traffic: dict[str, Any]) -> Finding:
    """Return how RoCE fares where something else is the case, one seed."""
    one, *more = (exchange_gbps(f"roce:{n}", LARGE, 0, transport=transport, few=True, **traffic)[0] for n in (1, 8, 16))
    ratios = " and ".join(f"{each / one:.2f}" for each in more)
    return shown(f"8 and 16 QPs over 1, 1 MiB, {what}", f"{ratios} of {one:.0f} Gb/s a NIC")


S5_REMARK = (
    "What is set is what cluster C is made of, as far as that is public: DCQCN as AMD recommends it for the Pollara 400 (network "
    "configuration in its Instinct documentation; ROCm's guide for the MI355X has the same), and how RCCL posts (its sources: "
    "NCCL_IB_SPLIT_DATA_ON_QPS is 0, and sends are not batched on AMD's NICs). Not public are how many of RCCL's 64 "
    "channels there were, how often a Pollara sends CNPs, and ECN and PFC of the switches; the rows that begin with 8 and 16 QPs tell "
    "what they would change, on 5 exchanges of one seed: channels and CNPs next to nothing, and PFC as late as Tomahawk 5's buffer of 165 MB allows makes queue pairs help less. RCCL's queue pairs take turns with "
    "whole messages, so that up to 128 KiB for a channel nothing is spread and nothing gained. Beyond that hashing alone would give 16 of them 1.16 "
    "times what 1 gets, and about that is found: R17 has no gain at all, so a cost of queue pairs is missing here, of which "
    "no figure for 4 KiB packets at 400 Gb/s is published. With AMD's settings DCQCN forgets in microseconds and hardly slows flows of 7 Gb/s; what "
    "holds senders back is PFC. S5 was done otherwise before (the last of those rows: DCQCN of 2015, all peers at once, every send "
    "split over all queue pairs) and missed the line with 1.33 for 8 queue pairs over 3 seeds; the settings were looked up after "
    "that had been seen, the limits of 0.8 to 1.2 are as they were. With 4 or 2 T0s uplinks are 86 or 57 % full, few queue "
    "pairs are enough, and MRC is up to 2.7 % behind: its longer headers (126 bytes against 82) take 1.1 %, SACKs 0.3 % more than "
    "ACKs, and 0.9 % go into proving ways back, once in a round trip for each of 64 queue pairs that receive and do not send. How "
    "many T0s cluster C has is not published."
)


def _best_at(label: str, row: Mapping[str, float], equal_at: str) -> Finding:
    """Return the finding that MRC is best at a size, or within 3 % of it where messages are shorter than a round trip."""
    name, best = max(((n, v) for n, v in row.items() if n != "mrc"), key=lambda each: each[1])
    return Finding(
        f"MRC is best, {label}", "R17: at all sizes", f"{row['mrc']:.1f} against at most {best:.1f} Gb/s ({name})",
        row["mrc"] > best * (0.97 if label == equal_at else 1),
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


def _so_far(report: SimulationReport) -> float:
    """Return the rate of an unfinished run: what had arrived of the traffic of one NIC, in Gb/s."""
    return float(report.series.received[-1].sum()) / report.hosts * 8 * 1000 / report.end_ps
