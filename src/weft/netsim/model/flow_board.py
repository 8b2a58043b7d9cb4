"""Flows over queue pairs: which may begin, which messages they become, and when they are over."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.mrc.columns import NEVER
from weft.netsim.host.host_state import ACKNOWLEDGED, ARRIVED
from weft.netsim.model.flow import Flow
from weft.netsim.model.network import Network
from weft.netsim.model.queue_pairs import Carriers, Pair

_LARGEST_MESSAGE = 2**30
"""Longer flows are cut into messages of this many bytes; a message may have up to 2^32 - 1."""


def largest_message(payload: int) -> int:
    """Return the bytes of the largest message, in whole packets."""
    return _LARGEST_MESSAGE // payload * payload


@dataclass(slots=True)
class FlowProgress:
    """How far one flow has got."""

    began_ps: int = -1
    """When its first message was posted."""
    arrived_ps: int = -1
    """When its last byte had arrived."""
    acknowledged_ps: int = -1
    """When its sender knew."""
    failure: str = ""
    """Name of the error that ended it."""
    unsent: int = 0
    """Bytes that no message has been posted for."""
    waits_for: int = 0
    """Flows that have to arrive before it begins."""


@dataclass(slots=True)
class _Queue:
    """The flows of one queue pair, in order of their beginning, which is also that of whatever happens to them."""

    flows: list[int] = field(default_factory=list)
    """Their numbers."""
    ends: list[int] = field(default_factory=list)
    """After how many packets of the pair each is over."""
    posted: int = 0
    """How many of them have no message left to post."""
    arrived: int = 0
    """How many have arrived."""
    known: int = 0
    """Of how many the sender knows it."""

    @property
    def is_posted(self) -> bool:
        """Return whether nothing waits to be posted."""
        return self.posted == len(self.flows)

    def goals(self) -> tuple[int, int]:
        """Return after how many packets the next flow has arrived, and after how many its sender knows."""
        last = len(self.ends)
        return (
            self.ends[self.arrived] if self.arrived < last else NEVER,
            self.ends[self.known] if self.known < last else NEVER,
        )


class BoardState(NamedTuple):
    """How far all flows are, as it is kept."""

    progress: list[FlowProgress]
    """Of every flow."""
    queues: list[_Queue]
    """Of every queue pair."""
    full: set[int]
    """Queue pairs with more messages than they could take."""
    starts: list[tuple[int, int]]
    """Times at which flows begin, and which."""
    open: int
    """Counted flows that are not over."""
    begun: int = 0
    """How many have begun, where their times are columns."""
    failures: dict[int, str] = {}  # noqa: RUF012 - nobody changes it
    """Flow to the error that ended it, where times are columns."""


class FlowBoard:
    """All flows of a run."""

    def __init__(self, flows: Sequence[Flow], payload: int) -> None:
        self.flows = tuple(flows)
        self.payload = payload
        self._whole = largest_message(payload)
        ends = sorted({(f.source, f.destination, f.lane, f.uplinks) for f in flows if not f.is_wait})
        number = {end: i for i, end in enumerate(ends)}
        self.pair_of = [number.get((f.source, f.destination, f.lane, f.uplinks), -1) for f in flows]
        posts, packets = [0] * len(ends), [0] * len(ends)
        for pair, flow in zip(self.pair_of, flows, strict=True):
            if not flow.is_wait:
                posts[pair] += -(-flow.size // self._whole)
                packets[pair] += -(-flow.size // payload)
        self.pairs = tuple(Pair(*end, *counts) for end, *counts in zip(ends, posts, packets, strict=True))
        self._full: set[int] = set()
        self._starts = sorted((f.at_ps, i) for i, f in enumerate(flows) if not f.after and not f.after_sent)
        self.open = sum(f.counted for f in flows)
        """Counted flows that are not over."""
        self._note_flows()

    def _note_flows(self) -> None:
        """Make what notes how far every flow is."""
        self._progress = [FlowProgress(unsent=f.size, waits_for=len(f.after) + len(f.after_sent)) for f in self.flows]
        self._followers: list[list[int]] = [[] for _ in self.flows]
        self._sent_followers: dict[int, list[int]] = {}
        for i, flow in enumerate(self.flows):
            for before in flow.after:
                self._followers[before].append(i)
            for before in flow.after_sent:
                self._sent_followers.setdefault(before, []).append(i)
        self._queues = [_Queue() for _ in self.pairs]

    @property
    def progress(self) -> Sequence[FlowProgress]:
        """Return how far every flow is."""
        return self._progress

    def round_slots(self, network: Network, most_posts: int) -> int:
        """Return after how many slots, counted from the first one, flows learn what was completed.

        In between nobody has to: no flow waits for another, or for room at its queue pair. Where ports pause each
        other everything is looked at slot by slot.
        """
        waits = any(flow.after or flow.after_sent for flow in self.flows)
        shares = len(self.pairs) < sum(not flow.is_wait for flow in self.flows) or any(
            pair.posts > most_posts for pair in self.pairs
        )
        return 1 if waits or shares or network.switching.pause is not None else network.ahead_slots[0]

    def columns(self) -> dict[str, NDArray[np.int64]]:
        """Return what else is kept, as arrays by their names, to be written and to be filled."""
        return {}

    def state(self) -> "BoardState":
        """Return how far all flows are, to be kept."""
        return BoardState(self._progress, self._queues, self._full, self._starts, self.open)

    def set_state(self, state: "BoardState") -> None:
        """Take up what was kept."""
        if (len(state.progress), len(state.queues)) != (len(self._progress), len(self._queues)):
            raise ValueError("it keeps other flows")
        self._progress, self._queues, self._full, self._starts, self.open = state[:5]

    def next_start_ps(self) -> int | None:
        """Return when the next flow begins, as far as that is known."""
        return self._starts[0][0] if self._starts else None

    @property
    def is_full(self) -> bool:
        """Return whether a queue pair has more messages to take than it could."""
        return bool(self._full)

    def start(self, now_ps: int, endpoints: Carriers) -> bool:
        """Begin every flow whose time has come; return whether there was one."""
        due = self._due(now_ps)
        if not due:
            return False
        failed = endpoints.failed([self.pair_of[i] for _, i in due])
        begun: dict[int, None] = {}
        for at_ps, i in due:
            pair = self.pair_of[i]
            queue = self._queues[pair]
            self._progress[i].began_ps = at_ps
            packets = -(-self.flows[i].size // self.payload)
            queue.ends.append(packets + (queue.ends[-1] if queue.ends else 0))
            queue.flows.append(i)
            if pair in failed:
                self._fail(pair, failed[pair])
            else:
                begun[pair] = None
        pairs = list(begun)
        self._aim(pairs, endpoints)
        self._post_first(pairs, endpoints)
        for pair in pairs:
            if not self._queues[pair].is_posted:
                self._post(pair, endpoints)
        return bool(pairs)

    def _due(self, now_ps: int) -> list[tuple[int, int]]:
        """Take the flows whose time has come out of those that begin later, and end those that only stand for time."""
        due: list[tuple[int, int]] = []
        while self._starts and self._starts[0][0] <= now_ps:
            at_ps, i = heapq.heappop(self._starts)
            if self.flows[i].is_wait:
                self._waited(i, at_ps)
            else:
                due.append((at_ps, i))
        return due

    def _waited(self, i: int, at_ps: int) -> None:
        """End a flow that only stands for time; what waits for it may begin at once."""
        progress = self._progress[i]
        if progress.failure:
            return
        progress.began_ps, progress.acknowledged_ps = at_ps - self.flows[i].at_ps, at_ps
        self.open -= self.flows[i].counted
        self._release(self._sent_followers.get(i, ()), at_ps)
        self._arrived(i, at_ps)

    def _post_first(self, pairs: Sequence[int], endpoints: Carriers) -> None:
        """Post the next message of each of `pairs`, all of them by one question."""
        waiting = [pair for pair in pairs if not self._queues[pair].is_posted]
        lengths = [self._next_length(self._queues[pair]) for pair in waiting]
        for pair, length, taken in zip(waiting, lengths, endpoints.post_many(waiting, lengths), strict=True):
            if taken:
                self._posted(self._queues[pair], length)

    def _next_length(self, queue: _Queue) -> int:
        """Return the bytes of the next message of the first flow that waits at a pair."""
        return min(self._progress[queue.flows[queue.posted]].unsent, self._whole)

    def _posted(self, queue: _Queue, length: int) -> None:
        """Note that a message of the first flow that waits at a pair was posted."""
        progress = self._progress[queue.flows[queue.posted]]
        progress.unsent -= length
        if progress.unsent == 0:
            queue.posted += 1

    def _aim(self, pairs: Sequence[int], endpoints: Carriers) -> None:
        """Tell the endpoints by which packets the flows at the heads of the queues of `pairs` are over."""
        if pairs:
            arrived, known = zip(*(self._queues[pair].goals() for pair in pairs), strict=True)
            endpoints.set_goals(pairs, arrived, known)

    def _post(self, pair: int, endpoints: Carriers) -> None:
        """Post messages of the pair's flows in turn, as long as it takes them."""
        queue = self._queues[pair]
        while not queue.is_posted:
            length = self._next_length(queue)
            if not endpoints.post(pair, length):
                self._full.add(pair)
                return
            self._posted(queue, length)
        self._full.discard(pair)

    def on_events(self, events: Any, endpoints: Carriers) -> None:
        """Take in what was completed, in order, a row for each as an `Event` has it."""
        rows = np.asarray(events, np.int64).reshape(-1, 3)
        reached = endpoints.reached(rows[:, 1])
        for (time_ps, pair, kind), arrived, known in zip(rows.tolist(), *reached, strict=True):
            queue = self._queues[pair]
            last = len(queue.ends)
            if kind == ARRIVED:
                while queue.arrived < last and queue.ends[queue.arrived] <= arrived:
                    self._arrived(queue.flows[queue.arrived], time_ps)
                    queue.arrived += 1
                if queue.arrived < last:
                    self._aim([pair], endpoints)
            elif kind == ACKNOWLEDGED:
                while queue.known < last and queue.ends[queue.known] <= known:
                    self._known(queue.flows[queue.known], time_ps)
                    queue.known += 1
                if queue.known < last:
                    self._aim([pair], endpoints)
            else:
                self._fail(pair, endpoints.failed([pair])[pair])

    def repost(self, endpoints: Carriers) -> None:
        """Post what did not fit before."""
        for pair in sorted(self._full):
            self._post(pair, endpoints)

    def _arrived(self, i: int, time_ps: int) -> None:
        self._progress[i].arrived_ps = time_ps
        if self._followers[i]:
            self._release(self._followers[i], time_ps)

    def _known(self, i: int, time_ps: int) -> None:
        self._progress[i].acknowledged_ps = time_ps
        self.open -= self.flows[i].counted
        if i in self._sent_followers:
            self._release(self._sent_followers[i], time_ps)

    def _release(self, followers: Sequence[int], time_ps: int) -> None:
        """Let flows begin that have waited for the last one that they had to wait for."""
        for follower in followers:
            progress = self._progress[follower]
            progress.waits_for -= 1
            if progress.waits_for == 0:
                heapq.heappush(self._starts, (time_ps + self.flows[follower].at_ps, follower))

    def fail_all(self, failure: str) -> None:
        """End every flow that is not over, begun or not."""
        for i, progress in enumerate(self._progress):
            if progress.acknowledged_ps < 0 and not progress.failure:
                progress.failure = failure
                self.open -= self.flows[i].counted

    def _fail(self, pair: int, failure: str) -> None:
        """End every flow of a pair that has failed, and every flow that waits for one of them."""
        queue = self._queues[pair]
        ended = queue.flows[queue.known :]
        self._full.discard(pair)
        queue.posted = queue.arrived = queue.known = len(queue.flows)
        while ended:
            i = ended.pop()
            if self._progress[i].failure:
                continue
            self._progress[i].failure = failure
            self.open -= self.flows[i].counted
            if self._progress[i].arrived_ps < 0:
                ended += self._followers[i]
            ended += self._sent_followers.get(i, ())
