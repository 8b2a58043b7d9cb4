"""Everybody to everybody as NCCL and RCCL do it: sends and receives in rounds, a few peers at a time, over channels.

A rank's rounds are the same distances for all: servers in an order that meets each distance once, and within a server
one GPU after the other. Round r works on slot r modulo `at_once`; a slot's next round begins once what it sent is
acknowledged and what it received is there. Inside a server nothing crosses the fabric. Source for what is modelled: the
schedule of point-to-point operations in NCCL 2.27 and RCCL for ROCm 7, with RCCL's batching off, as it is for AMD's own
NICs.
"""

from collections.abc import Iterator

from weft.core.errors import UsageError
from weft.netsim.model.flow import Flow
from weft.specs.scenario import TrafficSpec

LEAST_PART = 2**16
"""Bytes of a send from which it takes another channel: half of what one message holds."""
_Slot = tuple[int, int, int]
"""A rank, one of its slots, a channel."""


def exchange_flows(spec: TrafficSpec, hosts: int) -> list[Flow]:
    """Return the flows of `spec.times` exchanges over the first `hosts` NICs, a rank on each."""
    if hosts % spec.server:
        raise UsageError(
            f"{hosts:,} NICs are no whole servers of {spec.server}; change traffic.hosts or traffic.server"
        )
    if hosts == spec.server:
        raise UsageError(f"{hosts:,} NICs are one server, so nothing crosses the fabric; use more hosts")
    flows: list[Flow] = []
    before: list[tuple[int, ...]] = [()] * hosts
    for turn in range(spec.times):
        into, out = _exchange(spec, hosts, turn, before, flows)
        before = [(len(flows) + rank,) for rank in range(hosts)]
        flows += [
            Flow(f"{turn}:{rank}", rank, rank, 0, 0, tuple(into[rank]), after_sent=tuple(out[rank]))
            for rank in range(hosts)
        ]
    return flows


def _exchange(
    spec: TrafficSpec, hosts: int, turn: int, before: list[tuple[int, ...]], flows: list[Flow]
) -> tuple[list[list[int]], list[list[int]]]:
    """Add the flows of one exchange to `flows`; return the numbers of those that every rank receives and sends."""
    into: list[list[int]] = [[] for _ in range(hosts)]
    out: list[list[int]] = [[] for _ in range(hosts)]
    channels = max(1, min(spec.channels, spec.size // LEAST_PART))
    # What every slot sent and received last.
    sent: dict[_Slot, int] = {}
    received: dict[_Slot, int] = {}
    for number, (servers, gpus) in enumerate(rounds(hosts // spec.server, spec.server)):
        if servers == 0:
            continue
        slot = number % spec.at_once
        busy, heard = dict(sent), dict(received)
        for rank in range(hosts):
            peer = _peer(rank, servers, gpus, hosts, spec.server)
            for channel in range(channels):
                key = (rank, slot, channel)
                size = spec.size // channels + (1 if channel < spec.size % channels else 0)
                first = key not in busy
                flow = Flow(
                    f"{turn}:{rank}-{peer}.{channel}", rank, peer, size, spec.at if first and turn == 0 else 0,
                    before[rank] if first else (heard[key],), lane=channel, after_sent=() if first else (busy[key],),
                )  # fmt: skip
                sent[key] = received[peer, slot, channel] = len(flows)
                into[peer].append(len(flows))
                out[rank].append(len(flows))
                flows.append(flow)
    return into, out


def rounds(servers: int, gpus: int) -> Iterator[tuple[int, int]]:
    """Return how many servers and GPUs on every rank's peer is, round by round.

    Distances of servers grow by one more each time, modulo a power of two, which meets each distance once.
    """
    power = 1 << (servers - 1).bit_length()
    distance = 0
    for turn in range(1, power + 1):
        if distance < servers:
            for gpu in range(gpus):
                yield distance, gpu
        distance = (distance + turn) % power


def _peer(rank: int, servers: int, gpus: int, hosts: int, server: int) -> int:
    """Return the rank so many servers and GPUs on."""
    return (rank // server * server + servers * server) % hosts + (rank + gpus) % server
