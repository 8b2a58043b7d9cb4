"""A stream between two hosts of a lab, watched while faults come and go: MRC, or TCP on one of its paths.

Both ends are programs at their hosts; this starts them, introduces them to each other, keeps the calendar of faults and
collects what the receiver says has arrived. What is measured is goodput: bytes in the receiver's memory.
"""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from weft.core.errors import FailedError
from weft_lab.measurements.rates import Sample
from weft_lab.network.lab import Lab

Kind = Literal["mrc", "tcp"]

START_S = 60.0
"""The longest that two ends may take to find each other; compiled code may have to be made first."""
STOP_S = 10.0
_TICK_S = 0.05
_MODULES: dict[Kind, str] = {"mrc": "weft_lab.agents.mrc", "tcp": "weft_lab.agents.tcp"}


@dataclass(frozen=True)
class ScheduledFault:
    """Something that is done to the lab while a stream runs."""

    at_s: float
    """When, in seconds since the stream began."""
    words: str
    """What, in words."""
    do: Callable[[], None]


@dataclass
class TrafficStream:
    """One stream: what was asked, what has arrived, how it ended."""

    kind: Kind
    label: str
    """What it is called in tables."""
    source: int
    destination: int
    seconds: float
    """How long it is to run."""
    samples: list[Sample] = field(default_factory=list)
    """What had arrived when."""
    events: list[tuple[float, str]] = field(default_factory=list)
    """What was done to the lab, and when."""
    statistics: dict[str, Any] = field(default_factory=dict)
    """What the sender last said about itself."""
    error: str | None = None
    """Why it ended before its time, if it did."""
    began_ns: int = 0
    """When its first bytes arrived, by the machine's clock, so that streams can be compared."""

    @property
    def now_s(self) -> float:
        """Return the time of the last sample."""
        return self.samples[-1].at_s if self.samples else 0.0


@dataclass
class _AgentProcess:
    """One end of a stream: its process and what it has said."""

    name: str
    process: "subprocess.Popen[bytes]"
    rest: bytes = b""
    place: dict[str, Any] | None = None
    ended: bool = False

    def tell(self, **message: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.ended = True

    def lines(self) -> list[dict[str, Any]]:
        """Return what has been said since the last call; notes when the process has gone."""
        assert self.process.stdout is not None
        piece = os.read(self.process.stdout.fileno(), 1 << 20)
        self.ended = self.ended or not piece
        *whole, self.rest = (self.rest + piece).split(b"\n")
        return [json.loads(line) for line in whole if line]

    def complaint(self) -> str:
        """Return why the process has ended, in one line."""
        assert self.process.stderr is not None
        self.process.kill()
        said = self.process.stderr.read().decode(errors="replace").strip().splitlines()
        return said[-1] if said else f"ended with status {self.process.wait()}"


def carry(
    lab: Lab,
    stream: TrafficStream,
    asked: tuple[dict[str, Any], dict[str, Any]],
    events: Sequence[ScheduledFault] = (),
    watch: Callable[[TrafficStream], None] | None = None,
) -> TrafficStream:
    """Run a stream for its seconds; `asked` is what its sender and its receiver get."""
    with _both_ends(lab, stream, asked) as (ends, ready):
        _Course(stream, ends, list(events)).follow(ready, watch)
        _stop(stream, ends, ready)
    return stream


def converse(
    lab: Lab,
    stream: TrafficStream,
    asked: tuple[dict[str, Any], dict[str, Any]],
    heard: Callable[[dict[str, Any]], bool],
    patience_s: float,
) -> None:
    """Run both ends until `heard` has the last word of the sender, or `patience_s` pass without one."""
    with _both_ends(lab, stream, asked) as (ends, ready):
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for key, _ in ready.select(_TICK_S):
                end: _AgentProcess = key.data
                for message in end.lines():
                    if end is ends[0]:
                        deadline = time.monotonic() + patience_s
                        if heard(message):
                            return
                if end.ended:
                    raise FailedError(f"the {end.name} failed: {end.complaint()}")


def warm_up(say: Callable[[str], None]) -> None:
    """Compile the transport once in this process, so that two ends do not do it at once and in somebody's time."""
    from weft.transport.endpoint import Endpoint
    from weft.transport.packets.compiling import compiled_pump
    from weft.transport.underlay import Loopback

    compiled_pump(say)
    with Endpoint(Loopback(planes=1), peers=1):
        pass


@contextmanager
def _both_ends(
    lab: Lab, stream: TrafficStream, asked: tuple[dict[str, Any], dict[str, Any]]
) -> "Iterator[tuple[list[_AgentProcess], selectors.BaseSelector]]":
    """Give both ends of a stream, started and introduced to each other; they are gone afterwards."""
    with ExitStack() as running:
        ends: list[_AgentProcess] = []
        for nic, document, role in zip((stream.source, stream.destination), asked, ("sender", "receiver"), strict=True):
            process = subprocess.Popen(
                (*lab.inside(nic), sys.executable, "-m", _MODULES[stream.kind]),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            )  # fmt: skip
            running.enter_context(process)
            running.callback(process.kill)
            end = _AgentProcess(f"{stream.label} {role} at {lab.plan.topology.name_of_node(nic)}", process)
            ends.append(end)
            end.tell(**document, receives=role == "receiver")
        ready = running.enter_context(selectors.DefaultSelector())
        for end in ends:
            assert end.process.stdout is not None
            ready.register(end.process.stdout, selectors.EVENT_READ, end)
        _introduce(ends, ready)
        yield ends, ready


def _introduce(ends: list[_AgentProcess], ready: selectors.BaseSelector) -> None:
    """Let both ends say where they are, and tell each where the other is; the receiver first."""
    deadline = time.monotonic() + START_S
    while any(end.place is None for end in ends):
        for key, _ in ready.select(max(0.0, deadline - time.monotonic())):
            end: _AgentProcess = key.data
            for message in end.lines():
                end.place = message.get("place", end.place)
            if end.ended:
                raise FailedError(f"the {end.name} failed: {end.complaint()}")
        if time.monotonic() >= deadline:
            raise FailedError(f"the ends of the stream did not start within {START_S:g} s")
    sender, receiver = ends
    receiver.tell(peer=sender.place)
    sender.tell(peer=receiver.place)


@dataclass
class _Course:
    """A stream on its way: when its clock started, and what is still in the calendar."""

    stream: TrafficStream
    ends: list[_AgentProcess]
    calendar: list[ScheduledFault]
    began_ns: int | None = None
    first: int = 0

    def follow(self, ready: selectors.BaseSelector, watch: Callable[[TrafficStream], None] | None) -> None:
        """Listen to both ends and keep the calendar until the time is over or an end has gone."""
        deadline = time.monotonic() + START_S
        while self.stream.error is None:
            for key, _ in ready.select(_TICK_S):
                self._listen(key.data)
            if self.began_ns is None:
                if time.monotonic() >= deadline:
                    raise FailedError(f"nothing arrived within {START_S:g} s")
                continue
            now_s = (time.monotonic_ns() - self.began_ns) / 1e9
            while self.calendar and self.calendar[0].at_s <= now_s:
                event = self.calendar.pop(0)
                event.do()
                self.stream.events.append((now_s, event.words))
            if watch is not None:
                watch(self.stream)
            if now_s >= self.stream.seconds:
                return

    def _listen(self, end: _AgentProcess) -> None:
        stream = self.stream
        for message in end.lines():
            if "at_ns" in message and end is self.ends[1]:
                self._sample(message["at_ns"], message["bytes"])
            stream.statistics = (
                message.get("statistics", stream.statistics) if end is self.ends[0] else stream.statistics
            )
            stream.error = message.get("error", stream.error)
        if end.ended and stream.error is None:
            stream.error = f"the {end.name} failed: {end.complaint()}"

    def _sample(self, at_ns: int, carried: int) -> None:
        if self.began_ns is not None:
            self.stream.samples.append(Sample((at_ns - self.began_ns) / 1e9, carried - self.first))
        elif carried:
            # The clock starts with the first bytes: connecting is not what is measured.
            self.began_ns, self.first = at_ns, carried
            self.stream.began_ns = at_ns
            self.stream.samples.append(Sample(0.0, 0))


def _stop(stream: TrafficStream, ends: list[_AgentProcess], ready: selectors.BaseSelector) -> None:
    """Ask both ends to stop and take their last word; whoever does not answer is ended."""
    for end in ends:
        end.tell(stop=True)
    deadline = time.monotonic() + STOP_S
    open_ends = {id(end) for end in ends if not end.ended}
    while open_ends and time.monotonic() < deadline and stream.error is None:
        for key, _ in ready.select(_TICK_S):
            end: _AgentProcess = key.data
            for message in end.lines():
                if "statistics" in message and end is ends[0]:
                    stream.statistics = message["statistics"]
                if "end" in message:
                    open_ends.discard(id(end))
            if end.ended:
                open_ends.discard(id(end))
                ready.unregister(key.fileobj)
