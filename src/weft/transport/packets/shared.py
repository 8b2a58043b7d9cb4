"""Packets through shared memory: a plane of its own whose medium is a ring instead of a socket.

All else is as on other planes: rules give a packet its EV, loss and silence retire it, faults are injected in the same
place. Only the peer can write to the ring (`weft.transport.shared_memory`), so packets carry no tag and no check. A
place is filled before the count that shows it grows, and read before the count that frees it does.

While the plane is whole, data and answers take it and no other; packets that were lost go wherever there is a path.
"""

from weft.core.compile.rules import rule
from weft.mrc.columns import SKIP
from weft.transport.memory import layout, native
from weft.transport.memory.layout import EndpointState

_apart, _move, _fence, _write = native.apart, native.move, native.fence, native.write
_load, _store = native.load_word, native.store_word
_SIZE_SHIFT, _SIZE_MASK = 32, 0xFFFFFFFF


@rule
def is_shared(state: EndpointState, pair: int, plane: int) -> bool:
    """Return whether packets of a queue pair on `plane` go through shared memory."""
    return state.peers[pair]["ring_out"] != 0 and plane == state.hub[0]["shared_plane"]


@rule
def _room(state: EndpointState, pair: int) -> bool:
    """Return whether there is a free place in the peer's ring."""
    peer = state.peers[pair]
    return peer["ring_head"] - _load(peer["ring_out"] + layout.RING_TAIL_AT) < layout.RING_SLOTS


@rule
def planes_for_data(state: EndpointState, pair: int) -> int:
    """Return the planes that the next data packet may take: all, shared memory alone, or none while that is full."""
    peer, sender = state.peers[pair], state.sender.qp[pair]
    if peer["ring_out"] == 0 or sender["waiting"] > 0:
        return state.hub[0]["room"]
    bit = 1 << state.hub[0]["shared_plane"]
    if sender["reach"] & sender["local_up"] & sender["peer_up"] & bit == 0:
        return state.hub[0]["room"]
    return bit if _room(state, pair) else 0


@rule
def way_back(state: EndpointState, pair: int, now_ps: int) -> int:
    """Return the EV of shared memory for an answer, where the peer was heard on it lately, or -1."""
    peer, sender = state.peers[pair], state.sender.qp[pair]
    plane = state.hub[0]["shared_plane"]
    lately_ps = state.sender.params[0]["heard_lately_ps"]
    if peer["ring_out"] == 0 or now_ps - state.heard_on[pair, plane] > lately_ps:
        return -1
    fine = (
        state.sender.evs[pair, peer["shared_ev"]]["state"] <= SKIP
        and (sender["local_up"] & sender["peer_up"]) >> plane & 1
    )
    return peer["shared_ev"] if fine else -1


@rule
def put_shared(state: EndpointState, pair: int, head: int, size: int, payload: int, length: int) -> bool:
    """Put a packet into the peer's ring: `size` bytes of headers at `head`, and its payload; False where it is full."""
    _apart()
    hub, peer = state.hub[0], state.peers[pair]
    if not _room(state, pair):
        hub["sends_blocked"] += 1
        return False
    ring = peer["ring_out"]
    at = ring + layout.RING_FRONT + peer["ring_head"] % layout.RING_SLOTS * hub["ring_slot_bytes"]
    _move(at + layout.RING_HEADER_AT, head, size)
    if length > 0:
        _move(at + layout.RING_HEADS, payload, length)
    _store(at, size | length << _SIZE_SHIFT)
    peer["ring_head"] += 1
    _store(ring + layout.RING_HEAD_AT, peer["ring_head"])
    hub["shared_out"] += 1
    # Shown, then looked: without the fence both sides could miss each other, and the packet would wait for a timeout.
    _fence()
    if _load(ring + layout.RING_ASLEEP_AT) != 0:
        _store(ring + layout.RING_ASLEEP_AT, 0)
        _write(peer["bell"], state.tx_at[5], 1)
    return True


@rule
def waiting_in(state: EndpointState, pair: int) -> int:
    """Return how many packets wait in the ring of a queue pair."""
    peer = state.peers[pair]
    if peer["ring_in"] == 0:
        return 0
    count = _load(peer["ring_in"] + layout.RING_HEAD_AT) - peer["ring_tail"]
    # A peer that counts wrongly has written nothing that could be read.
    return count if 0 <= count <= layout.RING_SLOTS else 0


@rule
def fetch_shared(state: EndpointState, pair: int) -> int:
    """Bring the headers of the next packet of a ring to the place behind the receive ring; return its size, or -1.

    Its payload stays where it is: `payload_from` leads there.
    """
    hub, peer = state.hub[0], state.peers[pair]
    at = peer["ring_in"] + layout.RING_FRONT + peer["ring_tail"] % layout.RING_SLOTS * hub["ring_slot_bytes"]
    word = _load(at)
    size, length = word & _SIZE_MASK, word >> _SIZE_SHIFT
    if size > layout.HEAD_BYTES or length < 0 or length > hub["ring_slot_bytes"] - layout.RING_HEADS:
        return -1
    base = layout.RX_SLOTS * hub["slot_bytes"]
    _move(state.rx_at[0] + base, at + layout.RING_HEADER_AT, layout.HEAD_BYTES)
    hub["payload_from"] = at + layout.RING_HEADS - base - size
    return size + length


@rule
def free_shared(state: EndpointState, pair: int) -> None:
    """Give the place of the packet that was fetched back to the peer."""
    peer = state.peers[pair]
    peer["ring_tail"] += 1
    _store(peer["ring_in"] + layout.RING_TAIL_AT, peer["ring_tail"])


@rule
def fall_asleep(state: EndpointState, asleep: int) -> bool:
    """Say in every ring whether this thread sleeps; return whether a packet waits in one all the same."""
    waits = False
    if state.hub[0]["rings"] == 0:
        return waits
    for pair in range(state.hub[0]["queue_pairs"]):
        if state.peers[pair]["ring_in"] != 0:
            _store(state.peers[pair]["ring_in"] + layout.RING_ASLEEP_AT, asleep)
    _fence()
    for pair in range(state.hub[0]["queue_pairs"]):
        waits = waits or waiting_in(state, pair) > 0
    return waits
