"""Chakra execution traces, one file for each rank: its collectives in order, its device's time if it is in it."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.core import quantity
from weft.core.errors import UsageError
from weft.diagnosis.collective_calls import EnteredCollective
from weft.diagnosis.timeline import BusyTime, KernelClass
from weft.doctor.readers.base import FileToRead, UnreadableError
from weft.doctor.readers.evidence import Evidence

if TYPE_CHECKING:
    from weft.netsim.workload.chakra import ChakraNode

_MOST_BYTES = 512 * 2**20
_PS = 1e-12
_GROUPS = ".groups.json"
"""End of the name of the file that says which ranks each group has; it stands beside the traces."""
_EVERYBODY = "everybody"
"""Name of the group of collectives that name none."""


class ChakraReader:
    """Reads traces of the public schema."""

    name = "Chakra trace"

    def recognises(self, file: FileToRead) -> bool:
        """Return whether its name says so: nothing in it does."""
        return file.name.endswith((".et", _GROUPS))

    def read(self, file: FileToRead, evidence: Evidence) -> str:
        """Read one rank's nodes, or what groups there are."""
        if file.name.endswith(_GROUPS):
            return _groups(file)
        rank = file.rank
        if rank is None:
            raise UnreadableError(
                f"{file.path} does not say whose trace it is; let its name hold the rank, as step.3.et"
            )
        nodes = _nodes(file)
        evidence.heard.add(rank)
        groups = _calls(nodes, rank, evidence)
        device = [node for node in nodes if node.duration_ps and not node.attributes.get("is_cpu_op")]
        computed_ps = sum(node.duration_ps for node in device if _class_of(node) == "compute")
        busy = BusyTime()
        timed = [(node, node.start_ps) for node in device if node.start_ps is not None]
        for node, begin_ps in timed:
            busy.add(_class_of(node), begin_ps * _PS, (begin_ps + node.duration_ps) * _PS)
        if timed:
            evidence.timelines.append(busy.shares(rank, file.name))
        return (
            f"rank {rank}: {len(nodes):,} nodes, {groups.total():,} collectives of {len(groups):,} groups,"
            f" {quantity.TIME.about(computed_ps)} of compute" + ("" if timed else "; nothing says when it began")
        )


def _nodes(file: FileToRead) -> "tuple[ChakraNode, ...]":
    try:
        from weft.netsim.workload.chakra import read_trace
    except ImportError:
        raise UsageError("Chakra traces are read with protobuf; install it with pip install 'weft[sim]'") from None
    with file.open() as stream:
        data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise UnreadableError(f"{file.path} is larger than {_MOST_BYTES:,} bytes")
    try:
        return read_trace(data, str(file.path))
    except UsageError as error:
        raise UnreadableError(str(error)) from None


def _calls(nodes: "Sequence[ChakraNode]", rank: int, evidence: Evidence) -> Counter[str]:
    """Add a rank's collectives, and return how many there are of each group."""
    from weft.netsim.workload.chakra import NodeType, collective_name, group_of

    entered: Counter[str] = Counter()
    for node in nodes:
        if node.kind == NodeType.COLLECTIVE:
            group, size = group_of(node) or _EVERYBODY, node.attributes.get("comm_size")
            entered[group] += 1
            sizes = ((size,),) if isinstance(size, int) else ()
            called = collective_name(node).replace("-", "_")
            # Of one that took no time it is not known: a trace of what is to run, or of a run that hung.
            ended = node.duration_ps > 0
            evidence.calls.append(EnteredCollective(rank, group, entered[group], called, sizes, (), ended))
    return entered


def _class_of(node: "ChakraNode") -> KernelClass:
    from weft.netsim.workload.chakra import NodeType

    if node.kind in {NodeType.COLLECTIVE, NodeType.SEND, NodeType.RECV}:
        return "communication"
    return "copy" if node.kind in {NodeType.MEM_LOAD, NodeType.MEM_STORE} else "compute"


def _groups(file: FileToRead) -> str:
    """Return what a file of groups says; traces of some of their ranks alone are none of the others' fault."""
    with file.open() as stream:
        groups = json.loads(stream.read(_MOST_BYTES))
    if not isinstance(groups, dict) or not all(isinstance(ranks, list) for ranks in groups.values()):
        raise UnreadableError(f"{file.path} is no table of groups, each with its list of ranks")
    return f"{len(groups):,} process groups"
