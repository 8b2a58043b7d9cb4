"""The closed forms of `weft explain` beside simulations of the same: collisions, queues, stragglers."""

from collections.abc import Sequence

import numpy as np

from verification.findings import GBPS, US, Experiment, Finding, scenario, site_of
from verification.rivals import PFC_ONLY, ROCE_LINE, bed, simulate
from weft.fabric.theory.balls import busy_share, mean_max_load
from weft.fabric.theory.extremes import any_bad
from weft.fabric.theory.queues import md1_waiting
from weft.netsim.run import prepare
from weft.netsim.setup import set_up, transports_of
from weft.specs.scenario import ScenarioSpec
from weft.specs.site import SiteSpec


def mathematics() -> Experiment:
    """Closed forms of `weft explain` beside what packets do."""
    found = [*_collisions(), *_spray_queue(), *_stragglers()]
    return Experiment(
        "mathematics", "Closed forms beside packets", "What `weft explain` computes, against the same thing carried out packet by "
        "packet; a row holds where they differ by less than three standard errors.", tuple(found),
    )  # fmt: skip


def agree(what: str, closed: float, values: Sequence[float]) -> Finding:
    """Return the finding that the mean of independent values is a closed form, within three standard errors."""
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / len(values) ** 0.5
    return Finding(what, f"{closed:.3f} in closed form", f"{mean:.3f} +- {error:.3f}", abs(mean - closed) <= 3 * error)


def _collisions() -> list[Finding]:
    """Eight flows of one T0 to eight others, hashed to eight uplinks: nothing else is shared."""
    site = bed(72, 16)
    flows = [{"source": n, "destination": 8 * (n + 1) + n, "size": "2 MiB"} for n in range(8)]
    spec = scenario({"pattern": "flows", "flows": flows}, transport=PFC_ONLY)
    runs = [simulate(spec, site, "roce:1", seed) for seed in range(60)]
    alone = runs[0].ideal_ps
    # On a shared uplink a flow waits for the bytes of the others, not for their way.
    bytes_ps = 512 * (4096 + 82) * 8 * 1000 / 400
    slowest = [1 + (max(flow.acknowledged_ps for flow in each.flows) - alone) / bytes_ps for each in runs]
    # While all send, busy uplinks are full: what arrives then is the share of uplinks that carry anything.
    until = scenario({"pattern": "flows", "flows": [{**flow, "size": "1 GiB"} for flow in flows]}, until_us=100,
                     transport=PFC_ONLY)  # fmt: skip
    shares = [
        float(simulate(until, site, "roce:1", seed).series.rates_bps()[3:].mean()) / (8 * ROCE_LINE * GBPS)
        for seed in range(60)
    ]
    return [
        agree("slowest of 8 flows on 8 uplinks, over one alone", mean_max_load(8, 8), slowest),
        agree("throughput of 8 flows on 8 uplinks", busy_share(8, 8), shares),
    ]


def _spray_queue() -> list[Finding]:
    """Sixteen NICs, each packet on a random one of 16 uplinks: the queue of an uplink is nearly M/D/1."""
    site = site_of(1, gpus=32, radix=32, rate_gbps=400)
    found: list[Finding] = []
    for load in (0.5, 0.8):
        traffic = {"pattern": "poisson", "size": "4 KiB", "load": load, "lasts": "120 us"}
        means = [_backlog(scenario(traffic), site, seed) for seed in range(6)]
        # Of N sources one cannot queue behind itself: the M/D/1 mean times (N - 1)/N (Karol et al., 1987).
        # 16 of 31 others are on the other T0, and headers come on top of what is offered.
        offered = load * 16 / 31 * 4262 / 4096
        waiting = md1_waiting(offered) * 15 / 16
        found.append(agree(f"frames waiting at an uplink, load {offered:.2f}", waiting, means))
    return found


def _backlog(spec: ScenarioSpec, site: SiteSpec, seed: int) -> float:
    """Return the mean number of frames that wait at an uplink while packets keep coming."""
    setup = set_up(spec, site, seed)
    (chosen,) = transports_of(setup, ("random",))
    network, world = prepare(setup, chosen, fast=True)
    ups = [2 * link for link in range(network.shape.links[0], sum(network.shape.links))]
    total = samples = 0
    while world.board.open and world.slot * world.slot_ps < 120 * US:
        world.step()
        if world.slot * world.slot_ps > 20 * US:
            total += sum(world.ports[port].data_bytes for port in ups)
            samples += len(ups)
    return total / samples / network.frames.full


def _stragglers() -> list[Finding]:
    """Sixteen flows of one packet each, one lost in a hundred: how often the step has a straggler."""
    faults = [{"kind": "loss", "target": f"link0-p0-i{n}", "amount": 0.01} for n in range(16, 32)]
    flows = [{"source": n, "destination": 16 + n, "size": "4 KiB"} for n in range(16)]
    site = site_of(1, gpus=32, radix=32, rate_gbps=400)
    spec = scenario({"pattern": "flows", "flows": flows}, faults=faults)
    late = []
    for seed in range(400):
        report = simulate(spec, site, "mrc", seed)
        late.append(float(sum(fault.data_lost for fault in report.faults) > 0))
    return [agree("share of steps with a straggler, 16 flows at 1 %", any_bad(0.01, 16), late)]
