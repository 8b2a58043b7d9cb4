"""Tokens to experts and back, as a routing table says: the skewed all-to-all of a mixture of experts.

The table is a CSV file with the columns source, destination and tokens, ranks of a layer's group. A rank sends its
tokens to all destinations at once; what has come to a rank goes back to where it came from once all of it is there.
"""

import csv
from pathlib import Path

from weft.core.errors import UsageError
from weft.core.input_files import read_text
from weft.netsim.model.flow import Flow
from weft.specs.scenario import TrafficSpec

_COLUMNS = ("source", "destination", "tokens")
_MOST_ROWS = 200_000


def routing_of(file: Path) -> dict[tuple[int, int], int]:
    """Return the tokens of every pair of ranks that a routing table names, or raise with the line that is wrong."""
    try:
        lines = read_text(file).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise UsageError(f"{file} cannot be read: {reason}; name a CSV file with {', '.join(_COLUMNS)}") from None
    rows = csv.DictReader(lines)
    if missing := [name for name in _COLUMNS if name not in (rows.fieldnames or ())]:
        raise UsageError(f"{file} has no column {missing[0]!r}; its first line reads {','.join(_COLUMNS)}")
    found: dict[tuple[int, int], int] = {}
    for row in rows:
        words = [row[name] or "" for name in _COLUMNS]
        if not all(word.strip().isdecimal() for word in words):
            raise UsageError(
                f"{file}:{rows.line_num}: {','.join(words)!r} are not three whole numbers; correct the line"
            )
        source, destination, tokens = (int(word) for word in words)
        found[source, destination] = found.get((source, destination), 0) + tokens
        if len(found) > _MOST_ROWS:
            raise UsageError(f"{file} has more than {_MOST_ROWS:,} pairs of ranks; use a smaller group")
    return found


def expert_flows(spec: TrafficSpec, hosts: int) -> list[Flow]:
    """Return the flows to the experts and, behind them, those back."""
    assert spec.routing is not None, "checked where the scenario is read"
    table = {ends: tokens for ends, tokens in routing_of(Path(spec.routing)).items() if tokens and ends[0] != ends[1]}
    if not table:
        raise UsageError(f"{spec.routing} sends no tokens from one rank to another; write tokens above 0")
    last = max(max(ends) for ends in table)
    if last * spec.stride >= hosts:
        raise UsageError(
            f"{spec.routing} names rank {last}, which is NIC {last * spec.stride}; there are {hosts:,} NICs"
        )
    flows: list[Flow] = []
    come: dict[int, list[int]] = {}
    for (source, destination), tokens in table.items():
        come.setdefault(destination, []).append(len(flows))
        ends = source * spec.stride, destination * spec.stride
        flows.append(Flow(f"to:{source}-{destination}", *ends, tokens * spec.token, spec.at))
    there: dict[int, int] = {}
    for rank, arrivals in come.items():
        there[rank] = len(flows)
        flows.append(Flow(f"there:{rank}", rank * spec.stride, rank * spec.stride, 0, 0, tuple(arrivals)))
    for (source, destination), tokens in table.items():
        ends = destination * spec.stride, source * spec.stride
        flows.append(Flow(f"back:{destination}-{source}", *ends, tokens * spec.token, 0, (there[destination],)))
    return flows
