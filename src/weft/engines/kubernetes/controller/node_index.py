"""The nodes: a number for each name, the record that decisions see, and what is written back about those that are sick.

A number stays with its name as long as the engine runs; after a restart the records are made anew from Node and
NodeHealth objects. Healthy nodes have no NodeHealth: 7,500 of them cost nothing. Nothing here decides.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from weft.cluster.records.encoding import as_plain, from_plain
from weft.cluster.records.node import Location, Node, NodeEvidence, NodeState, Override
from weft.engines.health.fault_data import shipped_catalogue
from weft.engines.kubernetes.api.crds import TopologyBody
from weft.engines.kubernetes.controller.observed import ObservedHealth, ObservedNode

SILENT = "silent"
CONDITION = "condition"
_AGAIN_MS = 60_000
"""Reports grow old; that a node is still not heard is said again."""
_GIVEN = ("number", "name", "gpus", "place", "override", "override_by")
_LEVELS = ("domain", "rack", "t0", "pod", "feeder")


class NodeIndex:
    """Every node that was ever seen or is named by a placement."""

    def __init__(self, topology: TopologyBody | None = None) -> None:
        """Begin empty."""
        self.topology = topology or TopologyBody()
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}
        self._places: dict[str, dict[str, int]] = {level: {} for level in _LEVELS}

    def number(self, name: str) -> int:
        """Return the number of a node, a new one where it has none."""
        if name not in self.numbers:
            self.numbers[name] = len(self.names)
            self.names.append(name)
        return self.numbers[name]

    def enrol(self, changed: Iterable[str], nodes: Container[str]) -> list[str]:
        """Give those of `changed` a number that are nodes of this pool, now or once, and return them.

        Reports are about nodes of any pool; those of others are none of our business.
        """
        ours = sorted(name for name in changed if name in nodes or name in self.numbers)
        for name in ours:
            self.number(name)
        return ours

    def place(self, seen: ObservedNode) -> Location:
        """Return where a node stands, as its labels say."""
        labels = dict(seen.labels)
        found: dict[str, int] = {}
        for level in _LEVELS:
            known = self._places[level]
            label = getattr(self.topology, level)
            # Without a label a node is alone in its scale-up domain, and in one rack and switch with all the others.
            value = labels.get(label, seen.name if level == "domain" else "")
            found[level] = known.setdefault(value, len(known))
        return Location(**found)

    def sorted_names(self, nodes: Mapping[str, ObservedNode]) -> list[str]:
        """Return names so that neighbours in the topology are neighbours in number."""
        labels = [getattr(self.topology, level) for level in ("pod", "t0", "rack", "domain")]

        def key(name: str) -> tuple[list[str], str]:
            held = dict(nodes[name].labels)
            return [held.get(label, "") for label in labels], name

        return sorted(nodes, key=key)

    def record(
        self, name: str, seen: ObservedNode | None, health: ObservedHealth | None, before: Node | None, now_ms: int
    ) -> Node:
        """Return the record of a node as decisions see it now."""
        number = self.number(name)
        if before is None:
            before = Node(number, name, 0)
            if health is not None and health.record:
                before = from_plain(Node, {**health.record, "number": number, "name": name, "gpus": 0})
        if seen is None:
            return self._heard(
                replace(before, override="out", override_by="it is not in the cluster"), now_ms, ready=False
            )
        override: Override = cast("Override", health.override) if health is not None else ""
        by = health.override_by if health is not None else ""
        if seen.barred:
            override, by = "out", seen.barred
        known = replace(before, gpus=seen.gpus, place=self.place(seen), override=override, override_by=by)
        return _conditioned(self._heard(known, now_ms, ready=seen.ready), seen, now_ms)

    def _heard(self, node: Node, now_ms: int, *, ready: bool) -> Node:
        """Add that a node is silent, or take that back."""
        known = any(one.check == SILENT and now_ms - one.at_ms < _AGAIN_MS for one in node.evidence)
        if (
            ready
            and any(one.check == SILENT for one in node.evidence)
            and node.state in (NodeState.READY, NodeState.SUSPECT)
        ):
            return replace(node, evidence=tuple(one for one in node.evidence if one.check != SILENT))
        if not ready and not known:
            seen = NodeEvidence(SILENT, now_ms, "fatal", "the node is not heard")
            others = tuple(one for one in node.evidence if one.check != SILENT)
            return replace(node, evidence=(*others, seen))
        return node


def _conditioned(node: Node, seen: ObservedNode, now_ms: int) -> Node:
    """Add what a node's conditions say, again and again as long as they are true, or take that back."""
    before = [one for one in node.evidence if one.check == CONDITION]
    if not seen.conditions and not before:
        return node
    recent = {one.text for one in before if now_ms - one.at_ms < _AGAIN_MS}
    verdicts = (shipped_catalogue().of_condition(kind, text) for kind, text in seen.conditions)
    found = tuple(each.evidence(now_ms) for each in verdicts if each is not None)
    if {one.text for one in found} == recent:
        return node
    if not found and node.state not in (NodeState.READY, NodeState.SUSPECT):
        # What took a node out stays with it until it is back.
        return node
    return replace(node, evidence=(*(one for one in node.evidence if one.check != CONDITION), *found))


def durable_part(node: Node) -> dict[str, Any]:
    """Return what has to be remembered about a node; empty for a healthy one."""
    plain = as_plain(node)
    kept = {name: value for name, value in plain.items() if name not in _GIVEN}
    if node.state in (NodeState.READY, NodeState.SUSPECT) and not node.outs:
        # That a node is not heard is seen again by whoever looks; only what followed from it is remembered.
        kept["evidence"] = [one for one in kept.get("evidence", ()) if one["check"] != SILENT]
        if not kept["evidence"]:
            del kept["evidence"]
        if set(kept) <= {"state", "since_ms", "tested_ms"} and node.state is NodeState.READY:
            return {}
    return kept
