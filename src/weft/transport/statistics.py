"""What an endpoint has counted: by queue pair, EV and plane under the simulator's names, and as Prometheus metrics."""

from collections.abc import Iterator
from typing import Any

from weft.mrc.columns import EV_STATE_NAMES
from weft.transport.endpoint import Endpoint
from weft.transport.memory.layout import COUNTERS
from weft.transport.queue_pair import QueuePair, error_name

SENDER_COUNTERS = (
    *("sent", "resent", "trims", "marks", "silent", "spurious", "timeouts", "probes", "ev_probes"),
    *("retired", "refused", "readmitted", "reused_ev", "bad_acks", "cwnd", "delivered_bytes"),
)
RECEIVER_COUNTERS = ("accepted", "duplicates", "marked", "trimmed", "outside", "sacks", "nacks", "received_bytes")
"""Counters of a queue pair; the simulator's report has the same names."""
PEER_COUNTERS = ("skips", "window_cuts")
"""What answers did besides: turns that paths were made to skip, and windows made smaller."""


def statistics(endpoint: Endpoint) -> dict[str, Any]:
    """Return everything that was counted, ready for JSON."""
    state = endpoint.state
    hub = state.hub[0]
    return {
        "port": endpoint.port,
        "endpoint": {name: int(hub[name]) for name in COUNTERS},
        "queue_pairs": [_pair(endpoint, pair) for pair in endpoint.pairs()],
    }


def _pair(endpoint: Endpoint, pair: QueuePair) -> dict[str, Any]:
    state, index = endpoint.state, pair.index
    sender, receiver = state.sender.qp[index], state.receiver.qp[index]
    counted = {name: int(sender[name]) for name in SENDER_COUNTERS}
    counted |= {name: int(receiver[name]) for name in RECEIVER_COUNTERS}
    counted |= {name: int(state.peers[index][name]) for name in PEER_COUNTERS}
    return {
        "peer": pair.name,
        "failure": error_name(pair.failure) if pair.failure else "",
        "counters": counted,
        "planes": [_plane(endpoint, index, plane) for plane in range(endpoint.underlay.planes)],
        "evs": list(_evs(endpoint, index)),
    }


def _plane(endpoint: Endpoint, index: int, plane: int) -> dict[str, int]:
    evs, paths = endpoint.state.sender.evs[index], endpoint.state.paths[index]
    here = evs["plane"] == plane
    found = {"plane": plane, "active": int(endpoint.state.sender.planes[index, plane]["active"])}
    return found | {name: int(paths[name][here].sum()) for name in ("sent", "resent", "bytes")}


def _evs(endpoint: Endpoint, index: int) -> Iterator[dict[str, Any]]:
    for ev, path in zip(endpoint.state.sender.evs[index], endpoint.state.paths[index], strict=True):
        if ev["value"] >= 0:
            yield {
                "ev": int(ev["value"]),
                "plane": int(ev["plane"]),
                "state": EV_STATE_NAMES[int(ev["state"])],
                "sent": int(path["sent"]),
                "resent": int(path["resent"]),
                "bytes": int(path["bytes"]),
            }


class Metrics:
    """An endpoint as a collector of prometheus-client: `prometheus_client.REGISTRY.register(Metrics(endpoint))`."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Collect from `endpoint`."""
        self._endpoint = endpoint

    def collect(self) -> Iterator[Any]:
        """Yield one family of metrics after the other."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found = statistics(self._endpoint)
        total = CounterMetricFamily("weft_wire", "What an endpoint has counted.", labels=["what"])
        for name, value in found["endpoint"].items():
            total.add_metric([name], value)
        yield total
        counters = CounterMetricFamily("weft_wire_pair", "What a queue pair has counted.", labels=["peer", "what"])
        window = GaugeMetricFamily("weft_wire_window_bytes", "Bytes that may be in flight.", labels=["peer"])
        planes = CounterMetricFamily("weft_wire_plane", "What went out on a plane.", labels=["peer", "plane", "what"])
        states = GaugeMetricFamily("weft_wire_evs", "EVs of a plane by state.", labels=["peer", "plane", "state"])
        for pair in found["queue_pairs"]:
            for name, value in pair["counters"].items():
                if name == "cwnd":
                    window.add_metric([pair["peer"]], value)
                else:
                    counters.add_metric([pair["peer"], name], value)
            for plane in pair["planes"]:
                for name in ("sent", "resent", "bytes"):
                    planes.add_metric([pair["peer"], str(plane["plane"]), name], plane[name])
                for state in EV_STATE_NAMES:
                    count = sum(ev["plane"] == plane["plane"] and ev["state"] == state for ev in pair["evs"])
                    states.add_metric([pair["peer"], str(plane["plane"]), state], count)
        yield from (counters, window, planes, states)
