"""Reading fields of other projects' JSON: what is there, or one sentence that names where it is not as documented."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from weft.campaign.advice.foreign_queue import UnreadableQueueError

Plain = dict[str, Any]
_MS = 1000
_HOSTS = re.compile(r"([^,\[\]]*)((?:\[[^\]]*\][^,\[\]]*)*)(?:,|$)")
_LATEST_S = 10**11
_MOST_GPUS = 10**6
_MOST_ON_A_NODE = 1024
_MOST_HOSTS = 200_000
_GPU_COUNT = re.compile(r"(?:gres[/:])?gpu(?::([A-Za-z][\w.-]*))?[:=](\d+)")


def mapping(value: Any, where: str) -> Plain:
    """Return an object; nothing counts as an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnreadableQueueError(f"{where} is {_kind(value)} instead of an object")
    return value


def items(value: Any, where: str) -> list[Any]:
    """Return a list; nothing counts as an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise UnreadableQueueError(f"{where} is {_kind(value)} instead of a list")
    return value


def text(value: Any, where: str) -> str:
    """Return a string; nothing counts as an empty one, a number as its digits."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UnreadableQueueError(f"{where} is {_kind(value)} instead of text")
    return str(value)


def words(value: Any, where: str) -> list[str]:
    """Return words: newer versions list them, older ones write one, or several joined by `+` or commas."""
    if isinstance(value, list):
        return [text(each, where) for each in value]
    return [word for word in re.split(r"[+,]", text(value, where)) if word]


def number(value: Any, where: str) -> int | None:
    """Return a number: plain, or as {set, infinite, number}; nothing where it is not set or infinite."""
    if isinstance(value, dict):
        if value.get("infinite") or value.get("set") is False:
            return None
        value = value.get("number")
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UnreadableQueueError(f"{where} is {_kind(value)} instead of a number")
    try:
        found = float(value)
    except ValueError:
        raise UnreadableQueueError(f"{where} is {value!r} instead of a number") from None
    if not -(2.0**62) < found < 2.0**62:
        raise UnreadableQueueError(f"{where} is {value}, which no cluster has")
    return int(found)


def count(value: Any, where: str, most: int = 10**6) -> int | None:
    """Return a number of things that there can be."""
    found = number(value, where)
    if found is not None and not 0 <= found <= most:
        raise UnreadableQueueError(f"{where} is {found}; 0 to {most:,} can be")
    return found


def moment_ms(value: Any, where: str) -> int | None:
    """Return a time written as seconds since 1970 or as RFC 3339, in milliseconds."""
    if isinstance(value, str) and "-" in value:
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            raise UnreadableQueueError(f"{where} is {value!r} instead of a time") from None
        return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * _MS)
    seconds = count(value, where, _LATEST_S)
    return seconds * _MS if seconds else None


def gpus_in(resources: str) -> tuple[int, str]:
    """Return the GPUs that a list of resources names ("gres/gpu:a100=4,gres/gpu=4", "gpu:h100:8(S:0-1)"), and a model.

    A total without a model counts before the parts that have one.
    """
    plain, typed, model = 0, 0, ""
    for kind, digits in _GPU_COUNT.findall(re.sub(r"\([^)]*\)", "", resources)):
        if kind:
            typed, model = typed + int(digits[:12]), kind.lower()
        else:
            plain += int(digits[:12])
    if plain + typed > _MOST_GPUS:
        raise UnreadableQueueError(f"{resources[:40]!r} has more than {_MOST_GPUS:,} GPUs")
    return plain or typed, model


def node_gpus(gpus: int, name: str) -> int:
    """Return the GPUs of a node; raises where no node has so many."""
    if gpus > _MOST_ON_A_NODE:
        raise UnreadableQueueError(f"node {name[:40]!r} has {gpus:,} GPUs; {_MOST_ON_A_NODE:,} is the most")
    return gpus


def hosts(names: str) -> list[str]:
    """Return the names in a host list such as `gpu[001-003,7],login`."""
    found: list[str] = []
    for head, brackets in _HOSTS.findall(names.strip()):
        if not head and not brackets:
            continue
        found += _expanded([head], brackets)
        if len(found) > _MOST_HOSTS:
            raise UnreadableQueueError(f"the host list {names[:40]!r} names more than {_MOST_HOSTS:,} nodes")
    return found


def _expanded(heads: list[str], brackets: str) -> list[str]:
    for ranges, tail in re.findall(r"\[([^\]]*)\]([^\[\]]*)", brackets):
        numbers = list(_numbers(ranges))
        if len(numbers) * len(heads) > _MOST_HOSTS:
            raise UnreadableQueueError(f"the host list [{ranges[:40]}] names more than {_MOST_HOSTS:,} nodes")
        heads = [head + each + tail for head in heads for each in numbers]
    return heads


def _numbers(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or len(part) > 2 * 12:
            raise UnreadableQueueError(f"{part[:40]!r} in a host list is no range of numbers")
        if dash and int(last) - int(first) > _MOST_HOSTS:
            raise UnreadableQueueError(f"{part!r} in a host list names more than {_MOST_HOSTS:,} nodes")
        for each in range(int(first), int(last or first) + 1):
            yield str(each).zfill(len(first))


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return next((name for kind, name in kinds.items() if isinstance(value, kind)), "nothing")
