"""Logs of trainings by their steps: MLPerf's `:::MLLOG`, torchtitan, Megatron-LM, NeMo, and weft's own run folders."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from weft.core.errors import WeftError
from weft.core.quantity import counted
from weft.diagnosis.rank_steps import RankSteps
from weft.diagnosis.step_series import StepSeries
from weft.doctor.readers.base import FileToRead, UnreadableError
from weft.doctor.readers.evidence import DeviceSample, Evidence

_NUMBER = r"([-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|nan|inf))"
_TITAN = re.compile(rf"step:\s*(\d+)\s+loss:\s*{_NUMBER}")
_MEGATRON = re.compile(r"iteration\s+(\d+)/\s*\d+")
_NEMO = re.compile(r"train_step_timing in s['\"]?\s*[:=]\s*([0-9.]+)")
_BATCH = re.compile(r"global[_ ]batch[_ ]size['\"]?[\s.:=]*(\d+)", re.IGNORECASE)
_LENGTH = re.compile(r"(?:seq(?:uence)?[_ ]len(?:gth)?)['\"]?[\s.:=]*(\d+)", re.IGNORECASE)
_MLLOG = ":::MLLOG"
_LARGEST = 1e18
_Row: TypeAlias = tuple[int, float, float]
"""A step, its seconds and its loss."""
_MOMENTS = frozenset({"init_start", "init_stop", "run_start", "run_stop"})


def _figure(text: str, name: str) -> float | None:
    found = re.search(rf"{name}\s*[:=]\s*{_NUMBER}", text)
    return _number(found.group(1)) if found else None


def _number(text: str) -> float:
    """Return a number whose thousands may be set apart by commas; in some languages a comma is the decimal point."""
    decimal = "," in text and not re.search(r"^[-+]?\d{1,3}(?:,\d{3})+(?:\.|[eE]|$)", text)
    return float(text.replace(",", ".") if decimal and text.count(",") == 1 else text.replace(",", ""))


class MlperfReader:
    """Reads MLPerf training logs."""

    name = "MLPerf log"

    def recognises(self, file: FileToRead) -> bool:
        """Return whether it has its lines."""
        return _MLLOG in file.text_head or ("mlperf" in file.text_head.lower() and any(map(_is_mllog, file.lines())))

    def read(self, file: FileToRead, evidence: Evidence) -> str:
        """Read step times, cold start, batch and the hardware's size."""
        said = _Mllog()
        for entry in _mllog(file):
            said.take(entry)
        evidence.samples += [
            DeviceSample(f"host {host}", "power_reading", "W", sum(own) / len(own), min(own), max(own), len(own))
            for host, own in sorted(said.watts.items())
        ]
        about, steps, times = said.about, said.steps, said.times
        if not steps and said.watts:
            return f"power of {counted(len(said.watts), 'host')}, {sum(map(len, said.watts.values())):,} readings"
        if not steps:
            raise UnreadableError(f"{file.path} has no step times (tracked_stats.train_step_time) in its MLLOG lines")
        cold = (
            (times["init_stop"] - times["init_start"]) / 1000 if {"init_start", "init_stop"} <= times.keys() else None
        )
        gpus = _gpus(str(about.get("submission_platform", "")), said.ranks)
        tokens = _tokens(about)
        # Not a number is unlike itself.
        known = said.losses if all(loss == loss for loss in said.losses) else []  # noqa: PLR0124
        evidence.series.append(StepSeries(
            steps, said.seconds, known, tokens, gpus, None, cold, str(about.get("submission_benchmark", file.name))
        ))  # fmt: skip
        return f"{about.get('submission_benchmark', 'a training')}, {len(steps)} step times" + (
            f", {gpus} GPUs" if gpus else ""
        )


@dataclass
class _Mllog:
    """What the lines of a log say together."""

    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)
    watts: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    ranks: int = 0

    def take(self, entry: Mapping[str, Any]) -> None:
        """Take one line."""
        key, value, metadata = str(entry.get("key", "")), entry.get("value"), entry.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        if key == "tracked_stats" and isinstance(value, Mapping):
            self._step(value, metadata)
        elif key in _MOMENTS:
            moment = _plain(entry.get("time_ms"))
            if moment is not None:
                self.ranks += key == "init_start"
                self.times.setdefault(key, int(moment))
        elif key == "power_reading":
            self.watts[str(metadata.get("host", "node"))].append(_plain(value) or 0.0)
        elif value is not None:
            self.about[key] = value

    def _step(self, value: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        took, rate = _plain(value.get("train_step_time")), _plain(value.get("throughput"))
        batch = _plain(self.about.get("global_batch_size"))
        if took is None and rate and batch:
            took = batch / rate  # samples a second, in results up to v4.0
        loss = _plain(value.get("reduced_train_loss", value.get("train_loss")))
        step = _plain(metadata.get("step", metadata.get("step_num")))
        if took is not None and took > 0:
            self.steps.append(len(self.steps) if step is None else int(step))
            self.seconds.append(took)
            self.losses.append(float("nan") if loss is None else loss)


def _is_mllog(line: str) -> bool:
    return _MLLOG in line


def _mllog(file: FileToRead) -> Iterator[dict[str, Any]]:
    for line in file.lines():
        at = line.find(_MLLOG)
        if at < 0:
            continue
        try:
            entry = json.loads(line[at + len(_MLLOG) :])
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            yield entry


def _plain(value: Any) -> float | None:
    """Return a value of a log as a number, None where it is none."""
    return float(value) if isinstance(value, int | float) and abs(value) < _LARGEST else None


def _gpus(platform: str, ranks: int) -> int | None:
    """Return the number of GPUs that a platform names, as in 1xXE9680Lx8B200-SXM, else of processes that began."""
    nodes = re.match(r"(\d+)x", platform)
    rest = platform[nodes.end() :] if nodes else platform
    each = re.search(r"(\d+)x[A-Z]", rest) or re.search(r"x(\d+)[A-Z]*\d*", rest)
    if nodes and each:
        return int(nodes.group(1)) * int(each.group(1))
    return ranks or None


def _tokens(about: Mapping[str, Any]) -> float | None:
    batch, length = about.get("global_batch_size"), about.get("max_sequence_length")
    batch, length = _plain(batch), _plain(length)
    return batch * length if batch and length else None


class TrainingLogReader:
    """Reads the lines that torchtitan, Megatron-LM and NeMo print for every step."""

    name = "training log"

    def recognises(self, file: FileToRead) -> bool:
        """Return whether it has lines of one of them."""
        head = file.log_head
        return (file.is_text and any(pattern.search(head) for pattern in (_TITAN, _MEGATRON, _NEMO))) or (
            file.is_text and self._later(file)
        )

    def _later(self, file: FileToRead) -> bool:
        """Return whether such lines come after a long beginning."""
        if not re.search(r"megatron|torchtitan|nemo", file.text_head, re.IGNORECASE):
            return False
        return any(any(pattern.search(line) for pattern in (_TITAN, _MEGATRON, _NEMO)) for line in file.log_lines())

    def read(self, file: FileToRead, evidence: Evidence) -> str:
        """Read step, time and loss of each line."""
        rows: list[_Row] = []
        batch: float | None = None
        length: float | None = None
        gpus: int | None = None
        kind = "a training"
        last_time: tuple[int, float] | None = None
        for line in file.log_lines():
            # NeMo's lines speak of an iteration too, so that its own word is looked for first.
            if (timing := _NEMO.search(line)) is not None:
                kind, took = "NeMo", float(timing.group(1))
                at = re.search(r"(?:iteration|global_step|step)['\"]?\s*[:=]?\s*(\d+)", line)
                step = int(at.group(1)) if at else len(rows)
                loss = _figure(line, "reduced_train_loss")
            elif (found := _MEGATRON.search(line)) is not None:
                kind, step = "Megatron-LM", int(found.group(1))
                took, in_ms = (_figure(line, rf"elapsed time per iteration \({unit}\)") for unit in ("s", "ms"))
                took = took if in_ms is None else in_ms / 1000
                batch = _figure(line, "global batch size") or batch
                loss = _figure(line, "lm loss") or _figure(line, "loss")
            elif (found := _TITAN.search(line)) is not None:
                kind, step, loss = "torchtitan", int(found.group(1)), _number(found.group(2))
                took, last_time = _titan_seconds(line, step, last_time)
            else:
                gpus = gpus or _world(line)
                batch, length = batch or _named(line, _BATCH), length or _named(line, _LENGTH)
                continue
            if took is not None and took > 0:
                rows.append((step, took, float("nan") if loss is None else loss))
        if not rows:
            raise UnreadableError(f"{file.path} names steps but no time of a step")
        tokens = batch * length if batch and length else None
        runs = _runs(rows)
        for number, own in enumerate(runs, 1):
            steps, seconds, losses = (list(column) for column in zip(*own, strict=True))
            known = losses if all(loss == loss for loss in losses) else []  # noqa: PLR0124 - the same
            name = f"{kind}, run {number}" if len(runs) > 1 else kind
            evidence.series.append(StepSeries(steps, seconds, known, tokens, gpus, None, None, name))
        return f"{kind}, {sum(map(len, runs))} step times" + (f" of {len(runs)} runs" if len(runs) > 1 else "")


def _runs(rows: list[_Row]) -> list[list[_Row]]:
    """Return the steps of each run in a log: a new one begins where steps are counted from the beginning again.

    Several ranks may have written the same step; the first of them counts. Steps of a run that came back from a
    checkpoint are its own.
    """
    found: list[list[_Row]] = []
    for row in rows:
        if found and row[0] == found[-1][-1][0]:
            continue
        if not found or (row[0] <= found[-1][0][0] and found[-1][-1][0] - row[0] > 1):
            found.append([])
        found[-1].append(row)
    return found


def _titan_seconds(
    line: str, step: int, last: tuple[int, float] | None
) -> tuple[float | None, tuple[int, float] | None]:
    """Return seconds of a step from the clock at the line's beginning: torchtitan prints rates, not times."""
    stamp = re.search(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?", line)
    if stamp is None:
        return None, last
    import datetime

    year, month, day, hour, minute, second = (int(part) for part in stamp.groups()[:6])
    fraction = float(f"0.{stamp.group(7)}") if stamp.group(7) else 0.0
    try:
        now = datetime.datetime(year, month, day, hour, minute, second, tzinfo=datetime.UTC).timestamp() + fraction
    except ValueError:
        return None, last
    if last is None or step <= last[0]:
        return None, (step, now)
    return (now - last[1]) / (step - last[0]), (step, now)


def _world(line: str) -> int | None:
    found = re.search(r"world[_ ]size['\"]?[\s.:=]*(\d+)", line, re.IGNORECASE)
    return int(found.group(1)) if found else None


def _named(line: str, pattern: re.Pattern[str]) -> float | None:
    """Return a setting of the run, as a list of arguments (with dots) or a sentence gives it."""
    found = pattern.search(line)
    return float(found.group(1)) if found else None


class RunFolderReader:
    """Reads the metrics of weft's own run folders; name the folder or its `metrics.jsonl`."""

    name = "weft run"

    def recognises(self, file: FileToRead) -> bool:
        """Return whether it is a run's metrics."""
        return file.name == "metrics.jsonl" and b'"loss_bits"' in file.head

    def read(self, file: FileToRead, evidence: Evidence) -> str:
        """Read steps and losses, and what the supervisor wrote about incidents."""
        steps: list[int] = []
        seconds: list[float] = []
        losses: list[float] = []
        tokens: float | None = None
        phases: dict[str, float] = {}
        lines: list[dict[str, Any]] = []
        for line in file.lines():
            try:
                entry = json.loads(line)
                spent = float(sum(entry["seconds"].values()))
                steps.append(int(entry["step"]))
                seconds.append(spent)
                losses.append(float("nan") if entry["loss"] is None else float(entry["loss"]))
                tokens = float(entry["tokens"])
                for name, each in entry["seconds"].items():
                    phases[name] = phases.get(name, 0.0) + float(each)
                lines.append(entry)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # The last line of a run that was killed may be half written.
        if not steps:
            raise UnreadableError(f"{file.path} has no steps")
        incidents = _incidents(file, evidence, sum(seconds))
        gpus = _rank_steps(file, lines, evidence)
        evidence.series.append(StepSeries(steps, seconds, losses, tokens, gpus, None, None, file.path.parent.name,
                                          {name: spent / len(steps) for name, spent in phases.items()}))  # fmt: skip
        return f"{len(steps)} steps" + (f", {incidents} incidents" if incidents else "")


def _rank_steps(file: FileToRead, lines: list[dict[str, Any]], evidence: Evidence) -> int | None:
    """Add what ranks spent in the steps of the newest session, and return how many there are."""
    ranks = len(lines[-1].get("rank_seconds", ()))
    # Steps that were done again, and those of another number of ranks, are none to compare with.
    lines = [line for line in lines if len(line.get("rank_input", ())) == ranks and "redo" not in line["seconds"]]
    if not ranks or not lines:
        return ranks or None
    plan: dict[str, Any] = {}
    try:
        sessions = [json.loads(line) for line in (file.path.parent / "sessions.jsonl").read_text().splitlines()]
        plan = next((one["plan"] for one in reversed(sessions) if "plan" in one), {})
    except (OSError, ValueError, TypeError):
        pass  # without it all ranks are taken for peers
    stages = max(1, int(plan.get("pp", 1)))
    computed = np.array([line["rank_seconds"] for line in lines], dtype=np.float64)
    batches = np.array([line.get("rank_batches") or [1] * ranks for line in lines], dtype=np.float64)
    working = ("compute", "exposed_communication", "bubble", "input")
    evidence.rank_steps.append(RankSteps(
        np.array([int(line["step"]) for line in lines]),
        np.array([sum(line["seconds"].get(kind, 0.0) for kind in working) for line in lines]),
        computed / np.maximum(batches, 1), batches,
        np.array([line["rank_input"] for line in lines], dtype=np.float64),
        np.arange(ranks) * stages // ranks,
        [(int(line["step"]), rank, plane) for line in lines for rank, mask in enumerate(line.get("planes_out", ()))
         for plane in range(int(mask).bit_length()) if int(mask) >> plane & 1],
    ))  # fmt: skip
    return ranks


def _incidents(file: FileToRead, evidence: Evidence, run_s: float) -> int:
    from weft.diagnosis.finding import DiagnosisFinding
    from weft.training.run_dir import RunRecord

    try:
        incidents = RunRecord(file.path.parent).incidents()
    except (WeftError, OSError):
        return 0
    for incident in incidents:
        words = {key: value for key, value in incident.items() if isinstance(value, str | int | float)}
        said = (
            incident.get("text") or incident.get("what") or ", ".join(f"{key} {value}" for key, value in words.items())
        )
        rank = incident.get("rank")
        ranks = (int(rank),) if isinstance(rank, int) else ()
        if incident.get("kind") == "stopped" and ranks:
            lost = float(incident.get("seconds_lost") or 0.0)
            evidence.findings.append(DiagnosisFinding(
                "stuck", "hang", f"rank {rank}",
                f"Rank {rank} stopped in step {int(incident.get('step', 0)) + 1}, and the others waited for it:"
                f" {incident.get('action', 'nothing was done about it')}.",
                (str(incident.get("seen", "it made no progress")),), 0.95, None,
                min(1.0, lost / (run_s + lost)) if run_s + lost > 0 else None, "intermittent", incident.get("step"),
                ranks,
            ))  # fmt: skip
            continue
        evidence.findings.append(DiagnosisFinding(
            "note", "incident", f"rank {rank}" if ranks else "", f"The supervisor wrote: {said}"[:300], (), 1.0, None,
            None, "", None, ranks,
        ))  # fmt: skip
    return len(incidents)
