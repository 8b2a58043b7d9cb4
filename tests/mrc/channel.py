"""A tiny adversarial channel between one sender and one receiver: whatever the script says happens to each packet.

It is no network simulator. Every transmission takes a base delay and then its fate: delivered, delayed, lost, twice,
marked, trimmed. Paths and ports can die and heal at given times. Time jumps from event to event.
"""

import heapq
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from weft.core.compile.rules import compiled
from weft.mrc import columns
from weft.mrc.invariants import check_receiver, check_sender
from weft.mrc.rules import acks, control, ports, receiver, reverse, sender
from weft.mrc.rules.evs import Paths
from weft.mrc.rules.receiver import DataHeader
from weft.mrc.rules.settings import settings
from weft.specs.transport import MrcSpec

US = 10**6
FINE, LATE, LOSE, TWICE, MARK, TRIM, TRIM_LAST = range(7)
REGION = 1 << 40
STRIDE = 1 << 16


def small_spec(*, trimming: bool = True, remap_us: int = 100, mpr: int = 1) -> MrcSpec:
    """Return a protocol with few EVs, a small window and a short patience."""
    return MrcSpec.model_validate(
        {
            "ev": {"active": 8, "backup": 4, "min_active": 2},
            "loss": {"timeout": 6, "linear_retries": 2, "exponential_retries": 6},
            "window": {"mpr": mpr, "messages": 16, "immediates": 4, "ack_bytes": "4 KiB"},
            "trimming": trimming,
            "port_remap_delay": f"{remap_us} us",
        }
    )


RULES = (
    *(sender.start_sender, sender.post, sender.next_data, receiver.start_receiver, receiver.receive),
    *(receiver.receive_trimmed, receiver.take_sack, receiver.take_immediate, receiver.refusal, receiver.on_probe),
    *(acks.on_sack, acks.on_nack, control.next_control, control.on_timer, control.next_deadline),
    *(control.on_ev_probe_answer, ports.port_changed, ports.on_port_answer, ports.on_port_status),
    *(reverse.reverse_ev, reverse.next_reverse_probe, reverse.on_reverse_answer, receiver.placement),
)


def rules(fast: bool) -> Any:
    """Return the rules by name, plain or compiled."""
    return SimpleNamespace(**{f.__name__: compiled(f) if fast else f for f in RULES})


@dataclass
class Script:
    """What happens to packets."""

    data: list[int] = field(default_factory=list)
    replies: list[int] = field(default_factory=list)
    dead: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Path (EV value) to the time span in which it swallows everything."""
    ports: list[tuple[int, int, int]] = field(default_factory=list)
    """Time, plane, up."""
    late_ps: int = 15 * US
    pace_ps: int = 0
    """Time that one packet occupies the link; 0 lets a whole window leave in one go."""


class Channel:
    """One transfer over the channel."""

    def __init__(
        self,
        spec: Any,
        script: Any,
        messages: Any,
        *,
        fast: bool = False,
        first_seq: int = 0,
        planes: int = 2,
        paths: int = 8,
        seed: int = 7,
        checks: bool = True,
    ) -> None:
        self.rules = rules(fast)
        self.script, self.checks = script, checks
        params = settings(spec, planes=planes, rate_bps=100 * 10**9, payload=64)
        self.s = columns.make_sender(params, 1)
        self.back = columns.make_sender(params, 1)
        self.r = columns.make_receiver(params, 1)
        scratch = np.zeros(max(paths, 1), np.int64)
        self.rules.start_sender(self.s, 0, seed, first_seq, Paths(paths, STRIDE, scratch))
        self.rules.start_sender(self.back, 0, seed + 1, 0, Paths(paths, STRIDE, scratch))
        self.rules.start_receiver(self.r, 0, seed + 2, first_seq)
        self.send, self.reply = np.zeros(1, columns.SEND), np.zeros(1, columns.REPLY)
        self.memory = np.zeros(sum(length for length, _ in messages), np.int64)
        self.messages, self.posted, self.address = messages, 0, REGION
        self.immediates: list[int] = []
        self.now = self.count = self.free_at = 0
        self.events: list[tuple[int, int, str, Any]] = []
        self.sent_at: list[tuple[int, int, str]] = []
        self.data_seen = self.replies_seen = 0
        self.steps = 0
        for at, plane, up in script.ports:
            self._later(at, "port", (plane, up))

    def _later(self, delay: int, kind: str, what: Any) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + delay, self.count, kind, what))

    def run(self, limit: int = 20_000, until_ps: int | None = None):
        """Run until everything is delivered and acknowledged, the pair fails, or time is up; return the error code."""
        self._post()
        self._pump()
        while not self.finished() and self.steps < limit:
            due = int(self.rules.next_deadline(self.s, 0))
            at = min(due, self.events[0][0]) if self.events else due
            assert at < columns.NEVER, "nothing is left to happen"
            if until_ps is not None and at > until_ps:
                break
            self.now = max(self.now, at)
            if self.events and self.events[0][0] <= self.now:
                _, _, kind, what = heapq.heappop(self.events)
                getattr(self, f"_{kind}")(what)
            self.rules.on_timer(self.s, 0, self.now)
            self._post()
            self._pump()
            self.check()
            self.steps += 1
        return int(self.s.qp[0]["error"])

    def finished(self):
        """Return whether the transfer is over, well or not."""
        q = self.s.qp[0]
        return q["error"] != 0 or (self.posted == len(self.messages) and q["una"] == q["end"])

    def check(self):
        """Run every invariant."""
        if self.checks:
            check_sender(self.s, 0)
            check_receiver(self.r, 0)

    def _post(self) -> None:
        while self.posted < len(self.messages):
            length, immediate = self.messages[self.posted]
            if self.rules.post(self.s, 0, self.address, 9, length, immediate) != sender.POSTED:
                return
            self.address += length
            self.posted += 1

    def _pump(self) -> None:
        out = self.send[0]
        while self.rules.next_control(self.s, 0, self.now, -1, out):
            self._launch("control")
        while self.now >= self.free_at and self.rules.next_data(self.s, 0, self.now, -1, out):
            self._launch("data")
            if self.script.pace_ps:
                self.free_at = self.now + self.script.pace_ps
                self._later(self.script.pace_ps, "free", None)
            else:
                # Packets leave one after the other; the link is quick against the delays here.
                self.now += 10_000

    def _free(self, what: Any) -> None:
        """Let the link, which is free again, take the next packet."""

    def _fate(self, value: int, reply: bool):
        span = self.script.dead.get(value)
        if span and span[0] <= self.now < span[1]:
            return LOSE
        fates = self.script.replies if reply else self.script.data
        seen = self.replies_seen if reply else self.data_seen
        if reply:
            self.replies_seen += 1
        else:
            self.data_seen += 1
        return fates[seen] if seen < len(fates) else FINE

    def _launch(self, kind: str) -> None:
        row = self.send[0].copy()
        fate = self._fate(int(row["value"]), reply=False)
        self.sent_at.append((self.now, int(row["value"]), kind))
        if fate == LOSE:
            return
        if kind == "control" and fate in (TRIM, TRIM_LAST):
            fate = FINE
        delay = 5 * US + (self.script.late_ps if fate == LATE else 0)
        self._later(delay, kind, (row, fate))
        if fate == TWICE:
            self._later(delay + 3 * US, kind, (row, FINE))

    def _answer(self, kind: str, what: Any, value: int = 0) -> None:
        fate = self._fate(value, reply=True)
        if fate == LOSE:
            return
        delay = 5 * US + (self.script.late_ps if fate == LATE else 0)
        self._later(delay, kind, what)
        if fate == TWICE:
            self._later(delay + 2 * US, kind, what)

    def _data(self, what: Any) -> None:
        row, fate = what
        out = self.reply[0]
        psn, value = int(row["psn"]), int(row["value"])
        if fate in (TRIM, TRIM_LAST):
            if self.rules.receive_trimmed(self.r, 0, psn, value, int(fate == TRIM_LAST), out):
                self._answer("reply", out.copy())
        else:
            said = [int(row[name]) for name in ("retransmission", "ack_request", "length", "immediate")]
            verdict = self.rules.receive(self.r, 0, DataHeader(psn, value, int(fate == MARK), *said), self.now)
            if verdict == receiver.ACCEPTED:
                at = self.rules.placement(int(row["address"]), int(row["length"]), REGION, len(self.memory))
                assert at >= 0, "a packet points outside the region"
                self.memory[at : at + int(row["length"])] += 1
            elif self.rules.refusal(self.r, 0, verdict, psn, value, out):
                self._answer("reply", out.copy())
        self._after_receiving()

    def _after_receiving(self) -> None:
        out = self.reply[0]
        while self.rules.take_sack(self.r, 0, out):
            ev = int(self.rules.reverse_ev(self.back, 0, self.r, 0))
            self._answer("reply", out.copy(), int(self.back.evs[0, ev]["value"]) if ev >= 0 else 0)
        while (immediate := self.rules.take_immediate(self.r, 0)) >= 0:
            self.immediates.append(int(immediate))

    def _control(self, what: Any) -> None:
        row, fate = what
        kind, number = int(row["kind"]), int(row["id"])
        if kind == columns.PROBE:
            self.rules.on_probe(self.r, 0, number, int(row["value"]), self.now)
            self._after_receiving()
        elif kind == columns.EV_PROBE:
            self._answer("probed", (number, 1 if fate == MARK else 0))
        else:
            self.rules.on_port_status(self.back, 0, int(row["port_status"]))
            self._answer("ports_announced", number)

    def _reply(self, row: Any) -> None:
        if row["kind"] == columns.SACK:
            self.rules.on_sack(self.s, 0, row, self.now)
        else:
            self.rules.on_nack(self.s, 0, row, self.now)

    def _probed(self, what: Any) -> None:
        self.rules.on_ev_probe_answer(self.s, 0, *what)

    def _ports_announced(self, number: int) -> None:
        self.rules.on_port_answer(self.s, 0, number)

    def _port(self, what: Any) -> None:
        self.rules.port_changed(self.s, 0, *what, self.now)
        plane, up = what
        if not up:
            for e in range(self.s.evs.shape[1]):
                if self.s.evs[0, e]["plane"] == plane:
                    self.script.dead[int(self.s.evs[0, e]["value"])] = (self.now, columns.NEVER)
        else:
            self.script.dead = {v: span for v, span in self.script.dead.items() if v // STRIDE != plane}

    def state_bytes(self):
        """Return all state as bytes."""
        return b"".join(column.tobytes() for column in (*self.s, *self.r, *self.back)) + self.memory.tobytes()
