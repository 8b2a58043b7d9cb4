"""An exact twin for open-loop traffic: every packet's time through first-in first-out ports, to the picosecond.

It knows no slots: events happen at their own times. It carries packets that are given, without any protocol, so that
what slots cost in accuracy can be measured by itself.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from weft.core.units import transfer_ps
from weft.mrc.columns import DATA, NEVER
from weft.netsim.model.queue_pairs import FlowEvent
from weft.netsim.transports.base import EndpointOutcome


@dataclass(frozen=True)
class Shot:
    """One packet that a NIC sends at a given time."""

    at_ps: int
    nic: int
    path: tuple[int, ...]
    size: int


def exact_arrivals(network, shots):
    """Return when each packet reaches its NIC."""
    rates = network.topology.links.rate_bps
    free_ps: dict[int, int] = {}
    arrived = [0] * len(shots)
    events = [(shot.at_ps, number, 0) for number, shot in enumerate(shots)]
    heapq.heapify(events)
    while events:
        at_ps, number, hop = heapq.heappop(events)
        shot = shots[number]
        if hop == len(shot.path):
            arrived[number] = at_ps
            continue
        port = shot.path[hop]
        start_ps = max(at_ps, free_ps.get(port, 0))
        free_ps[port] = start_ps + transfer_ps(shot.size, int(rates[port // 2]))
        heapq.heappush(events, (free_ps[port] + network.delay_ps[port], number, hop + 1))
    return arrived


class Script:
    """Endpoints that send given packets and note when they arrive."""

    def __init__(self, shots, slot_ps: int) -> None:
        self.shots, self.slot_ps = shots, slot_ps
        self.order = sorted(range(len(shots)), key=lambda number: shots[number].at_ps)
        self.sent = 0
        self.arrived = [0] * len(shots)
        self.left = len(shots)

    def take_in(self, arrivals):
        for row, _, _, time_ps in arrivals:
            self.arrived[row] = time_ps
            self.left -= 1
        events = [] if self.left else [FlowEvent(0, 0, 1), FlowEvent(0, 0, 0)]
        return EndpointOutcome([], events, [1] * len(arrivals))

    def send_out(self, start_ps, phase, room):
        sent = []
        while self.sent < len(self.order):
            number = self.order[self.sent]
            shot = self.shots[number]
            if shot.at_ps >= start_ps + self.slot_ps:
                break
            sent.append((number, 0, 0, number, shot.size, DATA, shot.nic, shot.at_ps))
            self.sent += 1
        return EndpointOutcome(sent, [])

    def route(self, pair, half, route):
        return self.shots[route].path

    def deadline_ps(self):
        if self.sent == len(self.order):
            return NEVER
        return self.shots[self.order[self.sent]].at_ps // self.slot_ps * self.slot_ps

    def reconverge(self, dead):
        pass

    def reached(self, pairs):
        return ([10**9] * len(pairs),) * 2

    most_posts = 1

    def has(self, pair, sequence):
        return False

    def check_one(self):
        pass

    def received(self):
        return np.zeros(1, np.int64)

    def failed(self, pairs):
        return {}

    def post(self, pair, length):
        return True

    def post_many(self, pairs, lengths):
        return [True] * len(pairs)

    def set_goals(self, pairs, arrived, acknowledged):
        pass

    def drop(self, row):
        raise AssertionError("nothing is lost here")

    def change_port(self, nic, plane, *, up, now_ps):
        raise AssertionError("no port changes here")

    def sequence(self, row):
        return row

    def counters(self):
        return {}
