"""Flows that have nothing to do with each other, kept in columns: begun and ended many at a time.

A permutation, an incast or a matrix without triggers: each flow has a queue pair to itself, is one message, and nobody
waits for it. Whatever is more is a `FlowBoard`'s.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from weft.netsim.host.host_state import ACKNOWLEDGED, ARRIVED, FAILED
from weft.netsim.model.flow import Flow
from weft.netsim.model.flow_board import BoardState, FlowBoard, FlowProgress, largest_message
from weft.netsim.model.queue_pairs import Carriers

_BEGAN, _ARRIVED, _KNOWN = range(3)


class IndependentFlows(FlowBoard):
    """All flows of such a run."""

    @override
    def _note_flows(self) -> None:
        self._times = np.full((3, len(self.flows)), -1, np.int64)
        self._failures: dict[int, str] = {}
        self._begun = 0
        self._pair = np.array(self.pair_of, np.int64)
        self._flow_of = np.argsort(self._pair)
        self._sizes = np.array([flow.size for flow in self.flows], np.int64)
        self._packets = -(-self._sizes // self.payload)
        self._counted = np.array([flow.counted for flow in self.flows], np.bool_)

    @property
    @override
    def progress(self) -> Sequence[FlowProgress]:
        """Return how far every flow is."""
        rows = enumerate(self._times.T.tolist())
        return [FlowProgress(began, arrived, known, self._failures.get(i, "")) for i, (began, arrived, known) in rows]

    @override
    def columns(self) -> dict[str, NDArray[np.int64]]:
        """Return what else is kept: the times of flows."""
        return {"times": self._times}

    @override
    def state(self) -> BoardState:
        """Return how far all flows are, to be kept."""
        return BoardState([], [], set(), [], self.open, self._begun, self._failures)

    @override
    def set_state(self, state: BoardState) -> None:
        """Take up what was kept."""
        self.open, self._begun, self._failures = state.open, state.begun, state.failures

    @override
    def next_start_ps(self) -> int | None:
        """Return when the next flow begins."""
        return self._starts[self._begun][0] if self._begun < len(self._starts) else None

    @override
    def start(self, now_ps: int, endpoints: Carriers) -> bool:
        """Begin every flow whose time has come; return whether there was one."""
        first, self._begun = self._begun, bisect_right(self._starts, (now_ps, len(self.flows)), self._begun)
        if first == self._begun:
            return False
        at_ps, flows = np.array(self._starts[first : self._begun], np.int64).T
        self._times[_BEGAN, flows] = at_ps
        failed = endpoints.failed(self._pair[flows])
        for pair, failure in failed.items():
            self._fail(pair, failure)
        flows = flows[~np.isin(self._pair[flows], list(failed))]
        pairs, ends = self._pair[flows], self._packets[flows]
        endpoints.set_goals(pairs, ends, ends)
        taken = endpoints.post_many(pairs, self._sizes[flows])
        assert all(taken), "a queue pair that has not failed takes its first message"
        return len(flows) > 0

    @override
    def on_events(self, events: Any, endpoints: Carriers) -> None:
        """Take in what was completed, in order, a row for each as an `Event` has it."""
        rows = np.asarray(events, np.int64).reshape(-1, 3)
        if (rows[:, 2] == FAILED).any():
            # What comes after a failure counts no more.
            for place, (_, pair, kind) in enumerate(rows.tolist()):
                self._note(rows[place : place + 1])
                if kind == FAILED:
                    self._fail(pair, endpoints.failed([pair])[pair])
        else:
            self._note(rows)

    def _note(self, rows: Any) -> None:
        """Note when flows that have not failed arrived, and when their senders knew."""
        flows = self._flow_of[rows[:, 1]]
        if self._failures:
            alive = ~np.isin(flows, list(self._failures))
            rows, flows = rows[alive], flows[alive]
        for kind, column in ((ARRIVED, _ARRIVED), (ACKNOWLEDGED, _KNOWN)):
            chosen = rows[:, 2] == kind
            self._times[column, flows[chosen]] = rows[chosen, 0]
        self.open -= int(self._counted[flows[rows[:, 2] == ACKNOWLEDGED]].sum())

    @override
    def fail_all(self, failure: str) -> None:
        """End every flow that is not over, begun or not."""
        for pair in self._pair.tolist():
            self._fail(pair, failure)

    @override
    def _fail(self, pair: int, failure: str) -> None:
        i = int(self._flow_of[pair])
        if self._times[_KNOWN, i] < 0 and i not in self._failures:
            self._failures[i] = failure
            self.open -= int(self._counted[i])


def flow_board(flows: Sequence[Flow], payload: int) -> FlowBoard:
    """Return the lightest board that holds `flows`."""
    alone = len({(flow.source, flow.destination, flow.lane, flow.uplinks) for flow in flows}) == len(flows)
    waits = any(flow.is_wait or flow.after or flow.after_sent for flow in flows)
    long = any(flow.size > largest_message(payload) for flow in flows)
    return IndependentFlows(flows, payload) if alone and not waits and not long else FlowBoard(flows, payload)
