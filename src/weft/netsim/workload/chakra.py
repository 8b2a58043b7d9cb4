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

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from io import BytesIO
from typing import Any

from google.protobuf import descriptor_pb2, json_format, message_factory, proto
from google.protobuf.message import DecodeError, Message

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
_TYPES = (
    "int32",
    "int64",
    "uint32",
    "uint64",
    "sint32",
    "sint64",
    "fixed32",
    "fixed64",
    "sfixed32",
    "sfixed64",
    "bool",
)
"""Values of an attribute that are whole numbers: every second field from 7 on; lists of them stand between."""


_WRITTEN = {"is_cpu_op": "bool_val", "comm_src": "int32_val", "comm_dst": "int32_val", "comm_tag": "int32_val"}
"""Attributes that are not whole numbers of eight bytes or texts."""


def _field(name: str, number: int, kind: str, **more: str | int) -> dict[str, str | int]:
    return {"name": name, "number": number, "type": f"TYPE_{kind}", "label": "LABEL_OPTIONAL", **more}


def _message_types() -> tuple[type[Message], type[Message]]:
    """Return the schema's header and node, as far as they are read; whatever else a message holds is skipped.

    The descriptors are made here, so that no generated code has to be kept beside the schema.
    """
    # Of one attribute only the last value counts, which is what a oneof means on the wire.
    values = [_field(f"{name}_val", 7 + 2 * place, name.upper(), oneofIndex=0) for place, name in enumerate(_TYPES)]
    texts = [_field("name", 1, "STRING"), _field("string_val", 29, "STRING", oneofIndex=0)]
    several = {"label": "LABEL_REPEATED"}
    node = [
        _field("id", 1, "UINT64"),
        _field("name", 2, "STRING"),
        _field("type", 3, "INT64"),
        _field("ctrl_deps", 4, "UINT64", **several),
        _field("data_deps", 5, "UINT64", **several),
        _field("start_time_micros", 6, "UINT64"),
        _field("duration_micros", 7, "UINT64"),
        _field("attr", 10, "MESSAGE", **several, typeName=".weft.chakra.Attribute"),
    ]
    messages = [
        {"name": "Header"},
        {"name": "Attribute", "field": texts + values, "oneofDecl": [{"name": "value"}]},
        {"name": "Node", "field": node},
    ]
    file = {"name": "weft/chakra.proto", "package": "weft.chakra", "syntax": "proto3", "messageType": messages}
    found = message_factory.GetMessages([json_format.ParseDict(file, descriptor_pb2.FileDescriptorProto())])
    return found["weft.chakra.Header"], found["weft.chakra.Node"]


_HEADER, _NODE = _message_types()


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
    start_ps: int | None = None
    """When it began; none where the trace does not say."""

    def figure(self, name: str, where: str) -> int:
        """Return an attribute that must be there and be a whole number."""
        value = self.attributes.get(name)
        if isinstance(value, int):
            return value
        raise UsageError(f"{where}: node {self.number} ({self.name}) has no number called {name}; write a newer trace")


def read_trace(data: bytes, where: str) -> tuple[ChakraNode, ...]:
    """Return the nodes of one file; `where` is its name, for messages."""
    # As fast as decoding by hand was: 0.11 s against 0.14 s of processor time for 20,000 nodes.
    stream = BytesIO(data)
    nodes: list[ChakraNode] = []
    try:
        if proto.parse_length_prefixed(_HEADER, stream) is not None:
            while (message := proto.parse_length_prefixed(_NODE, stream)) is not None:
                nodes.append(_node(message))
    except (DecodeError, ValueError):
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
    return tuple(nodes)


def _node(message: Any) -> ChakraNode:
    """Return a message of the schema as a node; of its attributes, texts and whole numbers."""
    attributes: dict[str, int | str] = {}
    for each in message.attr:
        if (kind := each.WhichOneof("value")) is not None:
            value = getattr(each, kind)
            attributes[each.name] = value if isinstance(value, str) else int(value)
    after = tuple(dict.fromkeys((*message.ctrl_deps, *message.data_deps)))
    took, start = message.duration_micros * _PS_PER_US, message.start_time_micros * _PS_PER_US
    return ChakraNode(message.id, message.name, message.type, after, took, attributes, start or None)


def written_trace(nodes: Sequence[ChakraNode]) -> bytes:
    """Return nodes as the bytes of a file, each attribute in the type that ASTRA-sim's and Chakra's readers ask for."""
    stream = BytesIO()
    proto.serialize_length_prefixed(_HEADER(), stream)
    for node in nodes:
        said = [{"name": name, _WRITTEN.get(name, "string_val" if isinstance(value, str) else "int64_val"): value}
                for name, value in node.attributes.items()]  # fmt: skip
        proto.serialize_length_prefixed(
            _NODE(id=node.number, name=node.name, type=int(node.kind), data_deps=node.after,
                  duration_micros=node.duration_ps // _PS_PER_US, start_time_micros=(node.start_ps or 0) // _PS_PER_US,
                  attr=said), stream)  # fmt: skip
    return stream.getvalue()


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
        self._collectives: dict[tuple[str, int], _Rendezvous] = {}
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
        joined = self._collectives.setdefault((group, turn), new)
        if (joined.kind, joined.size) != (kind, size):
            raise UsageError(
                f"collective {turn} of group {group!r} is type {joined.kind} of {joined.size} bytes on one rank, but "
                f"type {kind} of {size} bytes on rank {rank}; traces of one run have the same on all"
            )
        joined.begins[rank], joined.nodes[rank] = begins, node.number
        if len(joined.begins) == len(self._groups[group]):
            self._collective(f"{group or 'all'}#{turn}", self._groups[group], joined)

    def _collective(self, name: str, ranks: Sequence[int], joined: _Rendezvous) -> None:
        """Add the flows of a collective to which everybody has come."""
        last: dict[int, dict[int, int]] = {rank: {rank: joined.begins[rank]} for rank in ranks}
        if joined.kind == _BARRIER or len(ranks) == 1:
            for rank in ranks:
                last[rank] = dict(joined.begins)
        else:
            for rank, source, flow in self._sends(name, ranks, joined):
                last[rank][source] = flow
        for rank in ranks:
            flow = self._wait(f"{name}.{rank}", rank, 0, tuple(last[rank].values()))
            self._end(rank, joined.nodes[rank], flow)

    def _sends(self, name: str, ranks: Sequence[int], joined: _Rendezvous) -> Iterator[tuple[int, int, int]]:
        """Add the sends of a collective; give each one's target, source and flow."""
        kind = _KINDS.get(joined.kind)
        if kind is None:
            raise UsageError(f"collective {name} has type {joined.kind}, which the schema does not have")
        order = list(ranks)
        if kind == "broadcast" and joined.root in order:
            at = order.index(joined.root)
            order = order[at:] + order[:at]
        schedule = schedule_named(kind, None, len(order))
        # The buffer of these two is what all ranks put in together.
        whole = joined.size * (len(order) if kind in ("all-gather", "all-to-all") else 1)
        sizes = schedule.sent_bytes(whole)
        flows: list[int] = []
        for send in range(len(schedule)):
            source, target = order[int(schedule.source[send])], order[int(schedule.target[send])]
            after = [joined.begins[source], *(flows[before] for before in schedule.before_of(send).tolist())]
            label = f"{name}.{send}:{source}-{target}"
            flows.append(self._move(label, source, target, int(sizes[send]), after))
            yield target, source, flows[-1]

    def _check_done(self) -> None:
        """Raise where nodes are left that wait for what never comes."""
        for (group, turn), joined in self._collectives.items():
            missing = [rank for rank in self._groups[group] if rank not in joined.begins]
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


def collective_name(node: ChakraNode) -> str:
    """Return what a collective is called; its number where the schema knows none."""
    kind = node.attributes.get("comm_type")
    known = {**_KINDS, **_NAMES, _BARRIER: "barrier"}
    return known.get(kind, str(kind)) if isinstance(kind, int) else str(kind)


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
    if all(flow.is_wait and flow.at_ps == 0 for flow in flows):
        raise UsageError("nothing in these traces takes time: there is no compute in them, and nobody talks")
    return tuple(flows)
