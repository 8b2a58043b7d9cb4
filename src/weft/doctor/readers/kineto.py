"""Traces of torch's profiler (Kineto) and other Chrome traces: kernels by stream, event by event, of any length."""

import codecs
import math
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from weft.core.errors import UsageError
from weft.diagnosis.timeline import BusyTime, KernelClass, kernel_class
from weft.doctor.readers.base import FileToRead, UnreadableError
from weft.doctor.readers.evidence import Evidence

_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
_US = 1e-6
_MOST_NAMES = 100_000
_NO_NUMBER = re.compile(rb"([:,\[]\s*)[-+]?(?:NaN|nan|Infinity|inf)\b")


class KinetoReader:
    """Reads Chrome traces."""

    name = "profiler trace"

    def recognises(self, file: FileToRead) -> bool:
        """Return whether it is JSON with trace events."""
        head = file.text_head.lstrip()
        # Of many ranks, their groups alone may fill the head, before the first event.
        words = ('"traceEvents"', '"ph"', '"distributedInfo"', '"deviceProperties"')
        return head[:1] in "[{" and head != "" and any(word in head for word in words)

    def read(self, file: FileToRead, evidence: Evidence) -> str:
        """Read its kernels, joining those that follow each other, so that their number does not matter."""
        busy = BusyTime()
        known: dict[tuple[str, str], KernelClass] = {}
        events = kernels = 0
        about: dict[str, Any] = {}
        for event in _events(file, about):
            events += 1
            category = event.get("cat") if isinstance(event, dict) else None
            if not isinstance(category, str) or category not in _ON_DEVICE or event.get("ph") != "X":
                continue
            span = _span(event)
            if span is None:
                continue
            name = str(event.get("name", ""))
            kind = known.get((name, category))
            if kind is None:
                if len(known) >= _MOST_NAMES:
                    known.clear()
                kind = known[name, category] = kernel_class(name, category)
            busy.add(kind, *span)
            kernels += 1
        rank = about.get("rank", file.rank)
        if not kernels:
            return f"{events:,} events, none of them on a device"
        evidence.timelines.append(busy.shares(-1 if rank is None else int(rank), file.name))
        whose = "" if rank is None else f" of rank {rank}"
        whole = f" of {about['world']}" if about.get("world") else ""
        return f"{events:,} events{whose}{whole}, {kernels:,} kernels"


class _Cleaned:
    """A trace as JSON: what torch writes for numbers that are none becomes null, and what is no text is replaced."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.kept = stream, b""
        self.text = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, size: int = -1) -> bytes:
        """Return about `size` bytes; what stands behind the last comma may be half a word, and waits for the rest."""
        at = 0
        while size and at <= 0:
            data = self.stream.read(size)
            self.kept += self.text.decode(data, final=not data).encode()
            at = self.kept.rfind(b",", 1) if data else len(self.kept)
            if not data:
                break
        whole, self.kept = self.kept[:at], self.kept[at:]
        return _NO_NUMBER.sub(rb"\1null", whole)


def _span(event: dict[str, Any]) -> tuple[float, float] | None:
    """Return when an event begins and ends, None where it does not say so."""
    try:
        begin, took = float(event["ts"]) * _US, float(event.get("dur", 0.0)) * _US
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return (begin, begin + took) if math.isfinite(begin + took) and took >= 0 else None


def _events(file: FileToRead, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the trace's events one by one; `about` takes rank and number of ranks when they come by."""
    try:
        import ijson
    except ImportError:
        raise UsageError("traces are read with ijson; install it with pip install 'weft[doctor]'") from None

    if file.text_head.lstrip().startswith("["):
        path = "item"
    else:
        path = "traceEvents.item"
        # What stands before the events fits into the head; what stands behind them is not worth a second reading.
        about |= _distributed(file.text_head)
    any_event = False
    try:
        with file.open() as stream:
            for event in ijson.items(_Cleaned(stream), path, use_float=True):
                any_event = True
                yield event
    except ijson.JSONError as error:
        if not any_event:
            raise UnreadableError(f"{file.path} is no whole trace: {str(error).splitlines()[0]}") from None
        file.note("it is cut off or damaged; the events before that were read")


def _distributed(head: str) -> dict[str, Any]:
    begin = head.find('"distributedInfo"')
    if begin < 0:
        return {}
    about: dict[str, Any] = {}
    for key, name in (("rank", "rank"), ("world_size", "world")):
        value = re.search(rf'"{key}"\s*:\s*(\d+)', head[begin:])
        if value is not None:
            about[name] = int(value.group(1))
    return about
