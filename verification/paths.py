"""Single pairs: line rate, lost planes, lost links, lossy and shared EVs (S2, S9 to S13 of the fact sheet)."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from verification.findings import Experiment, Finding, ends_us, rates_gbps, scenario, simulate, site_of, within

LINE_GBPS = 768.8
"""800 Gb/s less headers: 4096 of 4262 bytes."""
ACROSS, LOCAL = 256, 1
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00")


def _pair(destination: int, size: str = "1 GB", queue_pairs: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "pattern": "pair",
        "source": 0,
        "destination": destination,
        "size": size,
        "queue_pairs": queue_pairs,
        **more,
    }


def _steps(figure: Figure, title: str, runs: dict[str, Any], marks: tuple[float, ...] = ()) -> None:
    axes = figure.subplots()
    for colour, (label, report) in zip(_COLOURS, runs.items(), strict=False):
        axes.step(ends_us(report), rates_gbps(report), where="pre", label=label, color=colour)
    for at in marks:
        axes.axvline(at, color="#999999", linestyle=":", linewidth=0.8)
    axes.set(title=title, xlabel="time, us", ylabel="payload, Gb/s", ylim=(0, 850))
    axes.legend()


def s2() -> Experiment:
    """Line rate of one pair, under one T0 and across T1s."""
    site = site_of()
    found: list[Finding] = []
    for name, to in (("under one T0", LOCAL), ("across T1s", ACROSS)):
        report = simulate(scenario(_pair(to), until_us=200), site)
        rate = float(rates_gbps(report)[5:].mean())
        found.append(within(f"one pair {name}", rate, 768, 770, "Gb/s", "R5: about 770"))
    half = {"mrc": {"congestion": {"algorithm": "fixed", "max_window": 0.5}}}
    weak = simulate(scenario(_pair(ACROSS, queue_pairs=1), until_us=200, transport=half), site)
    off = float(rates_gbps(weak)[5:].mean())
    found.append(
        within("the same with a window of half a round trip", off, 300, 450, "Gb/s", "must fall to about half")
    )
    times = [simulate(scenario(_pair(to, "2 B", 1)), site).flows[0].arrived_ps / 10**6 for to in (LOCAL, ACROSS)]
    found.append(within("2 bytes under one T0", times[0], 5.04, 5.14, "us", "R5: 5.09"))
    found.append(within("2 bytes across T1s", times[1], 6.47, 6.64, "us", "R5: 6.54"))
    return Experiment(
        "S2", "Line rate and latency of one pair", "8 x 100G, four queue pairs, 4 KiB packets, SRv6 headers; steady state.",
        tuple(found),
        remark="The delays of switches and NICs were derived from the same two published latencies, so these two rows show "
        "that the simulator adds them up, not that it predicts them. The rate is a prediction.",
    )  # fmt: skip


def s9() -> Experiment:
    """NIC links removed one by one and restored: the rate follows the planes that are left."""
    step, remap, planes = 200, 50, 8
    faults = [
        {"kind": "port-down", "target": f"link0-p{i}-i0", "at": f"{step * (i + 1)} us",
         "lasts": f"{step * 2 * (planes - 1 - i)} us"}
        for i in range(planes - 1)
    ]  # fmt: skip
    until = step * 2 * planes
    runs = {}
    for label, mrc in (
        ("remap 50 us", {"port_remap_delay": f"{remap} us"}),
        ("never remapped, nothing retired", {"port_remap_delay": "1 s", "retire": False}),
    ):
        spec = scenario(
            _pair(LOCAL), until_us=step * 4 if "never" in label else until, faults=faults, transport={"mrc": mrc}
        )  # fmt: skip
        runs[label] = simulate(spec, site_of())
    found: list[Finding] = []
    bins = rates_gbps(runs["remap 50 us"])
    worst = 0.0
    for i in range(2 * planes - 1):
        up = planes - i if i < planes else i - planes + 1
        settled = float(bins[step * i // 10 + 14 : step * (i + 1) // 10].mean())
        worst = max(worst, abs(settled / (LINE_GBPS * up / planes) - 1))
    found.append(within("furthest from (8-i)/8 over 15 steps", 100 * worst, 0, 1, "%", "R6: staircase"))
    never = (
        float(rates_gbps(runs["never remapped, nothing retired"])[step // 10 + 14 : 2 * step // 10].mean()) / LINE_GBPS
    )
    found.append(
        Finding(
            "first step where the plane is never taken out and nothing is retired",
            "away from 7/8",
            f"{never:.3f}",
            abs(never - 7 / 8) > 0.01,
        )
    )
    flap = scenario(
        _pair(LOCAL), until_us=900, transport={"mrc": {"port_remap_delay": "50 us"}},
        faults=[{"kind": "port-down", "target": f"link0-p{i}-i0", "at": "200 us", "lasts": "400 us"} for i in range(4)],
    )  # fmt: skip
    report = simulate(flap, site_of())
    half, back = rates_gbps(report)[34:60].mean() / LINE_GBPS, rates_gbps(report)[75:90].mean() / LINE_GBPS
    found.append(within("4 of 8 links down", float(half), 0.49, 0.51, source="R7: about half"))
    found.append(within("after they are back", float(back), 0.99, 1.01, source="R7: back quickly"))
    return Experiment(
        "S9", "NIC links down one by one, and four of eight at once",
        "T0-local pair, four queue pairs. Time is scaled down: steps of 200 us for seconds, a remap delay of 50 us for the "
        "part of a second that the paper's NICs take.",
        tuple(found), lambda figure: _steps(figure, "S9: NIC links removed and restored", runs,
                                            tuple(float(step * i) for i in range(1, 2 * planes))),
    )  # fmt: skip


def s10() -> Experiment:
    """Twenty T0-T1 links cut in sequence, eight at once, under EVs that all lie on few uplinks."""
    cuts, every, per_plane = 20, 100, 40
    one_by_one = [
        {"kind": "link-down", "target": f"link1-p{n % 8}-i0-u{n // 8}", "at": f"{100 + every * n} us"}
        for n in range(cuts)
    ]
    forced = {"uplinks": list(range(per_plane))}
    runs, lost = {}, {}
    for label, mrc in (("retirement on", {}), ("retirement off", {"retire": False})):
        spec = scenario(
            _pair(ACROSS, queue_pairs=1, **forced), until_us=100 + every * (cuts + 1), bin_us=every, faults=one_by_one,
            transport={"mrc": mrc},
        )  # fmt: skip
        runs[label] = simulate(spec, site_of())
        lost[label] = [fault.data_lost for fault in runs[label].faults]
    on, off = (rates_gbps(runs[label])[1:] / LINE_GBPS for label in runs)
    hit = [count for count in lost["retirement on"] if count]
    report = runs["retirement on"]
    rotation_us = 256 * 0.04262
    detection_us = 10 * report_rtt_us(report) / 13
    # The first packet, and one more in every rotation until the first is known to be lost.
    predicted = 1 + (report_rtt_us(report) + detection_us) / rotation_us
    together = scenario(
        _pair(ACROSS, queue_pairs=1, **forced), until_us=600, bin_us=every,
        faults=[{"kind": "flap", "target": f"link1-p{n}-i0-u0", "at": "200 us", "lasts": "300 us", "period": "100 us"}
                for n in range(8)],
    )  # fmt: skip
    flaps = rates_gbps(simulate(together, site_of()))[1:] / LINE_GBPS
    found = (
        within("slowest bin, 20 links in sequence", 100 * float(on.min()), 99, 101, "% of line rate", "R8: almost flat"),
        within("data packets lost per cut link in use", float(np.mean(hit)), predicted / 2, predicted * 1.5, "",
               f"1 + (round trip + detection) / rotation = {predicted:.1f}"),
        within("slowest bin, 8 links flapping together", 100 * float(flaps.min()), 98, 101, "%", "R9: negligible"),
        Finding("slowest bin with retirement off", "visibly lower", f"{100 * float(off.min()):.1f} %", float(off.min()) < 0.95),
        Finding("data packets lost with retirement off", "many more", f"{sum(lost['retirement off']):,} for "
                f"{sum(lost['retirement on']):,}", sum(lost["retirement off"]) > 10 * sum(lost["retirement on"])),
    )  # fmt: skip
    return Experiment(
        "S10", "T0-T1 links cut in sequence and flapping together",
        "One queue pair, 256 EVs and 64 spares held to 40 uplinks of each plane, so that every cut link is in use or is a "
        "spare. Time is scaled down: a link every 100 us and bins of 100 us, for 200 ms in the paper.",
        found, lambda figure: _steps(figure, "S10: 20 T0-T1 links cut in sequence", runs),
    )  # fmt: skip


def report_rtt_us(report: Any) -> float:
    """Return the round trip of a full packet over the longest path of the 8 x 100G fabric."""
    return (4 * (340_960 + 14_240) + 2 * (392_000 + 1_740_000 + 4_400_000)) / 10**6 if report else 0.0


def s11() -> Experiment:
    """A T0 and a T1 switched off."""
    runs, found = {}, []
    for label, target, expected in (("T0 off", "t0-p0-i0", 7 / 8), ("T1 off", "t1-p0-i5", 1.0)):
        spec = scenario(
            _pair(ACROSS), until_us=800, faults=[{"kind": "switch-down", "target": target, "at": "200 us"}],
            transport={"mrc": {"port_remap_delay": "50 us"}},
        )  # fmt: skip
        runs[label] = simulate(spec, site_of())
        lasting = float(rates_gbps(runs[label])[40:].mean()) / LINE_GBPS
        said = "R10: -1/8" if expected < 1 else "R11: nothing lasting"
        found.append(within(f"{label}, rate that is left", lasting, expected - 0.01, expected + 0.01, "", said))
    weak = scenario(
        _pair(ACROSS), until_us=800, faults=[{"kind": "switch-down", "target": "t1-p0-i5", "at": "200 us"}],
        transport={"mrc": {"retire": False}},
    )  # fmt: skip
    runs["T1 off, retirement off"] = simulate(weak, site_of())
    late = sum(fault.data_lost for fault in runs["T1 off, retirement off"].faults)
    good = sum(fault.data_lost for fault in runs["T1 off"].faults)
    found.append(
        Finding("packets lost to the dead T1, retirement off", "many more", f"{late} for {good}", late > 4 * good)
    )
    return Experiment(
        "S11", "A T0 and a T1 switched off", "Across T1s, four queue pairs; remap delay 50 us.", tuple(found),
        lambda figure: _steps(figure, "S11: a switch is switched off at 200 us", runs, (200.0,)),
    )  # fmt: skip


def s12() -> Experiment:
    """One EV of sixteen loses a fifth of its packets."""
    runs = {}
    for label, mrc in (("retirement on", {}), ("retirement off", {"retire": False})):
        spec = scenario(
            _pair(ACROSS, queue_pairs=1, uplinks=[3, 7]), until_us=800, bin_us=50,
            faults=[{"kind": "loss", "target": "link1-p0-i0-u3", "at": "200 us", "amount": 0.2}],
            transport={"mrc": {"ev": {"active": 16, "backup": 0, "min_active": 4}, **mrc}},
        )  # fmt: skip
        runs[label] = simulate(spec, site_of())
    on, off = runs["retirement on"], runs["retirement off"]
    found = (
        within("slowest bin after the fault", 100 * float((rates_gbps(on)[4:] / LINE_GBPS).min()), 97, 101, "%", "R12: flat"),
        within("mean rate after the fault", 100 * float((rates_gbps(on)[4:] / LINE_GBPS).mean()), 99, 101, "%"),
        within("data packets lost each time the EV was in use", on.faults[0].data_lost / on.total("retired"), 1, 10, "",
               "R12: EV-A inactive at once"),
        Finding("data packets lost with retirement off", "many more", f"{off.faults[0].data_lost}",
                off.faults[0].data_lost > 4 * on.faults[0].data_lost),
    )  # fmt: skip
    return Experiment(
        "S12", "One EV of sixteen loses 20 % of its packets", "One queue pair held to two uplinks in each of eight planes; "
        "the loss begins at 200 us.", found, lambda figure: _steps(figure, "S12: one EV loses 20 %", runs, (200.0,)),
        remark="Three probes answered in a row bring an EV back; one that loses a fifth passes that now and then, and is "
        "retired again at its next loss. How many probes the paper asks for is not published.",
    )  # fmt: skip


def s13() -> Experiment:
    """Two flows, two EVs: one is pinned to EV A, the other leaves it by its marks."""
    site = site_of(1, rate_gbps=100, radix=512)
    flows = [
        {"name": "free", "source": 0, "destination": 256, "size": "1 GB", "uplinks": [0, 1]},
        {"name": "pinned", "source": 1, "destination": 257, "size": "1 GB", "uplinks": [0], "at": "300 us"},
    ]
    runs = {}
    for label, mrc in (("skip on", {}), ("skip off", {"skip": False})):
        table = {"mrc": {"ev": {"active": 2, "backup": 0, "min_active": 1}, **mrc}}
        spec = scenario({"pattern": "flows", "flows": flows}, until_us=2000, bin_us=50, transport=table)
        runs[label] = simulate(spec, site)
    line = LINE_GBPS / 8

    def late(label: str, pair: int) -> float:
        return float(rates_gbps(runs[label], [pair])[-16:].mean() / line)

    found = (
        within("free flow once they have parted", 100 * late("skip on", 0), 95, 101, "% of line rate", "R13: near line rate"),
        within("pinned flow", 100 * late("skip on", 1), 95, 101, "% of line rate", "R13: near line rate"),
        Finding("both with skipping off", "below", f"{100 * late('skip off', 0):.0f} % and {100 * late('skip off', 1):.0f} %",
                late("skip off", 0) + late("skip off", 1) < 1.9),
    )  # fmt: skip

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for colour, (label, pair) in zip(_COLOURS, ((run, pair) for run in runs for pair in (0, 1)), strict=False):
            name = f"{'pinned' if pair else 'free'} flow, {label}"
            axes.step(ends_us(runs[label]), rates_gbps(runs[label], [pair]), where="pre", label=name, color=colour)
        axes.set(title="S13: two flows on two EVs", xlabel="time, us", ylabel="payload, Gb/s", ylim=(0, 110))
        axes.legend()

    return Experiment(
        "S13", "Two flows that share an EV part by ECN alone", "One plane of 100G; the second flow, pinned to EV A, begins at "
        "300 us; the first may use EV A and EV B.", found, draw,
    )  # fmt: skip
