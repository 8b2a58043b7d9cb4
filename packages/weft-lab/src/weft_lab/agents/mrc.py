"""One end of MRC between two hosts of a lab: a stream of large writes, or small ones there and back.

It runs inside a host's namespace (`python -m weft_lab.agents.mrc`). The transport is the ordinary endpoint and
knows no lab; what is added here is where packets go (the carrier of each EV).
"""

import os
import threading
import time
from collections import deque
from typing import Any

import numpy as np

from weft.core.errors import WeftError
from weft.mrc.columns import GOOD, SKIP
from weft.transport.endpoint import Endpoint
from weft.transport.queue_pair import Completion, QueuePair
from weft.transport.regions import Region
from weft.transport.statistics import PEER_COUNTERS
from weft.transport.underlay import Place
from weft_lab.agents.channel import SAMPLE_S, AgentChannel
from weft_lab.underlay import LabUnderlay

IN_FLIGHT = 8
"""Writes that are posted and not yet acknowledged: enough that the transport never waits for the program."""


class MrcAgent:
    """An endpoint, its one peer and the memory of both."""

    def __init__(self, line: AgentChannel) -> None:
        """Open the endpoint and meet the peer."""
        asked = line.asked
        carriers: list[str] = asked["carriers"]
        self.line = line
        self.size = int(asked["size"])

        def by_ev(place: Place, ev: int) -> str:
            del place
            return carriers[ev]

        self.underlay = LabUnderlay(
            planes=asked["planes"],
            paths=len(carriers) // asked["planes"],
            rate_bps=asked["rate_bps"],
            carrier=by_ev,
            where={},
            payload=asked["payload"],
            rtt_us=asked["rtt_us"],
            spread_us=asked["spread_us"],
            trims=asked["trims"],
        )
        self.endpoint = Endpoint(self.underlay, peers=1)
        memory = np.zeros(self.size * IN_FLIGHT, np.uint8)
        self.region: Region = self.endpoint.register(memory)
        self.pair: QueuePair = self.endpoint.offer(asked["peer_name"])
        peer = line.meet({"card": self.pair.card, "memory": [self.region.address, self.region.key]})
        self.far_address, self.far_key = peer["memory"]
        self.pair.connect(peer["card"])
        for ev in asked["denied"]:
            self.pair.deny(ev)
        self.stop = threading.Event()
        threading.Thread(target=self._watch_line, name="weft-line", daemon=True).start()

    def write(self, number: int) -> None:
        """Post the write of message `number`, with an immediate that tells the peer."""
        offset = number % IN_FLIGHT * self.size
        self.pair.write(self.region, offset, self.size, self.far_address + offset, self.far_key, immediate=number)

    def next(self, wait_s: float) -> Completion | None:
        """Return the next completion, or nothing after a while."""
        return self.pair.wait(wait_s)

    def _watch_line(self) -> None:
        """Wait for the word to stop; a command that has gone is such a word."""
        while not self.stop.is_set() and os.read(0, 4096):
            break
        self.stop.set()


def main() -> None:
    """Be the end that the first line asks for."""
    line = AgentChannel()
    try:
        agent = MrcAgent(line)
        role = {("stream", False): send, ("stream", True): receive, ("ping", False): ping, ("ping", True): echo}
        role[line.asked["mode"], line.asked["receives"]](agent)
        agent.stop.set()
        line.say(statistics=statistics(agent), end=True)
        agent.endpoint.close(0.2)
    except WeftError as error:
        line.say(error=str(error))


def send(agent: MrcAgent) -> None:
    """Write without a pause until asked to stop."""
    posted = settled = 0
    while not agent.stop.is_set():
        while posted - settled < IN_FLIGHT:
            agent.write(posted)
            posted += 1
        if agent.next(SAMPLE_S) is not None:
            settled += 1
        agent.line.sample(settled * agent.size, statistics=statistics(agent))


def receive(agent: MrcAgent) -> None:
    """Count what arrives until asked to stop."""
    agent.pair.expect()
    carried = 0
    while not agent.stop.is_set():
        done = agent.next(SAMPLE_S)
        if done is not None and done.kind == "immediate":
            carried += agent.size
        agent.line.sample(carried)


def ping(agent: MrcAgent) -> None:
    """Write, wait for the answer, note how long it took; as often as asked."""
    asked = agent.line.asked
    trips: deque[int] = deque(maxlen=100_000)
    for number in range(asked["count"]):
        if agent.stop.is_set():
            break
        begun_ns = time.monotonic_ns()
        agent.write(number)
        while not agent.stop.is_set():
            done = agent.next(SAMPLE_S)
            if done is not None and done.kind == "immediate" and done.value == number:
                trips.append(time.monotonic_ns() - begun_ns)
                agent.line.say(number=number, round_trip_ns=trips[-1], statistics=statistics(agent))
                break
        agent.stop.wait(asked["interval_s"])


def echo(agent: MrcAgent) -> None:
    """Answer every write with one of the same size until asked to stop."""
    while not agent.stop.is_set():
        done = agent.next(SAMPLE_S)
        if done is not None and done.kind == "immediate":
            agent.write(done.value)


def statistics(agent: MrcAgent) -> dict[str, Any]:
    """Return what the endpoint has counted, by plane."""
    wire, paths = agent.endpoint.state, agent.underlay.paths
    own = wire.paths[agent.pair.index]
    evs = wire.sender.evs[agent.pair.index]
    planes: list[dict[str, int]] = [
        {"sent": 0, "resent": 0, "bytes": 0, "good": 0} for _ in range(agent.underlay.planes)
    ]
    for place, value in enumerate(evs["value"].tolist()):
        if value >= 0:
            row = planes[value // paths]
            row["sent"] += int(own[place]["sent"])
            row["resent"] += int(own[place]["resent"])
            row["bytes"] += int(own[place]["bytes"])
            row["good"] += int(evs[place]["state"] in (GOOD, SKIP))
    pair = wire.sender.qp[agent.pair.index]
    counted = ("sent", "resent", "silent", "spurious", "retired", "readmitted", "refused", "marks", "trims")
    return {
        "planes": planes,
        **{name: int(pair[name]) for name in counted},
        **{name: int(wire.peers[agent.pair.index][name]) for name in PEER_COUNTERS},
        "window_bytes": int(pair["cwnd"]),
        "spread_us": int(pair["spread_ps"]) // 10**6,
        "send_errors": int(wire.hub[0]["send_errors"]),
    }


if __name__ == "__main__":
    main()
