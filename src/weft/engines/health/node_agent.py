"""The health agent of one node: it follows the kernel's log, looks at counters, and reports what is to be done.

One process on each node, as a DaemonSet or a systemd unit. Reports go to an aggregator (the controller), never to the
API server; without one they are printed. What follows from a report is decided by whoever hears it (`cluster.health`);
the agent carries out what the answer orders, where it was given a command for it.
"""

import contextlib
import json
import logging
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weft.cluster.health.expected_figures import test_result
from weft.cluster.health.faults import FaultMonitor, FaultVerdict, gpu_numbers
from weft.cluster.health.quarantine import report
from weft.cluster.health.remedies import IDLE
from weft.cluster.records.node import NodeEvidence
from weft.engines.health.checks import CheckSetting
from weft.engines.health.fault_data import gpu_addresses, shipped_catalogue
from weft.engines.health.log_follower import DEVICE, LogFollower, follow, said_by, write_atomically
from weft.engines.health.outbox import WebhookOutbox
from weft.engines.health.registry import SUITES, known, named, run

_LOG = logging.getLogger(__name__)
COUNTERS = ("ecc", "throttling", "links", "nics", "gpus")
"""The passive checks that are made again and again; the kernel's log is followed, not read."""
AGAIN_MS = 10 * 60_000
"""The same thing is said again after this time, as long as it is still so."""
_OLDEST_MS = 15 * 60_000
"""What the kernel said longer ago than this is history: it was dealt with, or will come again."""
_MOST_REMEMBERED = 10_000
_ORDER_S = 600
_SOON_S = 5.0
_TEST_SECONDS = "5"


@dataclass(frozen=True)
class AgentSettings:
    """How an agent works."""

    node: str
    """The name of its node."""
    log: Path = DEVICE
    """The kernel log that it follows."""
    state: Path = Path("/var/lib/weft-health")
    """Where it keeps its place in the log, counters and reports that wait."""
    report: str = ""
    """Where reports go; printed where empty."""
    token: Path | None = None
    """A file with the token that proves which node this is."""
    look_s: float = 0.5
    """Between two looks at the log."""
    counters_s: float = 30.0
    """Between two looks at the counters."""
    beat_s: float = 60.0
    """A report is sent at least this often, also when there is nothing to say."""
    system: Path = Path("/sys")
    """Where the kernel shows devices and counters."""
    history: bool = False
    """Whether what a log held long before is reported as well."""
    expected: Mapping[str, float] = field(default_factory=dict)
    """What figures of active tests a healthy node reaches, by CHECK.FIGURE."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """What carries out an order, by its kind: "reset-gpu", "reboot"; {gpu} stands for the number."""


class HealthAgent:
    """Looks, remembers what it has said, and reports."""

    def __init__(self, settings: AgentSettings, say: Callable[[Mapping[str, Any]], None]) -> None:
        """Open the log; `say` prints what is found."""
        self.settings, self._say = settings, say
        settings.state.mkdir(parents=True, exist_ok=True)
        self._known = self._gpus()
        self.monitor = FaultMonitor(shipped_catalogue(), gpu_numbers(self._known))
        self._log: LogFollower = follow(settings.log, settings.state / "log-place.json")
        self._outbox = WebhookOutbox(settings.state / "reports", settings.report) if settings.report else None
        self._said: dict[tuple[str, str, int | None], int] = {}
        self._counters_at = self._beat_at = float("-inf")
        self._obeyed = _lines(settings.state / "orders")
        self._beat_s = settings.beat_s
        self._testing: tuple[str, str, subprocess.Popen[str]] | None = None

    def _gpus(self) -> list[str]:
        """Return the addresses of all GPUs that were ever seen here: a dead one may be missing now."""
        path = self.settings.state / "gpus.json"
        before: list[str] = []
        most = 0
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(path.read_text(encoding="utf-8"))
            before, most = [str(each) for each in kept["addresses"]], int(kept["most"])
        there = gpu_addresses(self.settings.system)
        # As many as ever: a board was changed, or the bus is numbered anew since a boot; nothing is missing.
        every = there if len(there) >= most else sorted({*before, *there})
        if every != before or len(there) > most:
            write_atomically(path, json.dumps({"addresses": every, "most": max(most, len(there))}))
        return every

    def look(self, now_ms: int, now_s: float) -> list[NodeEvidence]:
        """Look once at everything that is due; returns and reports what is new."""
        found: list[NodeEvidence] = []
        said_at = said_by()
        for line in self._log.new_lines():
            # What comes is news, however a log's clock goes; what stood there before tells its age, or is news as well.
            at_ms = said_at(line.text) if line.past else now_ms - line.age_ms
            verdict = self.monitor.take(line.text, at_ms)
            if verdict is not None and (self.settings.history or now_ms - at_ms <= _OLDEST_MS):
                found += self._news(verdict.evidence(at_ms), now_ms, verdict)
        if now_s - self._counters_at >= self.settings.counters_s:
            self._counters_at = now_s
            for each in self._counted(now_ms):
                found += self._news(each, now_ms)
        found += self._tested(now_ms)
        self._send(found, now_s)
        return found

    def _counted(self, now_ms: int) -> Iterable[NodeEvidence]:
        for address in sorted(set(self._known).difference(gpu_addresses(self.settings.system))):
            yield NodeEvidence("gpu", now_ms, "fatal", f"the GPU at {address} is no longer there", repair="reboot")
        setting = CheckSetting(state=self.settings.state / "counters", system=self.settings.system)
        repairs = {check.name: check.repair for check in named(COUNTERS)}
        for made in run(COUNTERS, setting):
            for one in made.findings:
                if one.severity != "note":
                    repair = repairs[made.program]
                    yield NodeEvidence(one.check, now_ms, one.severity, one.text, gpu=one.gpu, repair=repair)

    def _news(self, one: NodeEvidence, now_ms: int, verdict: FaultVerdict | None = None) -> list[NodeEvidence]:
        """Return a report unless the same was said a moment ago."""
        about = one.text if verdict is None else f"{verdict.entry.name} {verdict.device}"
        key = (one.check, about, one.gpu)
        if now_ms - self._said.get(key, -AGAIN_MS) < AGAIN_MS:
            return []
        if len(self._said) >= _MOST_REMEMBERED:
            self._said.clear()
        self._said[key] = now_ms
        action = "" if verdict is None else str(verdict.action)
        self._say({"node": self.settings.node, "action": action, **asdict(one)})
        return [one]

    def _send(self, found: list[NodeEvidence], now_s: float) -> None:
        outbox = self._outbox
        if outbox is None:
            return
        outbox.headers = self._proof()
        if found:
            outbox.put({"node": self.settings.node, "seen": [_plain(one) for one in found]})
        answers = outbox.flush(now_s)
        if answers:
            self._beat_at = now_s
        elif now_s - self._beat_at >= self._beat_s and not outbox.waiting:
            self._beat_at = now_s
            answers = self._beat()
        for answer in answers:
            self._obey(answer)
            # While something is ordered, or may be soon, the next answer is fetched sooner.
            out = isinstance(answer, dict) and answer.get("out")
            self._beat_s = min(_SOON_S, self.settings.beat_s) if out else self.settings.beat_s

    def _proof(self) -> dict[str, str]:
        if self.settings.token is None:
            return {}
        try:
            return {"Authorization": f"Bearer {self.settings.token.read_text(encoding='utf-8').strip()}"}
        except OSError as error:
            _LOG.error("%s: %s", self.settings.token, error.strerror)
            return {}

    def _beat(self) -> list[Any]:
        """Say that the agent lives, and hear what is ordered; nothing is kept where nobody answers."""
        body = json.dumps({"node": self.settings.node, "seen": []}).encode()
        headers = {"Content-Type": "application/json", **self._proof()}
        request = urllib.request.Request(self.settings.report, body, headers)  # noqa: S310 - the outbox has checked it
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - the same
                return [json.loads(answer.read(2**20))]
        except (OSError, ValueError) as error:
            _LOG.warning("%s: %s", self.settings.report, error)
            return []

    def _obey(self, answer: Any) -> None:
        """Carry out what an answer orders, each order once, also after a reboot."""
        asked = answer.get("orders", ()) if isinstance(answer, dict) else ()
        self._give_way({str(order.get("id")) for order in asked})
        for order in asked:
            name, kind = str(order.get("id")), str(order.get("kind"))
            if kind == "test":
                self._test(name, str(order.get("program")))
                continue
            command = self.settings.commands.get(kind)
            if name in self._obeyed or not command:
                continue
            self._obeyed.append(name)
            # Written down before it is done: a reboot does not come back to say so.
            write_atomically(self.settings.state / "orders", "\n".join(self._obeyed[-100:]))
            words = [word.replace("{gpu}", str(order.get("gpu", ""))) for word in shlex.split(command)]
            _LOG.warning("ordered: %s: %s", kind, shlex.join(words))
            try:
                done = subprocess.run(words, capture_output=True, timeout=_ORDER_S, check=False)  # noqa: S603 - the operator's command
                text = f"{kind} ended with status {done.returncode}"
            except (OSError, subprocess.TimeoutExpired) as error:
                text = f"{kind}: {error}"
            self._say({"node": self.settings.node, "action": kind, "text": text})

    def _test(self, name: str, program: str) -> None:
        """Begin a test that is ordered, in a process of its own; one that runs or has run is not begun again."""
        if name in self._obeyed or self._testing is not None or program not in SUITES:
            return
        self._obeyed.append(name)
        command = [sys.executable, "-m", "weft.engines.health", program, "--seconds", _TEST_SECONDS]
        _LOG.info("test %s begins", program)
        process = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._testing = (name, program, process)

    def _give_way(self, ordered: set[str]) -> None:
        """End a test of an idle node that is not wanted any more: there is work for the node."""
        if self._testing is not None and self._testing[1] == IDLE and self._testing[0] not in ordered:
            self._testing[2].kill()
            self._testing[2].communicate()
            self._testing = None

    def _tested(self, now_ms: int) -> list[NodeEvidence]:
        """Return the report of a test that has ended."""
        if self._testing is None or self._testing[2].poll() is None:
            return []
        name, program, process = self._testing
        self._testing = None
        output, errors = process.communicate()
        # Written down when it is over: a test that a reboot has cut short is run again.
        write_atomically(self.settings.state / "orders", "\n".join(self._obeyed[-100:]))
        if process.returncode:
            reason = (errors.strip().splitlines() or ["it said nothing"])[-1]
            wrong, check = f"the test ended with status {process.returncode}: {reason}", ""
        else:
            wrong, check = test_result(json.loads(output), self.settings.expected)
        repair = known()[check].repair if check in known() else ""
        seen = report(program, now_ms, passed=not wrong, text=wrong, repair=repair)
        self._say({"node": self.settings.node, "action": f"test {program}", "id": name, **asdict(seen)})
        return [seen]

    def close(self) -> None:
        """Let go of the log, and end a test that runs."""
        if self._testing is not None:
            self._testing[2].kill()
            self._testing[2].communicate()
        self._log.close()


def _plain(one: NodeEvidence) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if name != "job"}


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8").split()
    return []


def run_agent(settings: AgentSettings, say: Callable[[Mapping[str, Any]], None], *, once: bool = False) -> None:
    """Look until interrupted, or `once`."""
    agent = HealthAgent(settings, say)
    try:
        while True:
            agent.look(time.time_ns() // 1_000_000, time.monotonic())
            if once:
                return
            time.sleep(settings.look_s)
    finally:
        agent.close()
