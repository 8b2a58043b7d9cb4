"""What is ours to choose: how soon silence counts as loss; and what collectives take against their own bound."""

import numpy as np
from matplotlib.figure import Figure

from verification.findings import COLOURS, Experiment, Finding, above, scenario, simulate, site_of, within

_SPREADS = (2.5, 5.0, 10.0, 20.0, 40.0)
_CHOSEN = 10.0


def threshold() -> Experiment:
    """Sweep the spread: recovery from a black hole against mistakes under a full load, with and without waits."""
    site = site_of(gpus=64, radix=64)
    small = {"active": 128, "backup": 32, "min_active": 32}
    hole = [{"kind": "black-hole", "target": "t1-p1-i17"}]
    quiet = {"pattern": "flows", "flows": [{"source": a, "destination": 32 + a, "size": "4 MiB"} for a in range(8)]}
    full = {"pattern": "permutation", "across": True, "size": "2 MiB"}
    recovery: dict[float, float] = {}
    mistakes: dict[float, int] = {}
    unaware: dict[float, int] = {}
    for spread in _SPREADS:
        loss = {
            "spread": f"{spread} us",
            "spread_max": f"{max(40.0, spread)} us",
            "probe_after": f"{max(26.0, spread)} us",
        }
        # A spread that may not grow hears nothing of queues.
        fixed = {**loss, "spread_max": loss["spread"]}
        run = simulate(scenario(quiet, faults=hole, transport={"mrc": {"ev": small, "loss": loss}}), site)
        recovery[spread] = float(np.median(run.faults[0].recovery_ps)) / 10**6
        for counts, used in ((mistakes, loss), (unaware, fixed)):
            counts[spread] = simulate(scenario(full, transport={"mrc": {"ev": small, "loss": used}}), site).total(
                "spurious"
            )
    found: list[Finding] = [
        Finding(f"spread {spread:g} us", "", f"recovery {recovery[spread]:.0f} us; {mistakes[spread]:,} packets of 32,768 "
                f"given up too soon, {unaware[spread]:,} where queues are not counted", holds=True)
        for spread in _SPREADS
    ]  # fmt: skip
    least, most = _SPREADS[0], _SPREADS[-1]
    found += [
        within(f"median recovery with {_CHOSEN:g} us, the default", recovery[_CHOSEN], 10, 99, "us", "R4: tens of us"),
        within(f"packets given up too soon with {_CHOSEN:g} us, of 32,768", mistakes[_CHOSEN], 0, 327, "", "below 1 %"),
        above(f"recovery with {most:g} us over that with {least:g} us", recovery[most] / recovery[least], 1.5),
        within(f"packets given up too soon with {least:g} us, of 32,768", mistakes[least], 0, 327, "", "below 1 %"),
        above(
            f"off: waits in queues do not count, mistakes with {least:g} us over those with {most:g} us",
            unaware[least] / max(1, unaware[most]),
            10,
        ),
    ]

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        left.plot(_SPREADS, list(recovery.values()), "o-", color=COLOURS[0])
        left.set(
            title="median recovery from a black hole", xlabel="spread, us", ylabel="us", xscale="log", ylim=(0, None)
        )
        for counts, label, colour in ((mistakes, "waits count", COLOURS[0]), (unaware, "they do not", COLOURS[1])):
            right.plot(_SPREADS, [100 * count / 32768 for count in counts.values()], "o-", color=colour, label=label)
        right.legend()
        right.set(title="packets given up too soon, full load", xlabel="spread, us", ylabel="%")

    return Experiment(
        "threshold", "How soon silence counts as loss", "A packet is presumed lost once one that was sent a spread later has "
        "arrived. The paper does not publish its threshold. 64 NICs, 32 uplinks in each of 8 planes, 128 EVs: recovery of 8 "
        "queue pairs from a dead T1, and a permutation of 2 MiB at full load in which nothing is lost.", tuple(found), draw,
        remark="Smaller is quicker. It would be wrong more often, did the longest wait in queues that was lately seen not come "
        "on top; a mistake costs one packet sent twice, widens the spread for a while and clears its path at once.",
    )  # fmt: skip


def collective() -> Experiment:
    """Run collectives as flows that wait for each other, against the longest chain of their schedules."""
    site = site_of(gpus=264)
    found: list[Finding] = []
    for kind, algorithm, size in (
        ("all-reduce", "ring", "64 MiB"),
        ("all-reduce", "halving-doubling", "64 MiB"),
        ("all-gather", "ring", "64 MiB"),
        ("all-reduce", "ring", "64 KiB"),
    ):
        traffic = {
            "pattern": "collective",
            "kind": kind,
            "algorithm": algorithm,
            "ranks": 8,
            "stride": 33,
            "size": size,
        }
        over = simulate(scenario(traffic), site).over_ideal()
        found.append(within(f"{kind} by {algorithm}, {size}", over or 0.0, 1, 1.1, "of the bound"))
    slow = {"pattern": "collective", "kind": "all-reduce", "ranks": 8, "stride": 33, "size": "64 MiB"}
    lost = [{"kind": "port-down", "target": f"link0-p{n}-i0"} for n in range(4)]
    hurt = simulate(scenario(slow, faults=lost, transport={"mrc": {"port_remap_delay": "1 us"}}), site)
    found.append(within("off: the ring with four of eight ports of one NIC down", hurt.over_ideal() or 0.0, 1.7, 2.2,
                        "of the bound", "the slowest link of a ring sets its pace"))  # fmt: skip
    return Experiment(
        "collective", "Collectives against their own bound", "8 ranks, 33 NICs apart, under two T0s of the 8 x 100G fabric; "
        "every send is a write that waits for what it carries. The bound is the longest chain of sends, each alone in the "
        "network, without acknowledgements.", tuple(found),
    )  # fmt: skip
