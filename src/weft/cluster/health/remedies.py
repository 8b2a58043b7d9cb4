"""What an agent can do itself for a node that is out: reset a GPU, reboot, test. Pure.

Only for a node that is empty, and only while it waits to be found out about; what does not help once is a technician's
business, by the ticket that the test after it leads to.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from weft.cluster.health.quarantine import PROGRAMS
from weft.cluster.records.node import Node, NodeState

_GPU = re.compile(r"\(GPU (\d+)\)")
IDLE = "idle"
"""The test of a node that has nothing to do; it gives way to work."""
_WAITS = (NodeState.QUARANTINED, NodeState.TESTING)


@dataclass(frozen=True, slots=True)
class Remedy:
    """One order for a node's agent."""

    id: str
    """Names it, so that it is carried out once."""
    kind: Literal["reset-gpu", "reboot", "test"]
    gpu: int | None = None
    """Which GPU, where one is meant."""
    program: str = ""
    """Which test, where one is meant."""

    def as_json(self) -> dict[str, Any]:
        """Return it as an agent reads it."""
        return {"id": self.id, "kind": self.kind, "gpu": self.gpu, "program": self.program}


def remedies(node: Node, *, empty: bool) -> list[Remedy]:
    """Return what a node's agent is to do now; a reboot makes every reset superfluous."""
    if not empty or node.state not in _WAITS:
        return []
    found = list(dict.fromkeys(_called_for(node)))
    reboot = [each for each in found if each.kind == "reboot"]
    return reboot[:1] or found


def orders(node: Node, *, empty: bool) -> list[Remedy]:
    """Return everything that a node's agent is to do now, in order: first what may help, then the test."""
    found = remedies(node, empty=empty)
    if empty and node.state in PROGRAMS:
        program = PROGRAMS[node.state]
        found.append(Remedy(f"{node.since_ms}-{program}", "test", program=program))
    begun_ms = node.idle_test_ms
    if empty and node.state is NodeState.READY and begun_ms is not None and begun_ms > (node.tested_ms or -1):
        # As soon as there is work for it the order is gone, and the agent ends the test.
        found.append(Remedy(f"{begun_ms}-{IDLE}", "test", program=IDLE))
    return found


def _called_for(node: Node) -> Iterator[Remedy]:
    # Once for each time that it is taken out.
    out_ms = node.out_ms or node.since_ms
    for each in node.evidence:
        if each.severity == "note":
            continue
        if each.repair == "reboot":
            yield Remedy(f"{out_ms}-reboot", "reboot")
        elif each.repair == "reset-gpu" and (found := _GPU.search(each.text)):
            yield Remedy(f"{out_ms}-reset-{found[1]}", "reset-gpu", int(found[1]))
