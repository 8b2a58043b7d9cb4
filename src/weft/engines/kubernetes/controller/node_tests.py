"""Tests of nodes that decisions ask for, and what they have shown.

The first test of a node that was lost is whether it is heard again and stays so; that much is seen without a pod on it.
A node under repair that had fallen silent and is heard again has been seen to by somebody. Pure but for its own memory.
"""

from collections.abc import Callable, Iterator, Mapping

from weft.cluster.health.quarantine import PROGRAMS, repaired, report
from weft.cluster.records.node import Node, NodeEvidence, NodeState
from weft.engines.kubernetes.controller.settings import Now


class NodeTests:
    """Tests in progress, by node."""

    __test__ = False

    def __init__(self, patience_s: float) -> None:
        """Let a test have an answer after `patience_s`."""
        self._patience_s = patience_s
        self._begun: dict[str, tuple[str, float]] = {}
        self._silent: set[str] = set()

    def begin(self, name: str, program: str, now: Now) -> None:
        """Begin a test of a node."""
        self._begun[name] = (program, now.s)

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
            elif now.s - begun >= self._patience_s:
                del self._begun[name]
                passed = heard(name)
                yield name, report(program, now.ms, passed=passed, text="" if passed else "the node is not heard")
