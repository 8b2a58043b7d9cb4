"""Traces of torch's profiler (Kineto) and other Chrome traces: kernels by stream, event by event, of any length."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.diagnosis.timeline import KernelClass, Kernels, kernel_class, shares
from weft.doctor.readers.base import FileToRead, UnreadableError
from weft.doctor.readers.evidence import Evidence

_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
_US = 1e-6


class KinetoReader:
    """Reads Chrome traces."""

    name = "profiler trace"

    def recognises(self, file: FileToRead) -> bool:
        """Return whether it is JSON with trace events."""
        head = file.text_head.lstrip()
        return head[:1] in "[{" and head != "" and ('"traceEvents"' in head or '"ph"' in head)

    def read(self, file: FileToRead, evidence: Evidence) -> str:
        """Read its kernels, holding two numbers of each."""
        begins: list[float] = []
        ends: list[float] = []
        kinds: list[KernelClass] = []
        known: dict[tuple[str, str], KernelClass] = {}
        events = 0
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
                kind = known[name, category] = kernel_class(name, category)
            begins.append(span[0])
            ends.append(span[1])
            kinds.append(kind)
        rank = about.get("rank", file.rank)
        if not begins:
            return f"{events:,} events, none of them on a device"
        kernels = Kernels(int(rank or 0), np.array(begins), np.array(ends), kinds, "", about.get("world"))
        evidence.timelines.append(shares(kernels))
        whose = "" if rank is None else f" of rank {rank}"
        whole = f" of {about['world']}" if about.get("world") else ""
        return f"{events:,} events{whose}{whole}, {len(begins):,} kernels"


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
    try:
        with file.open() as stream:
            yield from ijson.items(stream, path, use_float=True)
    except ijson.JSONError as error:
        raise UnreadableError(f"{file.path} is no whole trace: {str(error).splitlines()[0]}") from None


def _distributed(head: str) -> dict[str, Any]:
    import re

    found = re.search(r'"distributedInfo"\s*:\s*\{([^{}]*)', head)
    if found is None:
        return {}
    about: dict[str, Any] = {}
    for key, name in (("rank", "rank"), ("world_size", "world")):
        value = re.search(rf'"{key}"\s*:\s*(\d+)', found.group(1))
        if value is not None:
            about[name] = int(value.group(1))
    return about
