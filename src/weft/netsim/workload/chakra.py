"""Chakra execution traces (MLCommons) as traffic: one file for each rank, its nodes as flows that wait for each other.

A file is a row of messages, each behind its length: a header, then nodes with their dependencies, the duration of
compute, and the type, bytes and group of communication. Only what is needed is read, from the numbers of messages and
fields that the public schema gives (github.com/mlcommons/chakra, schema/protobuf/et_def.proto). Nothing is run here.

- Compute and memory nodes become waits of their duration; a node begins once all that it depends on is over.
- The n-th collective of a group on one rank is the n-th of that group on all its ranks. A group is made of the ranks in
  whose traces it occurs; collectives without a group are everybody's. `comm_size` is what a rank puts in.
- A send is matched with the receive of the same source, destination and tag, in their order, and does not wait for it.
- Rank r has NIC r. What stays inside a scale-up domain takes its time there and does not cross the fabric.
"""

import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from weft.collectives.registry import schedule_named
from weft.core.errors import UsageError
from weft.netsim.model.flow import Flow
from weft.netsim.workload.schedules import Near

MOST_FLOWS = 1_000_000
"""Flows of one trace that are taken on, with the waits between them."""
_PS_PER_US = 10**6


class NodeType(IntEnum):
    """What a node is; the numbers are the schema's."""

    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    SEND = 5
    RECV = 6
    COLLECTIVE = 7


_KINDS = {0: "all-reduce", 2: "all-gather", 5: "broadcast", 6: "all-to-all", 7: "reduce-scatter", 8: "reduce-scatter"}
_BARRIER = 9
_NAMES = {1: "reduce", 3: "gather", 4: "scatter"}
_TIMED = (NodeType.MEM_LOAD, NodeType.MEM_STORE, NodeType.COMP)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ID, _NAME, _TYPE, _CONTROL, _DATA, _DURATION, _ATTRIBUTE = 1, 2, 3, 4, 5, 7, 10
"""Fields of a node."""
_STRING_VALUE = 29
_SIGNED = (15, 17)
"""Values of an attribute: a text; whole numbers with their sign in the last bit. The others are read as they stand."""


@dataclass(frozen=True)
class ChakraNode:
    """One node of a rank's trace."""

    number: int
    """Its id."""
    name: str
    """What it is called."""
    kind: int
    """A `NodeType`; others take no time."""
    after: tuple[int, ...]
    """Ids of the nodes that must be over before it begins."""
    duration_ps: int
    """How long it takes where it is compute."""
    attributes: Mapping[str, int | str]
    """What else is said about it."""

    def figure(self, name: str, where: str) -> int:
        """Return an attribute that must be there and be a whole number."""
        value = self.attributes.get(name)
        if isinstance(value, int):
            return value
        raise UsageError(f"{where}: node {self.number} ({self.name}) has no number called {name}; write a newer trace")


def read_trace(data: bytes, where: str) -> tuple[ChakraNode, ...]:
    """Return the nodes of one file; `where` is its name, for messages."""
    try:
        messages = list(_messages(data))
        nodes = tuple(_node(message) for message in messages[1:])
    except (IndexError, ValueError, struct.error):
        raise UsageError(
            f"{where} is no Chakra trace: its bytes are not messages of the schema; name a .et file"
        ) from None
    if not nodes:
        raise UsageError(f"{where} has no nodes; a Chakra trace has a header and then one message for each node")
    known = {node.number: node for node in nodes}
    for node in nodes:
        if known[node.number] is not node:
            raise UsageError(f"{where}: two nodes have the id {node.number}; give each its own")
        missing = next((number for number in node.after if number not in known), None)
        if missing is not None:
            raise UsageError(f"{where}: node {node.number} ({node.name}) waits for node {missing}, which is not there")
    return nodes


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length, at = _varint(data, at)
        if at + length > len(data):
            raise ValueError
        yield data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number that takes seven bits of each byte, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:  # noqa: PLR2004  the bit that says that more follow
            return value, at
        shift += 7
        if shift > 63:  # noqa: PLR2004  the schema's numbers have 64 bits
            raise ValueError


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Go through the fields of a message: their numbers, and numbers or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == _VARINT:
            value: Any
            value, at = _varint(data, at)
        elif wire == _BYTES:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError
            value, at = data[at : at + length], at + length
        elif wire in (_FIXED64, _FIXED32):
            size, code = (8, "<q") if wire == _FIXED64 else (4, "<i")
            (value,), at = struct.unpack(code, data[at : at + size]), at + size
        else:
            raise ValueError
        yield key >> 3, value


def _numbers(value: Any) -> list[int]:
    """Return repeated numbers: one, or many in one field."""
    if isinstance(value, int):
        return [value]
    found: list[int] = []
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


def _node(data: bytes) -> ChakraNode:
    number, name, kind, duration = 0, "", 0, 0
    after: list[int] = []
    attributes: dict[str, int | str] = {}
    for place, value in _fields(data):
        if place == _ID:
            number = value
        elif place == _NAME:
            name = value.decode()
        elif place == _TYPE:
            kind = value
        elif place in (_CONTROL, _DATA):
            after += _numbers(value)
        elif place == _DURATION:
            duration = value
        elif place == _ATTRIBUTE:
            attributes.update(_attribute(value))
    return ChakraNode(number, name, kind, tuple(dict.fromkeys(after)), duration * _PS_PER_US, attributes)


def _attribute(data: bytes) -> dict[str, int | str]:
    """Return an attribute that is a text or a whole number; nothing of other types."""
    name, found = "", None
    for place, value in _fields(data):
        if place == 1:
            name = value.decode()
        elif place == _STRING_VALUE:
            found = value.decode()
        elif isinstance(value, int):
            found = (value >> 1) ^ -(value & 1) if place in _SIGNED else value
    return {} if found is None else {name: found}


@dataclass
class _Rendezvous:
    """One collective that ranks of a group come to."""

    kind: int
    size: int
    root: int
    """The rank that a broadcast begins at."""
    begins: dict[int, int] = field(default_factory=dict)
    """The flow after which each rank that has come may begin."""
    nodes: dict[int, int] = field(default_factory=dict)
    """Its node on each of them."""


class _Builder:
    """Turns the nodes of all ranks into flows, each behind those that it waits for."""

    def __init__(self, traces: Sequence[Sequence[ChakraNode]], domain: int, near: Near) -> None:
        self.traces, self.domain, self.near = traces, domain, near
        self.flows: list[Flow] = []
        self.over: list[dict[int, int]] = [{} for _ in traces]
        """The flow with which every node of a rank is over."""
        self._groups = _groups(traces)
        self._turn = [_turns(trace) for trace in traces]
        self._meetings: dict[tuple[str, int], _Rendezvous] = {}
        self._sent: dict[tuple[Any, ...], int] = {}
        self._received: dict[tuple[Any, ...], tuple[int, ChakraNode, int]] = {}
        self._left = [{node.number: len(node.after) for node in trace} for trace in traces]
        """How many of those before it every node still waits for."""
        self._followers: list[dict[int, list[ChakraNode]]] = [{} for _ in traces]
        self._ready: deque[tuple[int, ChakraNode]] = deque()
        for rank, trace in enumerate(traces):
            for node in trace:
                for before in node.after:
                    self._followers[rank].setdefault(before, []).append(node)
                if not node.after:
                    self._ready.append((rank, node))

    def build(self) -> list[Flow]:
        """Return the flows."""
        while self._ready:
            self._begin(*self._ready.popleft())
        self._check_done()
        return self.flows

    def _add(self, flow: Flow) -> int:
        if len(self.flows) >= MOST_FLOWS:
            raise UsageError(f"this trace is more than {MOST_FLOWS:,} flows; use fewer ranks or a shorter trace")
        self.flows.append(flow)
        return len(self.flows) - 1

    def _wait(self, name: str, rank: int, time_ps: int, after: Sequence[int]) -> int:
        """Add a wait, unless it would be nothing but another flow."""
        if time_ps == 0 and len(after) == 1:
            return after[0]
        return self._add(Flow(name, rank, rank, 0, time_ps, tuple(dict.fromkeys(after))))

    def _move(self, name: str, source: int, target: int, size: int, after: Sequence[int]) -> int:
        """Add a write over the fabric, or the time that it takes inside a domain."""
        if source // self.domain == target // self.domain:
            return self._wait(name, source, self.near.takes_ps(size), after)
        return self._add(Flow(name, source, target, max(1, size), 0, tuple(dict.fromkeys(after))))

    def _begin(self, rank: int, node: ChakraNode) -> None:
        """Deal with a node of which everything before it is known."""
        after = [self.over[rank][number] for number in node.after]
        name = f"{rank}.{node.number}"
        if node.kind == NodeType.COLLECTIVE:
            self._come(rank, node, self._wait(name, rank, 0, after))
        elif node.kind == NodeType.SEND:
            self._send(rank, node, after)
        elif node.kind == NodeType.RECV:
            self._receive(rank, node, self._wait(name, rank, 0, after))
        else:
            self._end(rank, node.number, self._wait(name, rank, node.duration_ps if node.kind in _TIMED else 0, after))

    def _end(self, rank: int, number: int, flow: int) -> None:
        """Note with which flow a node is over, and look at those behind it."""
        self.over[rank][number] = flow
        for follower in self._followers[rank].get(number, ()):
            self._left[rank][follower.number] -= 1
            if self._left[rank][follower.number] == 0:
                self._ready.append((rank, follower))

    def _send(self, rank: int, node: ChakraNode, after: Sequence[int]) -> None:
        where = f"rank {rank}"
        target, size = node.figure("comm_dst", where), node.figure("comm_size", where)
        if not 0 <= target < len(self.traces) or target == rank:
            raise UsageError(
                f"{where}: node {node.number} sends to rank {target}; there are 0 to {len(self.traces) - 1}"
            )
        key = rank, target, node.attributes.get("comm_tag", 0), self._turn[rank][node.number]
        flow = self._move(f"{rank}.{node.number}:{rank}-{target}", rank, target, size, after)
        self._sent[key] = flow
        if key in self._received:
            self._meet(key)
        self._end(rank, node.number, flow)

    def _receive(self, rank: int, node: ChakraNode, begins: int) -> None:
        source = node.figure("comm_src", f"rank {rank}")
        key = source, rank, node.attributes.get("comm_tag", 0), self._turn[rank][node.number]
        self._received[key] = rank, node, begins
        if key in self._sent:
            self._meet(key)

    def _meet(self, key: tuple[Any, ...]) -> None:
        """End a receive whose send is known."""
        rank, node, begins = self._received.pop(key)
        self._end(rank, node.number, self._wait(f"{rank}.{node.number}", rank, 0, (begins, self._sent[key])))

    def _come(self, rank: int, node: ChakraNode, begins: int) -> None:
        """Let a rank come to a collective; the last one to come sets it going."""
        where = f"rank {rank}"
        group = group_of(node)
        kind = node.figure("comm_type", where)
        size = 0 if kind == _BARRIER else node.figure("comm_size", where)
        if kind in _NAMES:
            raise UsageError(f"{where}: node {node.number} ({node.name}) is a {_NAMES[kind]}, which is not simulated")
        turn = self._turn[rank][node.number]
        root = node.attributes.get("root_rank", 0)
        new = _Rendezvous(kind, size, root if isinstance(root, int) else 0)
        meeting = self._meetings.setdefault((group, turn), new)
        if (meeting.kind, meeting.size) != (kind, size):
            raise UsageError(
                f"collective {turn} of group {group!r} is type {meeting.kind} of {meeting.size} bytes on one rank, but "
                f"type {kind} of {size} bytes on rank {rank}; traces of one run have the same on all"
            )
        meeting.begins[rank], meeting.nodes[rank] = begins, node.number
        if len(meeting.begins) == len(self._groups[group]):
            self._collective(f"{group or 'all'}#{turn}", self._groups[group], meeting)

    def _collective(self, name: str, ranks: Sequence[int], meeting: _Rendezvous) -> None:
        """Add the flows of a collective to which everybody has come."""
        last: dict[int, dict[int, int]] = {rank: {rank: meeting.begins[rank]} for rank in ranks}
        if meeting.kind == _BARRIER or len(ranks) == 1:
            for rank in ranks:
                last[rank] = dict(meeting.begins)
        else:
            for rank, source, flow in self._sends(name, ranks, meeting):
                last[rank][source] = flow
        for rank in ranks:
            flow = self._wait(f"{name}.{rank}", rank, 0, tuple(last[rank].values()))
            self._end(rank, meeting.nodes[rank], flow)

    def _sends(self, name: str, ranks: Sequence[int], meeting: _Rendezvous) -> Iterator[tuple[int, int, int]]:
        """Add the sends of a collective; give each one's target, source and flow."""
        kind = _KINDS.get(meeting.kind)
        if kind is None:
            raise UsageError(f"collective {name} has type {meeting.kind}, which the schema does not have")
        order = list(ranks)
        if kind == "broadcast" and meeting.root in order:
            at = order.index(meeting.root)
            order = order[at:] + order[:at]
        schedule = schedule_named(kind, None, len(order))
        # The buffer of these two is what all ranks put in together.
        whole = meeting.size * (len(order) if kind in ("all-gather", "all-to-all") else 1)
        sizes = schedule.sent_bytes(whole)
        flows: list[int] = []
        for send in range(len(schedule)):
            source, target = order[int(schedule.source[send])], order[int(schedule.target[send])]
            after = [meeting.begins[source], *(flows[before] for before in schedule.before_of(send).tolist())]
            label = f"{name}.{send}:{source}-{target}"
            flows.append(self._move(label, source, target, int(sizes[send]), after))
            yield target, source, flows[-1]

    def _check_done(self) -> None:
        """Raise where nodes are left that wait for what never comes."""
        for (group, turn), meeting in self._meetings.items():
            missing = [rank for rank in self._groups[group] if rank not in meeting.begins]
            if missing:
                raise UsageError(
                    f"collective {turn} of group {group!r} never begins: rank {missing[0]} does not come to it; use "
                    "the traces of one run"
                )
        for rank, node, _ in self._received.values():
            raise UsageError(f"rank {rank}: node {node.number} ({node.name}) receives what nobody sends; add its send")
        for rank, trace in enumerate(self.traces):
            for node in trace:
                if node.number not in self.over[rank]:
                    raise UsageError(f"rank {rank}: node {node.number} ({node.name}) waits for itself in a circle")


def group_of(node: ChakraNode) -> str:
    """Return the name of a collective's group; nothing for everybody."""
    found = node.attributes.get("pg_name", node.attributes.get("comm_group", ""))
    return str(found)


def _groups(traces: Sequence[Sequence[ChakraNode]]) -> dict[str, tuple[int, ...]]:
    """Return the ranks of every group."""
    found: dict[str, dict[int, None]] = {}
    for rank, trace in enumerate(traces):
        for node in trace:
            if node.kind == NodeType.COLLECTIVE:
                found.setdefault(group_of(node), {})[rank] = None
    return {group: tuple(ranks) if group else tuple(range(len(traces))) for group, ranks in found.items()}


def _turns(trace: Sequence[ChakraNode]) -> dict[int, int]:
    """Return the how manieth of its kind every node that communicates is: of its group, or of its ends and tag."""
    count: dict[tuple[Any, ...], int] = {}
    found: dict[int, int] = {}
    for node in trace:
        if node.kind == NodeType.COLLECTIVE:
            key: tuple[Any, ...] = ("group", group_of(node))
        elif node.kind in (NodeType.SEND, NodeType.RECV):
            other = node.attributes.get("comm_dst" if node.kind == NodeType.SEND else "comm_src")
            key = (node.kind, other, node.attributes.get("comm_tag", 0))
        else:
            continue
        found[node.number] = count[key] = count.get(key, -1) + 1
    return found


def flows_of_traces(traces: Sequence[Sequence[ChakraNode]], domain: int, near: Near) -> tuple[Flow, ...]:
    """Return the traces of ranks 0, 1, ... as flows; `domain` ranks in a row share a scale-up domain."""
    flows = _Builder(traces, max(1, domain), near).build()
    if all(flow.is_wait for flow in flows):
        raise UsageError(
            "nothing in these traces crosses the fabric: their ranks share a scale-up domain, or do not talk"
        )
    return tuple(flows)
