"""When the halves of NICs act by themselves, and which of them may have data to send: rules below those of `hosts`."""

from weft.core.compile.rules import rule
from weft.mrc.rules.control import all_sent, next_deadline, tail_ps
from weft.mrc.rules.endpoint import deadline
from weft.mrc.rules.numbers import lowest_bit
from weft.mrc.rules.reverse import reverse_due_ps
from weft.netsim.host.ends import destination_end, opposite
from weft.netsim.host.host_state import AT_NIC, DUE, WORD_MASK, WORD_SHIFT, HostState, NicColumns


@rule
def set_deadline(hosts: HostState, half: int) -> None:
    """Work out when a half has something to do by itself; what is kept may become too early, never too late."""
    pair = half >> 1
    if half & 1 == 0:
        due_ps = next_deadline(hosts.s, pair)
    elif opposite(hosts, pair) < 0:
        due_ps = deadline(destination_end(hosts, pair))
    else:
        # Of a queue pair that carries data both ways, the sending half looks after itself.
        due_ps = reverse_due_ps(hosts.r, pair)
    hosts.nics.each[half, DUE] = due_ps
    nic = hosts.nics.each[half, AT_NIC]
    hosts.nics.due[nic] = min(hosts.nics.due[nic], due_ps)


@rule
def keep_deadline(hosts: HostState, pair: int, now_ps: int) -> None:
    """Leave the deadline of a sending half that was just active, unless it may be too late.

    A deadline may be early: nothing is due then, and the next one is worked out. What a packet sent or acknowledged now
    makes due is at least this far away.
    """
    params = hosts.s.params[0]
    soonest_ps = min(params["probe_after_ps"], params["timeout_ps"])
    if all_sent(hosts.s, pair):
        soonest_ps = min(soonest_ps, tail_ps(params))
    if hosts.nics.each[2 * pair, DUE] > now_ps + soonest_ps:
        set_deadline(hosts, 2 * pair)


@rule
def wake(nics: NicColumns, half: int) -> None:
    """Note that a sending half may have data to send."""
    if half & 1:
        return
    nic = nics.each[half, AT_NIC]
    place = nics.place[half]
    nics.ready[nics.first_word[nic] + (place >> WORD_SHIFT)] |= 1 << (place & WORD_MASK)
    nics.awake[nic] = 1


@rule
def next_ready(nics: NicColumns, nic: int, at: int) -> int:
    """Return the place of the first half from `at` on, in a circle, that may have data to send, or -1."""
    first = nics.first_word[nic]
    words = nics.first_word[nic + 1] - first
    word = at >> WORD_SHIFT
    # Shifting right and left again clears the bits below the place where the turn stands.
    bits = nics.ready[first + word] >> (at & WORD_MASK) << (at & WORD_MASK)
    # One word more than there are: the first one is looked at again, for its lower bits.
    for _ in range(words + 1):
        if bits:
            return (word << WORD_SHIFT) + lowest_bit(bits)
        word = word + 1 if word + 1 < words else 0
        bits = nics.ready[first + word]
    return -1
