"""htsim's input files as traffic and fabric, so that the same files run in both.

A connection matrix (`.cm`) lists flows with their start or the trigger that starts them, and dead links; a topology
(`.topo`) describes a leaf-spine or fat-tree by tiers. Formats: uet-htsim, `htsim/sim/datacenter`. Nothing is run here.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from weft.core.errors import UsageError
from weft.core.units import BitsPerSecond, Bytes, Picoseconds
from weft.netsim.model.network import Timing
from weft.netsim.workload.patterns import Flow
from weft.specs.fabric import FabricSpec
from weft.specs.scenario import FaultSpec

_GBPS = 10**9
_PS_PER_NS = 1000
_TWO_TIERS, _THREE_TIERS = 2, 3
_ENDS = re.compile(r"(\d+)->(\d+)$")
_TRIGGERS = ("oneshot", "multishot", "barrier")
_PAYLOAD = 4096


@dataclass
class _Trigger:
    """What starts flows: the flows that fire it, those that it starts, and how often it has to be fired."""

    kind: str = "oneshot"
    count: int = 1
    sent: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)


def read_matrix(text: str, name: str) -> tuple[int, tuple[Flow, ...]]:
    """Return the number of nodes of a connection matrix, and its flows; `name` is the file's, for messages."""
    nodes = 0
    flows: list[Flow] = []
    triggers: dict[int, _Trigger] = defaultdict(_Trigger)
    for number, words in _lines(text):
        where = f"{name}:{number}"
        ends = _ENDS.match(words[0])
        if words[0] == "Nodes":
            nodes = _number(words, 1, where)
        elif words[0] in ("Connections", "Triggers", "Failures"):
            _number(words, 1, where)
        elif words[0] == "trigger":
            _trigger(words, where, triggers)
        elif words[0] == "failure":
            continue  # `read_failures` has them
        elif ends:
            flows.append(_flow(ends, words, where, triggers, len(flows)))
        else:
            raise UsageError(f"{where}: {words[0]!r} is neither a flow (SRC->DST ...) nor a trigger; remove it")
    if not flows:
        raise UsageError(f"{name} has no connections; a line reads '0->1 id 1 start 0 size 2097152'")
    for flow in flows:
        if max(flow.source, flow.destination) >= nodes:
            raise UsageError(f"{name}: flow {flow.name} goes beyond its {nodes} Nodes; raise Nodes")
    return nodes, _with_triggers(flows, triggers, name)


def read_failures(text: str, name: str) -> tuple[FaultSpec, ...]:
    """Return the dead links of a connection matrix: of switches of the middle tier (AGG), upwards, from the start."""
    found: list[FaultSpec] = []
    for number, words in _lines(text):
        if words[0] != "failure":
            continue
        where = f"{name}:{number}"
        values = dict(zip(words[1::2], words[2::2], strict=False))
        if unknown := sorted(set(values) - {"id", "switch_type", "switch_id", "link_id"}):
            raise UsageError(
                f"{where}: {unknown[0]!r} is not known; write failure switch_type AGG switch_id 0 link_id 0"
            )
        if values.get("switch_type") != "AGG":
            raise UsageError(f"{where}: only links of AGG switches to the third tier can fail; write switch_type AGG")
        switch, link = (_number([key, values.get(key, "")], 1, where) for key in ("switch_id", "link_id"))
        found.append(FaultSpec(kind="link-down", target=f"link2-p0-i{switch}-u{link}"))
    return tuple(found)


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if words:
            yield number, words


def _number(words: list[str], at: int, where: str) -> int:
    if at < len(words) and words[at].isdecimal():
        return int(words[at])
    raise UsageError(f"{where}: a whole number is missing after {words[at - 1]!r}")


def _flow(ends: re.Match[str], words: list[str], where: str, triggers: dict[int, _Trigger], place: int) -> Flow:
    values: dict[str, int] = {}
    for at in range(1, len(words) - 1, 2):
        values[words[at]] = _number(words, at + 1, where)
    known = {"id", "start", "size", "trigger", "send_done_trigger", "recv_done_trigger", "prio"}
    unknown = sorted(set(values) - known)
    if unknown:
        raise UsageError(f"{where}: {unknown[0]!r} is not known; there are {', '.join(sorted(known))}")
    if ("start" in values) == ("trigger" in values):
        raise UsageError(f"{where}: a flow has either a start or a trigger; write one of them")
    if values.get("size", 0) <= 0:
        raise UsageError(f"{where}: the size is missing; write size 2097152")
    if "trigger" in values:
        triggers[values["trigger"]].starts.append(place)
    if "send_done_trigger" in values:
        triggers[values["send_done_trigger"]].sent.append(place)
    if "recv_done_trigger" in values:
        triggers[values["recv_done_trigger"]].received.append(place)
    source, destination = int(ends[1]), int(ends[2])
    if source == destination:
        raise UsageError(f"{where}: the flow goes from node {source} to itself; name another destination")
    return Flow(str(values.get("id", place + 1)), source, destination, values["size"], values.get("start", 0))


def _trigger(words: list[str], where: str, triggers: dict[int, _Trigger]) -> None:
    kind = next((word for word in words if word in _TRIGGERS), None)
    if words[1:2] != ["id"] or kind is None:
        raise UsageError(f"{where}: a trigger reads 'trigger id J oneshot', multishot or 'barrier count C'")
    trigger = triggers[_number(words, 2, where)]
    trigger.kind = kind
    trigger.count = _number(words, words.index("count") + 1, where) if "count" in words else 1


def _with_triggers(flows: list[Flow], triggers: dict[int, _Trigger], name: str) -> tuple[Flow, ...]:
    """Return the flows with what each waits for; a multishot starts its flows one by one, in the order of the file."""
    found = list(flows)
    for number, trigger in triggers.items():
        fires = [(place, False) for place in trigger.received] + [(place, True) for place in trigger.sent]
        if not trigger.starts:
            continue
        if not fires:
            raise UsageError(f"{name}: no flow fires trigger {number}, so its flows never start; name it in one")
        waits: list[list[tuple[int, bool]]]
        if trigger.kind == "barrier":
            if trigger.count != len(fires):
                raise UsageError(f"{name}: barrier {number} counts {trigger.count}, but {len(fires)} flows fire it")
            waits = [fires] * len(trigger.starts)
        elif trigger.kind == "multishot":
            if len(fires) < len(trigger.starts):
                raise UsageError(f"{name}: trigger {number} starts {len(trigger.starts)} flows; {len(fires)} fire it")
            waits = [[fire] for fire in fires]
        elif len(fires) == 1:
            waits = [fires] * len(trigger.starts)
        else:
            raise UsageError(f"{name}: {len(fires)} flows fire oneshot {number}; one is enough, or make it a barrier")
        for place, wait in zip(trigger.starts, waits, strict=False):
            found[place] = replace(
                found[place],
                after=tuple(flow for flow, sent in wait if not sent),
                after_sent=tuple(flow for flow, sent in wait if sent),
            )
    return tuple(found)


def read_topology(text: str, name: str, base: FabricSpec) -> tuple[FabricSpec, Timing]:
    """Return the fabric of a topology file, and the rates and delays of its stages; `base` lends parts and cables."""
    figures: dict[str, int] = {}
    tiers: dict[int, dict[str, int]] = {}
    place = figures
    for number, words in _lines(text):
        value = _number(words, 1, f"{name}:{number}")
        if words[0].lower() == "tier":
            place = tiers.setdefault(value, {})
        else:
            place[words[0].lower()] = value
    count = figures.get("tiers", len(tiers))
    if count not in (_TWO_TIERS, _THREE_TIERS) or sorted(tiers) != list(range(count)):
        raise UsageError(f"{name}: {count} tiers, described {sorted(tiers)}; write two or three blocks 'Tier 0', ...")
    stages = [tiers[tier] for tier in range(count)]
    for tier, stage in enumerate(stages):
        needed = (
            "downlink_speed_gbps",
            "radix_down",
            "downlink_latency_ns",
            *(("radix_up",) if tier < count - 1 else ()),
        )
        missing = [key for key in needed if key not in stage]
        if missing:
            raise UsageError(f"{name}: tier {tier} has no {missing[0]}; add it")
    down, up = stages[0]["radix_down"], stages[0]["radix_up"]
    bundle = stages[1].get("bundle", 1)
    if count == _THREE_TIERS and not stages[1]["radix_down"] == stages[1]["radix_up"] == (down + up) // 2:
        raise UsageError(
            f"{name}: a tier 1 of {stages[1]['radix_down']} down and {stages[1]['radix_up']} up is not built; in three "
            f"tiers both are half of a tier 0's {down + up} ports"
        )
    rate = BitsPerSecond(stages[0]["downlink_speed_gbps"] * _GBPS)
    links = base.links
    if count == _THREE_TIERS and links.t1_t2 is None:
        links = links.model_copy(update={"t1_t2": links.t0_t1})
    hosts = figures.get("nodes", 0)
    if hosts < _TWO_TIERS:
        raise UsageError(f"{name}: {hosts} Nodes; write at least two")
    fabric = base.model_copy(
        update={
            "gpus": hosts, "nic_rate": rate, "port_rate": rate, "planes": 1, "tiers": count, "radix": down + up,
            "oversubscription": (down, up), "build": "compact" if bundle > 1 else "growable", "links": links,
            "packet": Bytes(_PAYLOAD),
        }
    )  # fmt: skip
    timing = Timing(
        tuple(stage["downlink_speed_gbps"] * _GBPS for stage in stages),
        tuple(Picoseconds(stage["downlink_latency_ns"] * _PS_PER_NS) for stage in stages),
        tuple(Picoseconds(stage.get("switch_latency_ns", 0) * _PS_PER_NS) for stage in stages),
    )
    return fabric, timing
