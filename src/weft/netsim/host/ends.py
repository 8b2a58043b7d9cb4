"""Which rows are the two ends of a pair: `rules.endpoint` is asked about ends, whatever columns their parts are in.

The end that sends is a row of `s`. The one that receives is a row of `r`, and sends its answers from a row of `b`, or,
where another pair carries data the other way over the same queue pair, from that pair's row of `s`.
"""

from weft.core.compile.rules import rule
from weft.mrc.rules.endpoint import PairEnd, Passage
from weft.netsim.host.host_state import PER_PLANE, SEEN_AS, HostState, Record


@rule
def opposite(hosts: HostState, pair: int) -> int:
    """Return the pair that goes the other way over the same queue pair, whose sending half is this one's too, or -1."""
    seen_as = hosts.nics.each[2 * pair + 1, SEEN_AS]
    return -1 if seen_as & 1 else seen_as >> 1


@rule
def source_end(hosts: HostState, pair: int) -> PairEnd:
    """Return the end of a pair that sends, which receives what its opposite carries."""
    return PairEnd(hosts.s, pair, hosts.r, opposite(hosts, pair), 2 * pair, hosts.journal)


@rule
def destination_end(hosts: HostState, pair: int) -> PairEnd:
    """Return the end of a pair that receives and carries no data itself."""
    return PairEnd(hosts.b, pair, hosts.r, pair, 2 * pair + 1, hosts.journal)


@rule
def shared_end(hosts: HostState, pair: int, opposite_pair: int) -> PairEnd:
    """Return the end of a pair that receives, whose sending half is that of its opposite."""
    return PairEnd(hosts.s, opposite_pair, hosts.r, pair, 2 * opposite_pair, hosts.journal)


@rule
def receiving_end(hosts: HostState, pair: int) -> PairEnd:
    """Return the end of a pair that receives, for rules that leave its sending half alone."""
    k = opposite(hosts, pair)
    return PairEnd(hosts.b, pair, hosts.r, pair, 2 * k if k >= 0 else 2 * pair + 1, hosts.journal)


@rule
def passage_of(hosts: HostState, head: Record, marked: int, reason: int) -> Passage:
    """Return what befell a packet that carries the EV on which it came."""
    # A division for each packet is worth avoiding where nobody asks for its plane.
    asked = hosts.r.params[0]["heard_lately_ps"] > 0
    return Passage(head["value"], head["value"] // hosts.spray[PER_PLANE] if asked else 0, marked, reason)
