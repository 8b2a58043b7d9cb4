"""Metrics of runs and of the cluster for Prometheus: read from the same files and interface as the pages.

`METRICS` names every metric; dashboards and alert rules in `deploy` speak of these and no others.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from weft.core.errors import WeftError
from weft.web.console.cluster_window import ClusterWindow
from weft.web.console.run_files import RunLibrary

CONTENT_TYPE = "text/plain; version=0.0.4"
_MOST_RUNS = 100
STATES = ("running", "finished", "interrupted")
METRICS = {
    "weft_run_state": "1 for the state that a run is in",
    "weft_run_step": "Steps done",
    "weft_run_steps_asked": "Steps that the job asks for",
    "weft_run_loss": "Loss of the newest step",
    "weft_run_tokens_per_second": "Tokens per second of the newest step",
    "weft_run_step_seconds": "Seconds of the newest step by class of time",
    "weft_run_gpu_seconds_total": "GPU-seconds by class of time",
    "weft_run_incidents_total": "Incidents by kind",
    "weft_run_slowest_rank_ratio": "Seconds that the slowest rank computed in the newest step over the median rank",
    "weft_run_ranks_with_lost_planes": "Ranks from which some plane carries nothing",
    "weft_cluster_up": "Whether the cluster of this machine answers",
    "weft_cluster_nodes": "Nodes by state",
    "weft_cluster_jobs": "Jobs by state",
    "weft_cluster_team_gpus": "GPUs that a team holds",
    "weft_cluster_team_quota_gpus": "GPUs of a team's quota",
    "weft_cluster_alarms": "Alarms that are raised",
    "weft_cluster_engine_age_seconds": "Seconds since the engine last came round",
    "weft_cluster_disk_free_bytes": "Free bytes of the disk with the cluster's state",
}
"""Every metric with its help, as it is exposed."""


def exposed(runs: RunLibrary, window: ClusterWindow | None) -> bytes:
    """Return the metrics as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Console(runs, window))
    return generate_latest(registry)


class _Console(Collector):
    """Collects from a library of runs and a cluster."""

    def __init__(self, runs: RunLibrary, window: ClusterWindow | None) -> None:
        self._runs, self._window = runs, window

    @override
    def collect(self) -> Iterator[Metric]:
        yield from _of_runs(self._runs)
        yield from _of_cluster(self._window)


def _gauge(name: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, METRICS[name], labels=labels)


def _counter(name: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name.removesuffix("_total"), METRICS[name], labels=labels)


class _OfRuns:
    """The metrics of all runs, filled run by run."""

    def __init__(self) -> None:
        self.state = _gauge("weft_run_state", "run", "state")
        self.step, self.asked = _gauge("weft_run_step", "run"), _gauge("weft_run_steps_asked", "run")
        self.loss, self.speed = _gauge("weft_run_loss", "run"), _gauge("weft_run_tokens_per_second", "run")
        self.parts = _gauge("weft_run_step_seconds", "run", "class")
        self.spent = _counter("weft_run_gpu_seconds_total", "run", "class")
        self.incidents = _counter("weft_run_incidents_total", "run", "kind")
        self.slowest = _gauge("weft_run_slowest_rank_ratio", "run")
        self.planes = _gauge("weft_run_ranks_with_lost_planes", "run")

    def add(self, run: str, shown: Mapping[str, Any]) -> None:
        """Take one run as its page has it."""
        columns = shown["columns"]
        for each in STATES:
            self.state.add_metric([run, each], float(shown["state"] == each))
        self.asked.add_metric([run], shown["steps_asked"])
        self.step.add_metric([run], columns["step"][-1] if columns["step"] else 0)
        for kind, seconds in shown["gpu_seconds"].items():
            self.spent.add_metric([run, kind], seconds)
        for kind, count in Counter(str(line["kind"]) for line in shown["incidents"]).items():
            self.incidents.add_metric([run, kind], count)
        if columns["step"]:
            self._newest(run, columns)

    def _newest(self, run: str, columns: Mapping[str, Any]) -> None:
        """Take the newest step."""
        for family, values in ((self.loss, columns["loss"]), (self.speed, columns["tokens_per_s"])):
            if values[-1] is not None:
                family.add_metric([run], values[-1])
        for kind, values in columns["seconds"].items():
            self.parts.add_metric([run, kind], values[-1])
        if ranks := sorted(value for value in columns["rank_seconds"][-1] if value):
            self.slowest.add_metric([run], ranks[-1] / ranks[len(ranks) // 2])
        self.planes.add_metric([run], sum(mask > 0 for mask in columns["planes_out"][-1]))


def _of_runs(runs: RunLibrary) -> Iterator[Metric]:
    families = _OfRuns()
    for name in list(reversed(runs.records()))[:_MOST_RUNS]:
        try:
            families.add(name, runs.shown(name))
        except WeftError:
            # A folder that cannot be read is shown as such on the page; it has no figures.
            continue
    yield from vars(families).values()


def _of_cluster(window: ClusterWindow | None) -> Iterator[Metric]:
    shown = None if window is None else window.shown()
    up = _gauge("weft_cluster_up")
    up.add_metric([], float(shown is not None and shown["up"]))
    yield up
    if shown is None or not shown["up"]:
        return
    status = shown["status"]
    nodes, jobs = _gauge("weft_cluster_nodes", "state"), _gauge("weft_cluster_jobs", "state")
    states = [node["state"] for node in status["nodes"]]
    for each in sorted(set(states)):
        nodes.add_metric([each], states.count(each))
    for name, count in status["jobs"].items():
        jobs.add_metric([name], count)
    held, quota = _gauge("weft_cluster_team_gpus", "team"), _gauge("weft_cluster_team_quota_gpus", "team")
    for team in status["teams"]:
        held.add_metric([team["name"]], team["holds_gpus"])
        quota.add_metric([team["name"]], team["quota_gpus"])
    alarms, age, disk = (_gauge(f"weft_cluster_{name}") for name in ("alarms", "engine_age_seconds", "disk_free_bytes"))
    alarms.add_metric([], len(status["alarms"]))
    age.add_metric([], status["health"]["turned_s_ago"])
    disk.add_metric([], status["health"]["disk_free_bytes"])
    yield from (nodes, jobs, held, quota, alarms, age, disk)
