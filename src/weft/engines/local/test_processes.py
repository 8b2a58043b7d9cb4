"""Active tests of nodes, as decisions call for them: health checks in processes of their own.

A test that was running when the engine ended is simply run again: nobody waits for an old one.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from weft.cluster.health.quarantine import PROGRAMS, report
from weft.cluster.records.actions import RunTest
from weft.cluster.records.effects import tested, witnessed
from weft.cluster.records.node import Node
from weft.engines.health.registry import known
from weft.engines.local.launches import with_package

MOST_S = 600.0
_SECONDS = "0.5"


@dataclass(frozen=True, slots=True)
class TestProcess:
    """A test in flight."""

    action: RunTest
    """What was asked for."""
    process: "subprocess.Popen[str]"
    """What does it."""
    began_ms: int
    """Since when."""


class TestProcesses:
    """Starts tests and reads their reports."""

    def __init__(self) -> None:
        """Begin with none."""
        self._running: dict[int, TestProcess] = {}

    def start(self, action: RunTest, now_ms: int) -> None:
        """Test a node; one that is being tested already is left alone."""
        if action.node in self._running:
            return
        environment = {**os.environ, "PYTHONPATH": with_package(os.environ.get("PYTHONPATH", ""))}
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "weft.engines.health", action.program, "--seconds", _SECONDS],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self._running[action.node] = TestProcess(action, process, now_ms)

    def resume(self, node: Node, now_ms: int) -> None:
        """Test a node whose state calls for it."""
        if node.state in PROGRAMS:
            self.start(RunTest(node.number, PROGRAMS[node.state]), now_ms)

    def finished(self, nodes: list[Node], now_ms: int) -> list[tuple[Node, str]]:
        """Return the nodes whose tests have reported, with what was seen, and a line about each."""
        found: list[tuple[Node, str]] = []
        for number, running in list(self._running.items()):
            late = now_ms - running.began_ms > MOST_S * 1000
            if running.process.poll() is None and not late:
                continue
            if late:
                running.process.kill()
            del self._running[number]
            wrong, repair = _wrong(running.process, late=late)
            program = running.action.program
            seen = report(program, now_ms, passed=not wrong, text=wrong, repair=repair)
            node = nodes[number]
            if running.action.idle and not wrong:
                found.append((tested(node, now_ms), f"{program} test passed"))
            else:
                found.append((witnessed(node, seen), f"{program} test: {wrong or 'passed'}"))
        return found

    def close(self) -> None:
        """End what is still running."""
        for running in self._running.values():
            running.process.kill()
            running.process.communicate()
        self._running.clear()


def _wrong(process: "subprocess.Popen[str]", *, late: bool) -> tuple[str, str]:
    """Return what a test has found, in words, and the repair of the first check that failed; empty where it passed."""
    output, errors = process.communicate()
    if late:
        return f"it did not end within {MOST_S:g} s", ""
    if process.returncode:
        reason = (errors.strip().splitlines() or ["it said nothing"])[-1]
        return f"it ended with status {process.returncode}: {reason}", ""
    found = [(each["program"], one) for each in json.loads(output) for one in each["findings"]]
    fatal = [(program, one["text"]) for program, one in found if one["severity"] == "fatal"]
    return "; ".join(text for _, text in fatal), known()[fatal[0][0]].repair if fatal else ""
