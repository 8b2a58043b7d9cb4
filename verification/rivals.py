"""What everybody else runs, on the same fabric: RoCE, REPS and adaptive routing beside MRC. Collectives: `rings`.

The fabric is the paper's test bed D unless said otherwise: 16 NICs, 4 T0s, 4 T1s, one plane, all links 400 Gb/s.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from verification.findings import GBPS, US, Experiment, Finding, ends_us, scenario, site_of, within
from weft.netsim.report import SimulationReport
from weft.netsim.run import run
from weft.netsim.setup import set_up, transports_of
from weft.specs.scenario import ScenarioSpec
from weft.specs.site import SiteSpec

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9")
PFC_ONLY = {"roce": {"dcqcn": {"on": False}}}
SRV6_LINE, MRC_LINE, ROCE_LINE = 400 * 4096 / 4262, 400 * 4096 / 4222, 400 * 4096 / 4178
"""Payload that 400 Gb/s carry, in Gb/s: by MRC's frames over SRv6, with structured EVs, and by RoCE's. The last one, 392, is
what perftest shows for RoCE at 400 Gb/s (NVIDIA/nccl issue 2409)."""


def as_published(traffic: dict[str, Any], *, transport: Mapping[str, Any] | None = None, **more: Any) -> ScenarioSpec:
    """Return a scenario of the paper's test beds C and D, where MRC has structured EVs, as their published rates say."""
    return scenario(traffic, transport={"forwarding": "structured", **(transport or {})}, **more)


def bed(gpus: int = 16, radix: int = 8, rate_gbps: int = 400) -> SiteSpec:
    """Return test bed D, or one like it."""
    return site_of(1, gpus=gpus, radix=radix, rate_gbps=rate_gbps)


def simulate(spec: ScenarioSpec, site: SiteSpec, transport: str, seed: int = 1) -> SimulationReport:
    """Run one transport on the compiled engine."""
    setup = set_up(spec, site, seed)
    (chosen,) = transports_of(setup, (transport,))
    return run(setup, chosen, engine="engine")


def flow_rates(report: SimulationReport, after_us: float) -> Any:
    """Return the payload rate of every flow from some time on, in Gb/s."""
    ends = np.array(report.series.ends_ps) / US
    first = int(np.searchsorted(ends, after_us))
    moved = report.series.received[-1] - report.series.received[first]
    rates: dict[tuple[int, int], float] = {}
    for pair, count in zip(report.pairs, moved.tolist(), strict=True):
        rates[pair] = rates.get(pair, 0.0) + count * 8 / 1000 / float(ends[-1] - ends[first])
    return np.array(list(rates.values()))


def order(what: str, values: Mapping[str, float], unit: str, said: str) -> Finding:
    """Return the finding that values are in falling order."""
    listed = list(values.values())
    shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
    return Finding(what, said, f"{shown} {unit}", all(a > b for a, b in pairwise(listed)))


def shown(what: str, value: str, said: str = "") -> Finding:
    """Return a number that stands beside a published one without being held to it."""
    return Finding(what, said, value, holds=True)


def s3() -> Experiment:
    """A permutation that saturates the uplinks."""
    flows = [{"source": n, "destination": 8 + n, "size": "1 GiB"} for n in range(8)]
    spec = as_published({"pattern": "flows", "flows": flows}, until_us=400)
    seeds = range(20)
    runs = {
        name: [simulate(spec, bed(), name, seed) for seed in seeds] for name in ("mrc", "roce:1", "roce:8", "adaptive")
    }
    only = as_published({"pattern": "flows", "flows": flows}, until_us=400, transport=PFC_ONLY)
    runs["roce:8, PFC only"] = [simulate(only, bed(), "roce:8", seed) for seed in seeds]
    runs["roce:1, PFC only"] = [simulate(only, bed(), "roce:1", seed) for seed in seeds]
    rates = {name: np.concatenate([flow_rates(each, 100) for each in reports]) for name, reports in runs.items()}
    slowest = {
        name: float(np.mean([flow_rates(each, 100).min() for each in reports])) for name, reports in runs.items()
    }
    shares = rates["roce:1, PFC only"] / ROCE_LINE
    near = np.min([np.abs(shares - share) for share in (1, 1 / 2, 1 / 3, 1 / 4)], axis=0)
    found = (
        within("slowest MRC flow of 20 runs", 100 * float(rates["mrc"].min()) / MRC_LINE, 97, 100, "% of the limit",
               "R21: all about 390 Gb/s"),
        shown("the same, and the limit", f"{float(rates['mrc'].min()):.1f} of {MRC_LINE:.1f} Gb/s",
              f"R21: 390; SRv6's frames would end at {SRV6_LINE:.1f}"),
        within("RoCE 1 QP: flows within 5 % of 1, 1/2, 1/3 or 1/4", 100 * float((near < 0.05).mean()), 80, 100, "%",
               "R21: full, half or third"),
        within("RoCE 1 QP: mean share of the line", float(shares.mean()), 0.5, 0.75, "", "D: 0.59 by hashing alone"),
        order("mean of the slowest flow", {"mrc": slowest["mrc"], "roce:8": slowest["roce:8"],
              "roce:1": slowest["roce:1"]}, "Gb/s",
              "R21: MRC best, 8 QPs better than 1"),
        shown("mean of the slowest flow, adaptive", f"{slowest['adaptive']:.0f} Gb/s"),
        shown("mean of the slowest flow, 8 QPs with PFC only", f"{slowest['roce:8, PFC only']:.0f} Gb/s",
              "R21: worse than with DCQCN, in the long run"),
    )  # fmt: skip

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for colour, name in zip(COLOURS, runs, strict=False):
            values = np.sort(rates[name])
            axes.step(values, np.arange(1, len(values) + 1) / len(values), where="post", label=name, color=colour)
        axes.set(title="S3: rate of a flow", xlabel="Gb/s", ylabel="share of flows")
        axes.legend()

    return Experiment(
        "S3", "A permutation that saturates the uplinks",
        "Test bed D: the 8 NICs of two T0s each send to one of the 8 of the other two; 20 seeds, the rates from 100 to 400 us. "
        "The published runs last minutes, in which DCQCN settles.", found, draw,
    )  # fmt: skip


def mean_of(values: Sequence[float]) -> str:
    """Return a mean with its standard error."""
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{np.mean(values):.4g} +- {error:.2g}"


def _incast(senders: int, victim: bool, every_us: float = 0) -> dict[str, Any]:
    """Return an incast to NIC 0 from other T0s, one more sender every so often, and a victim to NIC 1."""
    flows = [
        {"source": 15 - n, "destination": 0, "size": "4 GiB", "at": f"{round(n * every_us * 1000)} ns"}
        for n in range(senders)
    ]
    if victim:
        flows.append({"source": 15 - senders, "destination": 1, "size": "4 GiB"})
    return {"pattern": "flows", "flows": flows}


def _to(report: SimulationReport, nic: int) -> Any:
    """Return the payload rate into one NIC in every bin, in Gb/s."""
    return report.series.rates_bps([i for i, ends in enumerate(report.pairs) if ends[1] == nic]) / GBPS


def s7() -> Experiment:
    """An incast and a victim beside it."""
    until, seeds = 4000, range(20)
    traffic = _incast(7, victim=True)
    plain, only = (
        as_published(traffic, until_us=until, bin_us=50),
        as_published(traffic, until_us=until, bin_us=50, transport=PFC_ONLY),
    )
    schemes = {
        "mrc": (plain, "mrc"), "roce:8, DCQCN": (plain, "roce:8"), "roce:1, DCQCN": (plain, "roce:1"),
        "roce:8, PFC only": (only, "roce:8"), "roce:1, PFC only": (only, "roce:1"), "adaptive": (plain, "adaptive"),
    }  # fmt: skip
    runs = {label: [simulate(spec, bed(), name, seed) for seed in seeds] for label, (spec, name) in schemes.items()}
    line = {label: MRC_LINE if label in ("mrc", "adaptive") else ROCE_LINE for label in runs}
    victims = {label: np.array([_to(each, 1)[2:].mean() for each in reports]) for label, reports in runs.items()}
    shares = {label: 100 * values / line[label] for label, values in victims.items()}
    total = {label: float(np.mean([_to(each, 0)[20:].mean() for each in reports])) for label, reports in runs.items()}
    published = {
        "roce:1, DCQCN": "about 75 %",
        "roce:8, DCQCN": "higher, dips to 25 %",
        "roce:1, PFC only": "7.5 to 25 %",
    }
    means = {label: float(values.mean()) for label, values in shares.items()}
    tree = max((each.pausing for each in runs["roce:1, PFC only"] if each.pausing), key=lambda p: len(p.tree_ports))
    found = (
        within("victim of MRC, worst of 20 seeds", float(shares["mrc"].min()), 99, 100.1, "%", "R18: untouched"),
        order("victim, mean of 20 seeds", {label: means[label] for label in
              ("mrc", "roce:1, DCQCN", "roce:1, PFC only")}, "%", "R18: in this order"),
        order("the same with 8 QPs", {label: means[label] for label in
              ("mrc", "roce:8, DCQCN", "roce:8, PFC only")}, "%", "R18: in this order"),
        *(shown(f"victim, {label}", f"{means[label]:.0f} % ({values.min():.0f} to {values.max():.0f}); the incast gets "
                f"{total[label]:.0f} Gb/s", published.get(label, "")) for label, values in shares.items()),
        Finding("largest tree of pauses, PFC only", "grows from the receiver's port to NICs",
                f"{len(tree.tree_ports)} ports, {tree.tree_depth} deep, below {tree.tree_root}; {tree.tree_innocent} innocent",
                tree.tree_root == "t0-p0-i0 to nic-i0" and tree.tree_depth >= 2 and tree.tree_innocent >= 1),
    )  # fmt: skip

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for colour, (label, reports) in zip(COLOURS, runs.items(), strict=False):
            rates = np.mean([_to(each, 1) for each in reports], axis=0)
            axes.step(ends_us(reports[0]), rates, where="pre", label=label, color=colour)
        axes.set(title="S7: the victim's rate, mean of 20 seeds", xlabel="us", ylabel="Gb/s", ylim=(0, 410))
        axes.legend(ncols=2)

    return Experiment(
        "S7", "An incast and a victim beside it", "Test bed D: 7 NICs of three T0s send to one NIC, an eighth to its neighbour; "
        "DCQCN as published. 4 ms instead of minutes, so the rows of DCQCN are its first recovery, not its long run.", found, draw,
    )  # fmt: skip


PROFILES = {
    "default": {},
    "aggressive": {"ecn_most": 0.1, "ecn_high": "100 kB"},
    "most aggressive": {"ecn_most": 1.0, "ecn_high": "50 kB"},
}
"""Our own: the published ones are not known. Each marks earlier and more than the one before."""


def s8() -> Experiment:
    """An incast that grows, under three settings of DCQCN."""
    every, senders, seeds = 3000, 15, range(20)
    flows = [
        {"source": 1 + n, "destination": 0, "size": "4 GiB", "at": f"{n * every} us"} for n in range(senders)
    ]  # fmt: skip
    runs: dict[str, list[SimulationReport]] = {}
    for label, profile in PROFILES.items():
        spec = scenario({"pattern": "flows", "flows": flows}, until_us=every * senders, bin_us=500,
                        transport={"roce": {"dcqcn": profile}})  # fmt: skip
        runs[label] = [simulate(spec, bed(), "roce:1", seed) for seed in seeds]
    rates = {label: np.mean([_to(each, 0) for each in reports], axis=0) for label, reports in runs.items()}
    late = {label: float(values[36:].mean()) for label, values in rates.items()}
    each_late = {label: [float(_to(each, 0)[36:].mean()) for each in reports] for label, reports in runs.items()}
    pauses = {
        label: float(np.mean([each.pausing.pauses for each in reports if each.pausing]))
        for label, reports in runs.items()
    }
    found = (
        order("receiver's rate from the 7th flow on", late, "Gb/s", "R22: line rate, -10 %, -20 %"),
        order("pauses in a run", pauses, "", "R22: only the default needs PFC"),
        *(shown(f"{label}, 20 seeds", f"{mean_of(values)} Gb/s, {100 * np.mean(values) / ROCE_LINE - 100:+.1f} % of line rate")
          for label, values in each_late.items()),
    )  # fmt: skip

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for colour, (label, values) in zip(COLOURS, rates.items(), strict=False):
            axes.step(ends_us(runs[label][0]), values, where="pre", label=label, color=colour)
        axes.set(title="S8: the receiver's rate, mean of 20 seeds", xlabel="us", ylabel="Gb/s", ylim=(0, 410))
        axes.legend()

    return Experiment(
        "S8", "An incast that grows", f"Test bed D: one more of 15 senders every {every // 1000} ms instead of every 5 s. The "
        "published profiles are not known; ours mark earlier and more: Pmax 1, 10, 100 % and Kmax 200, 100, 50 kB at 40 Gb/s.",
        found, draw,
        remark="A queue pair gets one CNP in 50 us at most, and sends 40 to 85 packets meanwhile: where one in ten is marked "
        "nearly every interval has its CNP already, and marking all of them changes little more. Profiles that differ in "
        "marks alone can hardly be 10 % apart.",
    )  # fmt: skip


def s17() -> Experiment:
    """Capacity that goes and comes back."""
    step, links = 2000, [f"link1-p0-i0-u{n}" for n in range(4)]
    slow = [{"kind": "slow", "target": name, "amount": 0.25} for name in links]
    down = [
        {"kind": "link-down", "target": links[n], "at": f"{step * (n + 1)} us", "lasts": f"{step * (5 - 2 * n)} us"}
        for n in range(3)
    ]  # fmt: skip
    traffic = {"pattern": "flows", "flows": [{"source": 0, "destination": 8, "size": "4 GiB"}]}
    spec = as_published(traffic, until_us=7 * step, faults=[*slow, *down])
    left = [4, 3, 2, 1, 2, 3, 4]
    reports = [simulate(spec, bed(), "mrc", seed) for seed in range(1, 21)]
    runs = [each.series.rates_bps() / GBPS for each in reports]
    ratio = np.array(
        [
            [run[n * step // 10 + 12 : (n + 1) * step // 10].mean() / (MRC_LINE * up / 4) for n, up in enumerate(left)]
            for run in runs
        ]
    )
    rates = runs[0]
    steps = zip(left, ratio.min(axis=0), strict=True)
    found = (
        within("lowest rate over remaining capacity, 7 steps, 20 seeds", float(ratio.min()), 0.9, 1.02, "",
               "R20: tracks what is left"),
        within("highest", float(ratio.max()), 0.9, 1.02),
        shown("lowest by step", ", ".join(f"{up}/4: {each:.3f}" for up, each in steps)),
    )  # fmt: skip

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.step(ends_us(reports[0]), rates, where="pre", color=COLOURS[0], label="mrc")
        axes.step([n * step for n in range(8)], [MRC_LINE * up / 4 for up in [*left, 4]], where="post", color="#999999",
                  linestyle="--", label="what is left")  # fmt: skip
        axes.set(title="S17: capacity tracking", xlabel="us", ylabel="Gb/s", ylim=(0, 410))
        axes.legend()

    return Experiment(
        "S17", "Capacity that goes and comes back", "Test bed D with uplinks of one T0 at 100G: one flow of 400G, three of four "
        f"uplinks go down and come back one by one, every {step // 1000} ms instead of seconds.", found, draw,
    )  # fmt: skip


def s19() -> Experiment:
    """Microseconds against seconds."""
    flows = [{"source": n, "destination": 8 + n, "size": "8 MiB"} for n in range(4)]
    fault = [{"kind": "link-down", "target": "link1-p0-i0-u1", "at": "20 us"}]
    runs: dict[str, SimulationReport] = {
        "mrc": simulate(scenario({"pattern": "flows", "flows": flows}, faults=fault, bin_us=1000), bed(), "mrc")
    }
    for seconds in (1, 10):
        table = {"roce": {"reconvergence": f"{seconds} s", "timeout": 17 if seconds == 1 else 20}}
        spec = scenario({"pattern": "flows", "flows": flows}, faults=fault, transport=table, bin_us=100_000)
        runs[f"roce:4, {seconds} s"] = simulate(spec, bed(), "roce:4", 2)
    step = {label: max(flow.arrived_ps for flow in each.flows) / US for label, each in runs.items()}
    recovery = max(runs["mrc"].faults[0].recovery_ps) / US
    found = (
        within("MRC: longest recovery of a flow", recovery, 1, 100, "us", "P1: tens of microseconds"),
        within("MRC: the step", step["mrc"], 150, 400, "us", f"{8 * 2**20 * 8 / SRV6_LINE / 1000:.0f} us at line rate"),
        within("RoCE, reconvergence 1 s: the step", step["roce:4, 1 s"] / US, 1.0, 3.5, "s"),
        within("RoCE, reconvergence 10 s: the step", step["roce:4, 10 s"] / US, 10, 25, "s"),
        shown("ratio of the steps", f"{step['roce:4, 1 s'] / step['mrc']:,.0f} and {step['roce:4, 10 s'] / step['mrc']:,.0f}"),
    )  # fmt: skip
    return Experiment(
        "S19", "Microseconds against seconds", "Test bed D: four flows of 8 MiB leave one T0 when one of its uplinks goes down. RoCE's "
        "routing learns of it 1 or 10 s later; its timer is long enough that queue pairs outlive that, as NCCL sets it.", found,
    )  # fmt: skip


SPRAYERS = ("mrc", "uet", "reps", "random", "adaptive", "roce:1")


def s20() -> Experiment:
    """A table of sprayers."""
    site = bed(64, 16)
    traffic = {"pattern": "permutation", "across": True, "size": "4 MiB"}
    hole = [{"kind": "black-hole", "target": "t1-p0-i3", "at": "30 us"}]
    rows: dict[str, tuple[SimulationReport, SimulationReport]] = {}
    for name in SPRAYERS:
        broken = scenario(traffic, faults=hole, until_us=3000, transport={"roce": {"timeout": 8}})
        rows[name] = simulate(scenario(traffic), site, name), simulate(broken, site, name)
    slowest = {name: float(well.completions_us().max()) for name, (well, _) in rows.items()}
    queues = {name: float(well.series.queue_peaks[:, 1].max()) / well.slot_ps * 1 for name, (well, _) in rows.items()}
    lost = {name: ill.faults[0].data_lost for name, (_, ill) in rows.items()}
    found = [
        shown(name, f"slowest {slowest[name]:.0f} us, p99 {well.as_json()['fct_us']['p99']:.0f} us, deepest uplink queue "
              f"{well.series.queue_peaks[:, 1].max() / 1000:.0f} kB; dead T1: {lost[name]:,} data packets lost, "
              f"{ill.as_json()['completed']} of 64 flows done in 3 ms, slowest {ill.completions_us().max():.0f} us")
        for name, (well, ill) in rows.items()
    ]  # fmt: skip
    found += [
        Finding("one path for a flow is slowest", "R21", f"{slowest['roce:1']:.0f} us",
                slowest["roce:1"] > 1.5 * max(value for name, value in slowest.items() if name != "roce:1")),
        Finding("switches that choose keep the shortest uplink queues", "McClure et al.",
                f"{rows['adaptive'][0].series.queue_peaks[:, 1].max() / 1000:.0f} kB",
                queues["adaptive"] <= min(queues.values())),
        Finding("lost to a dead T1", "blame and freezing beat chance", f"random {lost['random']:,}, reps {lost['reps']:,}, "
                f"mrc {lost['mrc']:,} packets", 2 * max(lost["mrc"], lost["reps"]) < lost["random"]),
    ]  # fmt: skip
    return Experiment(
        "S20", "A table of sprayers", "64 NICs, 8 T0s, 8 T1s, 400G: a permutation across T0s, 4 MiB each; then the same with a T1 that "
        "swallows everything from 30 us on, for 3 ms (RoCE's timer 1 ms).", tuple(found),
    )  # fmt: skip
