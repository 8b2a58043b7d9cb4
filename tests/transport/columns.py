"""Endpoints without sockets: their columns, the plain rules, and a network that carries every write at once.

What a rule posts is read from the sender's columns and written where it says; the immediate is then given to the other
side, as the protocol would once everything has landed. So messages and programs run without packets, in any order.
"""

import ctypes
from dataclasses import dataclass, field

import numpy as np

from weft.mrc.rules.evs import Paths
from weft.mrc.rules.receiver import start_receiver
from weft.mrc.rules.sender import start_sender
from weft.mrc.rules.settings import settings
from weft.transport.memory.layout import EndpointState, make_state
from weft.transport.memory.tables import OF_ENGINE, SLOT, SLOTS, make_transfers
from weft.transport.messages.transfers import sent, take_word
from weft.transport.underlay import Loopback

PEER_NUMBER = 0x5000


def state_of(pairs: int = 1, *, journal_rows: int = 0, capture_rows: int = 0, payload: int = 4096) -> EndpointState:
    """Return the columns of an endpoint on loopback whose queue pairs are all open."""
    underlay = Loopback(planes=4, payload=payload)
    params = settings(underlay.spec, planes=4, rate_bps=underlay.rate_bps, payload=payload)
    state = make_state(
        params, queue_pairs=pairs, transfers=make_transfers(pairs), journal_rows=journal_rows, capture_rows=capture_rows
    )
    hub = state.hub[0]
    hub["stride"], hub["check"], hub["liveness_ps"] = underlay.paths, 1, 3 * 10**12
    hub["capture_on"] = int(capture_rows > 0)
    for pair in range(pairs):
        start_sender(state.sender, pair, 11 + pair, 100, Paths(underlay.paths, underlay.paths, np.zeros(1, np.int64)))
        start_receiver(state.receiver, pair, 17 + pair, 100)
        peer = state.peers[pair]
        peer["open"], peer["engine"], peer["rank"] = 1, 1, pair
        peer["number"] = peer["remote"] = PEER_NUMBER | pair
    return state


@dataclass
class Rank:
    """One rank of a world of columns."""

    state: EndpointState
    seen: int = 0
    """Messages that the network has carried, of all queue pairs."""
    carried: dict[int, int] = field(default_factory=dict)
    """Messages carried of each queue pair."""


class World:
    """Ranks that are all connected; queue pair p of rank r leads to rank p, or p + 1 from r on."""

    def __init__(self, ranks: int) -> None:
        self.ranks = [Rank(state_of(max(1, ranks - 1))) for _ in range(ranks)]
        for number, rank in enumerate(self.ranks):
            for other in range(ranks):
                if other == number:
                    continue
                pair, back = self.pair(number, other), self.pair(other, number)
                peer = rank.state.peers[pair]
                peer["rank"], peer["far_key"] = other, 7
                peer["far_inbox"] = int(self.ranks[other].state.transfers.at[1]) + back * SLOTS * SLOT
                rank.state.transfers.members[0, pair] = 1
                rank.state.transfers.seats[0, other] = pair

    def pair(self, rank: int, other: int) -> int:
        """Return the queue pair of `rank` that leads to `other`."""
        return other if other < rank else other - 1

    def state(self, rank: int) -> EndpointState:
        """Return the columns of a rank."""
        return self.ranks[rank].state

    def carry_one(self, rank: int, other: int) -> bool:
        """Carry the next write from one rank to another, and acknowledge it; return whether there was one."""
        here, there = self.ranks[rank], self.ranks[other]
        pair, back = self.pair(rank, other), self.pair(other, rank)
        sender = here.state.sender
        number = here.carried.get(pair, 0)
        if number >= sender.qp[pair]["msg_end"]:
            return False
        here.carried[pair] = number + 1
        index = number & int(sender.params[0]["message_mask"])
        message = sender.messages[pair, index]
        ctypes.memmove(int(message["address"]), int(here.state.source[pair, index]), int(message["length"]))
        # What has landed is the protocol's no more: its row and its immediate are free again.
        sender.qp[pair]["msg_first"] += 1
        if message["immediate"] >= 0:
            sender.qp[pair]["immediates"] -= 1
            take_word(there.state, back, int(message["immediate"]), 0)
        tag = int(here.state.tags[pair, index])
        if tag >= OF_ENGINE:
            sent(here.state, tag)
        return True

    def settle(self) -> None:
        """Carry everything that is posted, also what that makes ranks post."""
        count = len(self.ranks)
        while any(self.carry_one(one, other) for one in range(count) for other in range(count) if one != other):
            pass
