"""Many pairs: cold start, a black hole, a lost plane, balance, ablations, and one run of another simulator."""

from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from verification.findings import (
    COLOURS,
    DEAF,
    Experiment,
    Finding,
    above,
    below,
    ends_us,
    network_of,
    rates_gbps,
    scenario,
    simulate,
    site_of,
    within,
)
from weft.core.units import Bytes, Millimetres, Picoseconds
from weft.netsim.report import SimulationReport
from weft.specs.site import SiteSpec


def _across(pairs: int, down: int, size: str, fan: int = 1) -> dict[str, Any]:
    """Return flows from the first T0 to the second, `fan` from each NIC, spread over all receivers alike."""
    step = max(1, down // fan)
    flows = [
        {"source": a, "destination": down + (a + k * step) % down, "size": size}
        for k in range(fan)
        for a in range(pairs)
    ]
    return {"pattern": "flows", "flows": flows}


def s14() -> Experiment:
    """Cold start with dead links, with and without a denylist."""
    site, share, pairs = site_of(gpus=288), 0.0025, 32
    count = round(share * 2 * 256 * 8)
    drawn = np.random.default_rng(7).choice(2 * 256 * 8, size=count, replace=False)
    dead = [f"link1-p{n // 512}-i{n // 256 % 2}-u{n % 256}" for n in drawn.tolist()]
    faults = [{"kind": "black-hole", "target": name} for name in dead]
    traffic = _across(pairs, 256, "12 MiB")
    runs = {
        "no denylist": simulate(scenario(traffic, faults=faults), site),
        "off: nothing is retired": simulate(scenario(traffic, faults=faults, transport={"mrc": DEAF}), site),
        "denylist": simulate(scenario(traffic, faults=faults, denied=dead), site),
    }
    data = {label: sum(fault.data_lost for fault in run.faults) / pairs for label, run in runs.items()}
    # Data packets lost in each bin of 10 us while everybody sends.
    lost = {label: np.diff(run.series.lost, prepend=0)[:12] for label, run in runs.items()}
    late = {label: int(bins[8:].sum()) / max(1, int(bins[:4].sum())) for label, bins in lost.items()}
    found = (
        within("data packets lost per queue pair", data["no denylist"], 0.5, 5, "", "R1: below 5"),
        within("data packets lost from 80 to 120 us, for each one in the first 40 us", late["no denylist"], 0, 0.1, "",
               "R1: they die away"),
        within("data packets lost with a denylist", data["denylist"], 0, 0),
        above("off: data packets lost per queue pair where nothing is retired", data["off: nothing is retired"], 5),
        above("off: from 80 to 120 us, for each one in the first 40 us", late["off: nothing is retired"], 0.5),
    )  # fmt: skip

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for colour, (label, bins) in zip(COLOURS, lost.items(), strict=False):
            axes.step(ends_us(runs[label])[:12], bins, where="pre", label=label, color=colour)
        axes.set(
            title="S14: data packets lost to dead links after a cold start", xlabel="time, us", ylabel="lost in 10 us"
        )
        axes.legend()

    return Experiment(
        "S14", "Cold start with dead links",
        f"{pairs} queue pairs across T1s, 256 EVs, 12 MiB each; {count} of 4,096 T0-T1 links (0.25 %) swallow everything from "
        "the start. The paper's share of dead links is not published; its minutes are 120 us of sending here.",
        found, draw,
        remark="A loss rate of 1 in 25 million cannot be seen in a run of 98,000 packets; that losses end is shown instead.",
    )  # fmt: skip


def s15() -> Experiment:
    """A T1 that forwards nothing and stays up."""
    site, down = site_of(4, gpus=256), 128
    hole = [{"kind": "black-hole", "target": "t1-p1-i17"}]
    runs = {}
    # Every queue pair sends three rounds of its EVs, so that every one of them is used.
    for evs, fan, size in ((128, 8, "1600 KiB"), (256, 2, "3200 KiB")):
        mrc = {"ev": {"active": evs, "backup": evs // 4, "min_active": 32}}
        runs[evs] = simulate(scenario(_across(down, down, size, fan), faults=hole, transport={"mrc": mrc}), site)
    touched = {evs: 100 * run.faults[0].pairs / len(run.pairs) for evs, run in runs.items()}
    recovery = np.array(runs[128].faults[0].recovery_ps) / 10**6
    few = _across(16, down, "800 KiB", 8)
    timer = {
        "loss": {"spread": "1 ms", "spread_max": "1 ms", "probe_after": "1 ms"},
        "ev": {"active": 128, "backup": 32},
    }
    slow = simulate(scenario(few, faults=hole, transport={"mrc": timer}), site)
    by_timer = np.array(slow.faults[0].recovery_ps) / 10**6
    found = (
        within("queue pairs touched, 128 EVs", touched[128], 22, 28, "%", "R4: about a quarter"),
        within("queue pairs touched, 256 EVs", touched[256], 45, 55, "%", "64 of 128 paths: a half"),
        within("recovery of a pair, median", float(np.median(recovery)), 10, 99, "us", "R4: tens of microseconds"),
        within("recovery of a pair, 95th percentile", float(np.percentile(recovery, 95)), 10, 99, "us", "R4: the same"),
        within("data packets lost per pair touched", runs[128].faults[0].data_lost / runs[128].faults[0].pairs, 1, 8, "",
               "R4: 7.7 per NIC"),
        above("off: median recovery by the timer alone", float(np.median(by_timer)), 200, "us"),
    )  # fmt: skip

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for colour, (label, values) in zip(
            COLOURS, (("silence inferred", recovery), ("timer alone", by_timer)), strict=False
        ):
            share = np.arange(1, len(values) + 1) / len(values)
            axes.step(np.sort(values), share, where="post", label=label, color=colour)
        axes.set(
            title="S15: from a pair's first loss to its last lost packet's arrival",
            xlabel="us",
            ylabel="share of pairs",
        )
        axes.set_xscale("log")
        axes.legend()

    return Experiment(
        "S15", "A T1 that forwards nothing and stays up", "4 x 200G, 128 T1s in a plane, 1,024 queue pairs (8 from each of 128 "
        "NICs), 1600 KiB each; one T1 of one plane is a black hole from the start.", found, draw,
    )  # fmt: skip


def s16() -> Experiment:
    """A synchronous step whose slowest node has lost a plane."""
    found: list[Finding] = []
    for planes, low, high in ((4, 0.73, 0.77), (8, 0.855, 0.895)):
        well, ill = (_step_us(planes, faults) for faults in ((), ({"kind": "port-down", "target": "link0-p0-i0"},)))
        said = "R3: -25 %" if planes == 4 else "one of eight: -12.5 %"
        found.append(within(f"step rate with one of {planes} planes down at one node", well / ill, low, high, "", said))
    flap = {"kind": "port-down", "target": "link0-p0-i0", "lasts": "1 ms"}
    found.append(
        below("off: the same with a single plane of 800G, down for 1 ms", _step_us(1, ()) / _step_us(1, (flap,)), 0.4)
    )
    return Experiment(
        "S16", "One node loses a plane in a synchronous step",
        "A ring over 8 NICs under two T0s, 24 MiB each; the step ends with its slowest flow. One port of one NIC is down. "
        "What is switched off is the split into planes: a NIC with one port stops, and the step with it.",
        tuple(found),
    )  # fmt: skip


def _step_us(planes: int, faults: tuple[dict[str, Any], ...]) -> float:
    """Return the time of a ring of writes over eight NICs."""
    site = site_of(planes, gpus=2 * 51_200 // (800 // planes) // 2)
    down = site.fabric.radix // 2
    flows = [{"source": a, "destination": down + a, "size": "24 MiB"} for a in range(4)]
    flows += [{"source": down + a, "destination": (a + 1) % 4, "size": "24 MiB"} for a in range(4)]
    spec = scenario({"pattern": "flows", "flows": flows}, faults=list(faults),
                    transport={"mrc": {"port_remap_delay": "1 us"}})  # fmt: skip
    return float(simulate(spec, site).completions_us().max())


def balance() -> Experiment:
    """A permutation at full load, with the paths of radix-512 switches."""
    site = site_of(gpus=512)
    traffic = {"pattern": "permutation", "across": True, "size": "8 MiB"}
    runs = {
        "skip on": simulate(scenario(traffic), site),
        "off: no skipping": simulate(scenario(traffic, transport={"mrc": {"skip": False}}), site),
        "marks alone": simulate(scenario(traffic, transport={"mrc": {"even": False}}), site),
    }
    slowest = {label: float(run.completions_us().max()) * 10**6 for label, run in runs.items()}
    on, off, marks = (slowest[label] / run.ideal_ps for label, run in runs.items())
    # Every NIC sends what it receives, so that four frames of data share their links with one acknowledgement.
    frames = network_of(site).frames
    packets = -(-8 * 2**20 // frames.payload)
    shared_ps = runs["skip on"].ideal_ps + packets // 4 * frames.acknowledgement * 8 * 10**12 // site.fabric.nic_rate
    middle = float(rates_gbps(runs["skip on"])[3:9].mean()) / 512 / 8
    found = (
        within("slowest flow over ideal", on, 1, 1.15),
        within("slowest flow over ideal with acknowledgements", slowest["skip on"] / shared_ps, 1, 1.15),
        above(
            "off: lateness of the slowest flow, nothing passed over, for each part with skipping",
            (off - 1) / (on - 1),
            1.5,
        ),
        Finding("slowest flow over ideal, nothing passed over", "", f"{off:.4g}", holds=True),
        Finding("marks alone, whatever is in flight on an EV", "", f"{marks:.4g}", holds=True),
        replace(
            within("payload per NIC in the middle", middle, 86, 93, "GB/s", "R14: up to 92 for messages of a gigabyte"),
            why="hosts take no time of their own here; headers and acknowledgements alone would leave 95",
        ),
    )

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for colour, (label, run) in zip(COLOURS, runs.items(), strict=False):
            times = run.completions_us()
            left.step(times, np.arange(1, len(times) + 1) / len(times), where="post", label=label, color=colour)
            right.step(ends_us(run), run.series.queue_peaks[:, 1] / 4262, where="pre", label=label, color=colour)
        left.axvline(runs["skip on"].ideal_ps / 10**6, color="#999999", linestyle="--")
        left.set(title="flows completed (dashed: ideal)", xlabel="us", ylabel="share")
        right.set(title="deepest queue at a T0's uplinks", xlabel="time, us", ylabel="frames")
        left.legend()

    return Experiment(
        "balance", "A permutation at full load", "512 NICs, 2 T0s of 256 uplinks in each of 8 planes, 8 MiB each, 256 EVs; "
        "every NIC sends and receives at line rate, so that every uplink is exactly full.", found, draw,
        remark="The ideal counts data and its headers alone; acknowledgements, 178 bytes for four frames of 4,262, take "
        "another percent of every link. What is left is the queue that stands in the fullest of 4,096 uplinks when the "
        "last packet leaves: uncoordinated senders put up to half as much again on some uplinks, and a mark takes a round "
        "trip to say so, of which a flow of 8 MiB has six. Packets in flight on an EV tell sooner.",
    )  # fmt: skip


def s18() -> Experiment:
    """What each mechanism is worth."""
    return Experiment(
        "S18", "Ablations", "64 NICs under two T0s, 32 uplinks in each of 8 planes, 128 EVs unless said: a permutation of 2 "
        "MiB, a 16:1 incast of 1 MiB, and four writers of 8 MiB to one NIC below a T0 where 16 of 32 uplinks of one plane "
        "are denied, with 128 spares.", (*_spraying(), *_incasts(), *_replacing()),
        remark="Rows without an expectation are there to be compared. Where all NICs of a T0 send at full rate it makes no "
        "difference from which plane a spare comes, because a NIC then uses whichever of its ports is free; both are held to "
        "the plane that has lost uplinks, the price that P1 section 4 names.",
    )  # fmt: skip


_SMALL = {"ev": {"active": 128, "backup": 32, "min_active": 32}}


def _ablated(traffic: dict[str, Any], change: dict[str, Any], **more: Any) -> SimulationReport:
    name = more.pop("transport_name", "mrc")
    tables = {"mrc": {**_SMALL, **change}, **more.pop("tables", {})}
    return simulate(scenario(traffic, transport=tables, **more), site_of(gpus=64, radix=64), name)


def _row(label: str, run: SimulationReport) -> Finding:
    return Finding(label, "", f"slowest {run.completions_us().max():.1f} us; {run.marked:,} marked, {run.trimmed:,} trimmed, "
                   f"{run.dropped:,} dropped, {run.total('resent'):,} resent, {run.total('retired'):,} retired",
                   holds=True)  # fmt: skip


def _slowest(run: SimulationReport) -> float:
    return float(run.completions_us().max())


def _spraying() -> list[Finding]:
    """Return what the number of EVs, their order and skipping are worth under a permutation."""
    full = {"pattern": "permutation", "across": True, "size": "2 MiB"}
    fixed = {"congestion": {"algorithm": "fixed"}, "skip": False, "retire": False}
    rows = {
        f"{n} EVs": _ablated(full, {"ev": {"active": n, "backup": n // 4, "min_active": n // 4}})
        for n in (16, 64, 128, 256)
    }
    rows["128 EVs, skip off"] = _ablated(full, {"skip": False})
    rows["128 EVs, not shuffled"] = _ablated(full, {"shuffle": False})
    rows["128 EVs in rotation, fixed window"] = _ablated(full, fixed)
    rows["128 EVs at random, fixed window"] = _ablated(
        full, {}, transport_name="random", tables={"random": {"evs": 128}}
    )
    return [
        *(_row(label, run) for label, run in rows.items()),
        above("few EVs are slower: 16 over 256", _slowest(rows["16 EVs"]) / _slowest(rows["256 EVs"]), 1.05),
        above("few EVs meet fuller queues: marks with 16 over 256", rows["16 EVs"].marked / max(1, rows["256 EVs"].marked),
              3),
        above("drawing at random trims more than a shuffled rotation", rows["128 EVs at random, fixed window"].trimmed,
              rows["128 EVs in rotation, fixed window"].trimmed),
    ]  # fmt: skip


def _incasts() -> list[Finding]:
    """Return what trimming, patience with paths and a last hop without ECN are worth under an incast."""
    funnel = {"pattern": "incast", "across": True, "senders": 16, "destination": 40, "size": "1 MiB"}
    hasty = {"trimming": False, "ev": {**_SMALL["ev"], "losses_to_retire": 1}}
    rows = {
        "incast, trimming on": _ablated(funnel, {}),
        "incast, trimming off": _ablated(funnel, {"trimming": False}),
        "incast, trimming off, one loss retires": _ablated(funnel, hasty),
        "incast, ECN on the last hop too": _ablated(funnel, {"ecn_last_hop": True}),
    }
    on, off, blamed, marked = rows.values()
    evs = 16 * (128 + 32)
    return [
        *(_row(label, run) for label, run in rows.items()),
        replace(within("paths blamed in an incast that trims", on.total("retired"), 0, 0),
                why="it waited in the last hop's queue for longer than the spread, arrived, and was cleared"),
        within("without trimming, of 2,560", off.total("retired"), 0, 0.02 * evs),
        above("off: without trimming, if one loss were enough", blamed.total("retired"), 0.5 * evs),
        within("paths skipped for the receiver's sake", on.total("marks"), 0, 0),
        above("off: the same with ECN on the last hop", marked.total("marks"), 100),
        above("trimming ends an incast sooner: off over on", _slowest(off) / _slowest(on), 1.2),
    ]  # fmt: skip


def _replacing() -> list[Finding]:
    """Return what replacement within the plane is worth: planes stay even where many write to one."""
    denied = [f"link1-p0-i0-u{n}" for n in range(16)]
    spares = {"ev": {"active": 128, "backup": 128, "min_active": 32}}
    few = {"pattern": "incast", "across": True, "senders": 4, "destination": 40, "size": "8 MiB"}
    full = {"pattern": "permutation", "across": True, "size": "2 MiB"}
    rows = {
        f"{what}, {label} plane": _ablated(traffic, {**spares, "same_plane": label == "same"}, denied=denied)
        for what, traffic in (("4:1", few), ("permutation", full))
        for label in ("same", "any")
    }
    return [
        *(_row(label, run) for label, run in rows.items()),
        above("false incast: any plane over same plane, 4:1", _slowest(rows["4:1, any plane"]) / _slowest(rows["4:1, same plane"]),
              1.02, "", "P1 section 4"),
    ]  # fmt: skip


def htsim() -> Experiment:
    """The permutation that htsim was measured with."""
    site = _htsim_site()
    spec = scenario(
        {"pattern": "permutation", "size": "2 MiB"}, network={"host_delay": "0 ps"}, transport={"use": ["uet"]}
    )
    runs = [simulate(spec, site, "uet", seed) for seed in range(5)]
    mean = float(np.mean([run.completions_us().mean() for run in runs]))
    p99 = float(np.mean([run.as_json()["fct_us"]["p99"] for run in runs]))
    found = (
        within("mean completion", mean, 48.3 * 0.95, 48.3 * 1.05, "us", "htsim: 48.3"),
        within("p99 completion", p99, 50.7 * 0.95, 50.7 * 1.05, "us", "htsim: 50.7"),
    )
    return Experiment(
        "htsim", "htsim's permutation, 128 hosts", "400G, 8 leaves of 16 hosts, 16 spines, 500 ns a link, 2 MiB, 4160-byte "
        "frames, 64 hashed entropies, mixed spraying, UEC's queue limits; mean of 5 seeds. Nothing was fitted to it.", found,
    )  # fmt: skip


def _htsim_site() -> SiteSpec:
    site = site_of(1, gpus=128, radix=32, rate_gbps=400)
    links = site.fabric.links
    cable = links.nic_t0.model_copy(update={"length": Millimetres(102_041)})
    switch = site.fabric.parts.switch.model_copy(update={"latency": Picoseconds(0)})
    fabric = site.fabric.model_copy(
        update={
            "links": links.model_copy(update={"nic_t0": cable, "t0_t1": cable}),
            "parts": site.fabric.parts.model_copy(update={"switch": switch}),
            "packet": Bytes(4096),
        }
    )
    return site.model_copy(update={"fabric": fabric})
