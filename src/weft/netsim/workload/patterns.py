"""The flows of a scenario: who writes how many bytes to whom, when, and after what. Given, or drawn from a seed."""

from typing import assert_never

import numpy as np

from weft.collectives.registry import schedule_named
from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.fabric.graph.shape import Shape
from weft.netsim.model.flow import Flow
from weft.netsim.workload.all_to_all import exchange_flows
from weft.netsim.workload.experts import expert_flows
from weft.netsim.workload.schedules import Beginning, flows_of_schedule
from weft.netsim.workload.sharers import sharer_flows
from weft.specs.scenario import ScenarioSpec, TrafficSpec

_BITS_PER_BYTE = 8
_FEWEST_RANKS, _MOST_RANKS = 2, 512


def flows_of(scenario: ScenarioSpec, shape: Shape, nic_bps: int, seed: Seed) -> tuple[Flow, ...]:
    """Return every flow of a scenario, the counted ones first."""
    if scenario.jobs:
        return with_background(sharer_flows(scenario.jobs, shape.hosts), scenario, shape, nic_bps, seed)
    if scenario.traffic is None:
        raise UsageError(f"{scenario.name} has no traffic; write a [traffic] table")
    flows = _flows(scenario.traffic, shape, nic_bps, seed.branch("traffic"))
    return with_background(flows, scenario, shape, nic_bps, seed)


def with_background(
    counted: list[Flow], scenario: ScenarioSpec, shape: Shape, nic_bps: int, seed: Seed
) -> tuple[Flow, ...]:
    """Return the counted flows and, behind them, what is sent besides."""
    flows = counted
    if scenario.background is not None:
        behind = _flows(scenario.background, shape, nic_bps, seed.branch("background"))
        offset = len(flows)
        flows += [
            Flow(f"background-{f.name}", f.source, f.destination, f.size, f.at_ps,
                 tuple(n + offset for n in f.after), f.uplinks, f.lane, counted=False)
            for f in behind
        ]  # fmt: skip
    return tuple(flows)


def _flows(spec: TrafficSpec, shape: Shape, nic_bps: int, seed: Seed) -> list[Flow]:
    hosts = _hosts(spec, shape)
    match spec.pattern:
        case "flows":
            return _given(spec, shape)
        case "poisson":
            return _poisson(spec, hosts, nic_bps, seed)
        case "pair":
            ends = [(spec.source, spec.destination)]
        case "permutation":
            ends = _permutation(spec, hosts, shape, seed)
        case "incast":
            ends = _incast(spec, hosts, shape)
        case "collective":
            return _collective(spec, hosts)
        case "nccl-all-to-all":
            return exchange_flows(spec, hosts)
        case "experts":
            return expert_flows(spec, hosts)
        case "all-to-all":
            ends = [(a, (a + step) % hosts) for step in range(1, hosts) for a in range(hosts)]
        case _:
            assert_never(spec.pattern)
    return _cut(ends, spec, seed)


def _hosts(spec: TrafficSpec, shape: Shape) -> int:
    """Return how many NICs take part, after a look at everything that names one, or a path."""
    hosts = shape.hosts if spec.hosts is None else spec.hosts
    if hosts > shape.hosts:
        raise UsageError(f"traffic.hosts is {hosts:,}, but the fabric has {shape.hosts:,} NICs; write fewer")
    for nic in (spec.source, spec.destination) if spec.pattern == "pair" else ():
        _check_nic(nic, shape)
    for uplink in spec.uplinks:
        _check_uplink(uplink, shape)
    return hosts


def _check_nic(nic: int, shape: Shape) -> None:
    if nic >= shape.hosts:
        raise UsageError(f"there is no NIC {nic}; they run from 0 to {shape.hosts - 1}")


def _check_uplink(uplink: int, shape: Shape) -> None:
    if uplink >= shape.paths:
        raise UsageError(f"there is no uplink {uplink}; they run from 0 to {shape.paths - 1}")


def _permutation(spec: TrafficSpec, hosts: int, shape: Shape, seed: Seed) -> list[tuple[int, int]]:
    """Draw until nobody sends to itself, or, where wanted, to its own T0."""
    stream = seed.stream("permutation")
    if spec.across and hosts <= shape.down:
        raise UsageError(f"{hosts} hosts hang on one T0, so no flow can go across; use more than {shape.down}")
    source = np.arange(hosts)
    group = source // shape.down if spec.across else source
    to = stream.permutation(hosts)
    # Exchanging each wrong one with a random other ends quickly; the bound is there because everything has one.
    for _ in range(1000 * hosts):
        wrong = np.flatnonzero(group[to] == group)
        if not len(wrong):
            return [(int(a), int(b)) for a, b in zip(source, to, strict=True)]
        a, b = int(wrong[0]), int(stream.integers(hosts))
        to[a], to[b] = to[b], to[a]
    raise UsageError(f"no permutation of {hosts} hosts goes across T0s everywhere; make the groups equal")


def _incast(spec: TrafficSpec, hosts: int, shape: Shape) -> list[tuple[int, int]]:
    to = spec.destination
    _check_nic(to, shape)
    home = to // shape.down
    beside = [nic for nic in range(hosts) if nic // shape.down == home and nic != to]
    if spec.victim and not beside:
        raise UsageError(f"no other NIC hangs on the T0 of NIC {to}, so none can be the victim; use more hosts")
    taken = {to, *beside[:1]} if spec.victim else {to}
    others = [nic for nic in range(hosts) if nic not in taken and not (spec.across and nic // shape.down == home)]
    needed = spec.senders + int(spec.victim)
    if len(others) < needed:
        raise UsageError(f"this incast needs {needed} senders, but only {len(others)} NICs can be; use more hosts")
    pairs = [(nic, to) for nic in others[: spec.senders]]
    return [*pairs, (others[spec.senders], beside[0])] if spec.victim else pairs


def _collective(spec: TrafficSpec, hosts: int) -> list[Flow]:
    """Return the flows of a collective over NICs that lie `stride` apart."""
    ranks = min(hosts // spec.stride, _MOST_RANKS) if spec.ranks is None else spec.ranks
    if ranks * spec.stride > hosts or ranks < _FEWEST_RANKS:
        raise UsageError(f"{ranks} ranks, {spec.stride} NICs apart, do not fit {hosts:,} NICs; change ranks or stride")
    schedule = schedule_named(spec.kind, spec.algorithm, ranks)
    return flows_of_schedule(schedule, range(0, ranks * spec.stride, spec.stride), spec.size, begin=Beginning(spec.at))


def _given(spec: TrafficSpec, shape: Shape) -> list[Flow]:
    numbers: dict[str, int] = {}
    flows: list[Flow] = []
    for number, flow in enumerate(spec.flows):
        _check_nic(max(flow.source, flow.destination), shape)
        for uplink in flow.uplinks:
            _check_uplink(uplink, shape)
        name = flow.name or str(number)
        if name in numbers:
            raise UsageError(f"two flows are called {name!r}; give each its own name")
        missing = [other for other in flow.after if other not in numbers]
        if missing:
            raise UsageError(f"flow {name!r} waits for {missing[0]!r}, which no flow before it is called")
        numbers[name] = number
        after = tuple(numbers[other] for other in flow.after)
        flows.append(Flow(name, flow.source, flow.destination, flow.size, flow.at, after, flow.uplinks))
    return flows


def _cut(ends: list[tuple[int, int]], spec: TrafficSpec, seed: Seed) -> list[Flow]:
    """Give sizes to pairs, and cut each flow over its queue pairs."""
    flows: list[Flow] = []
    sizes = _sizes(spec, len(ends), seed)
    for number, each in enumerate(ends):
        lanes = min(spec.queue_pairs, sizes[number])
        for lane in range(lanes):
            part = sizes[number] // lanes + (1 if lane < sizes[number] % lanes else 0)
            name = f"{each[0]}-{each[1]}" + (f".{lane}" if lanes > 1 else "")
            flows.append(Flow(name, *each, part, spec.at, (), spec.uplinks, lane))
    return flows


def _sizes(spec: TrafficSpec, count: int, seed: Seed) -> list[int]:
    if not spec.sizes:
        return [spec.size] * count
    shares = np.array([part.share for part in spec.sizes])
    drawn = seed.stream("sizes").choice(len(shares), size=count, p=shares / shares.sum())
    return [spec.sizes[number].size for number in drawn]


def _poisson(spec: TrafficSpec, hosts: int, nic_bps: int, seed: Seed) -> list[Flow]:
    """Draw flows whose starts are a Poisson process and whose ends are even, at a share of the NICs' rate."""
    mean = sum(part.share * part.size for part in spec.sizes) if spec.sizes else spec.size
    per_second = spec.load * hosts * nic_bps / (_BITS_PER_BYTE * mean)
    stream = seed.stream("poisson")
    count = int(stream.poisson(per_second * spec.lasts / PICOSECONDS_PER_SECOND))
    if count == 0:
        raise UsageError("this load brings no flow in this time; raise load or lasts")
    starts = np.sort(stream.integers(0, spec.lasts, size=count))
    source = stream.integers(0, hosts, size=count)
    to = (source + stream.integers(1, hosts, size=count)) % hosts
    sizes = _sizes(spec, count, seed)
    return [
        Flow(str(n), int(source[n]), int(to[n]), sizes[n], spec.at + int(starts[n]), (), spec.uplinks)
        for n in range(count)
    ]
