"""Tests of nodes that decisions ask for, and what they have shown.

Where a node has a health agent, the agent runs the test and reports it; a test without a report in time has failed.
Where it has none, all that can be seen is whether the node is heard again and stays so. A node under repair that had
fallen silent and is heard again has been seen to by somebody. Pure but for its own memory.
"""

from collections.abc import Callable, Iterator, Mapping

from weft.cluster.health.quarantine import PROGRAMS, repaired, report
from weft.cluster.records.node import Node, NodeEvidence, NodeState
from weft.engines.kubernetes.controller.settings import Now

AGENT_PATIENCE_S = 1800.0
"""A reboot and the long test together take less."""
_AGENT_S = 300.0
"""An agent that was heard this long ago is there: it says something every minute."""


class NodeTests:
    """Tests in progress, by node."""

    __test__ = False

    def __init__(self, patience_s: float) -> None:
        """Let a test have an answer after `patience_s`."""
        self._patience_s = patience_s
        self.agents: dict[str, float] = {}
        """When the agent of each node was last heard, in seconds of a clock that never goes back."""
        self._begun: dict[str, tuple[str, float]] = {}
        self._silent: set[str] = set()

    def begin(self, name: str, program: str, now: Now) -> None:
        """Begin a test of a node."""
        self._begun[name] = (program, now.s)

    def _has_agent(self, name: str, begun: float) -> bool:
        """Return whether a node had an agent when its test began; one that falls silent meanwhile fails the test."""
        return self.agents.get(name, float("-inf")) > begun - _AGENT_S

    def reports(
        self, heard: Callable[[str], bool], nodes: Mapping[str, Node], now: Now
    ) -> Iterator[tuple[str, NodeEvidence]]:
        """Yield what is known by now about nodes that are tested or repaired; `nodes` are those that are not well."""
        for node in nodes.values():
            if node.state in PROGRAMS and node.name not in self._begun:
                # Begun by an engine that is no more.
                self.begin(node.name, PROGRAMS[node.state], now)
            if node.state is NodeState.REPAIRING:
                if not heard(node.name):
                    self._silent.add(node.name)
                elif node.name in self._silent:
                    self._silent.discard(node.name)
                    yield node.name, repaired(now.ms, "it is heard again")
        for name, (program, begun) in list(self._begun.items()):
            if name not in nodes or PROGRAMS.get(nodes[name].state) != program:
                del self._begun[name]
            elif now.s - begun >= (AGENT_PATIENCE_S if self._has_agent(name, begun) else self._patience_s):
                del self._begun[name]
                text = self._wrong(name, begun, heard=heard(name))
                yield name, report(program, now.ms, passed=not text, text=text)

    def _wrong(self, name: str, begun: float, *, heard: bool) -> str:
        """Return what is wrong with a node whose test nobody has reported in time; empty where nothing is."""
        if self._has_agent(name, begun):
            return f"the agent has not reported the test within {AGENT_PATIENCE_S / 60:g} min"
        return "" if heard else "the node is not heard"
