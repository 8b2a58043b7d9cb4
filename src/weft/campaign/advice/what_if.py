"""Changes that somebody asks about: `cancel=JOB`, `priority=JOB:N`, `limit=JOB:TIME`, `nodes=+N`, `quota=TEAM:N`."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from weft.campaign.advice.foreign_queue import ForeignQueue, teams_with
from weft.core.errors import UsageError
from weft.core.quantity import TIME, QuantityError

FORMS = "cancel=JOB, priority=JOB:NUMBER, limit=JOB:TIME, nodes=+NUMBER or quota=QUEUE:GPUS"
_PS_PER_MS = 10**9
_MOST = 2**40


def changed(queue: ForeignQueue, change: str) -> ForeignQueue:
    """Return the queue as it would be after a change; raises where there is no such change."""
    what, equals, rest = change.partition("=")
    if not equals or what not in _CHANGES or not rest:
        raise UsageError(f"--what-if {change!r}: write {FORMS}")
    return _CHANGES[what](queue, rest, change)


def _cancel(queue: ForeignQueue, rest: str, _: str) -> ForeignQueue:
    return queue.without(rest)


def _priority(queue: ForeignQueue, rest: str, change: str) -> ForeignQueue:
    job, number = _pair(rest, change)
    return queue.changed(job, priority=_whole(number, change))


def _limit(queue: ForeignQueue, rest: str, change: str) -> ForeignQueue:
    job, time = _pair(rest, change)
    try:
        limit_ms = TIME.parse(time) // _PS_PER_MS
    except QuantityError as error:
        raise UsageError(f"--what-if {change!r}: {error}") from None
    return queue.changed(job, limit_ms=max(1, limit_ms))


def _nodes(queue: ForeignQueue, rest: str, change: str) -> ForeignQueue:
    """Add nodes like those that there are most of."""
    more = _whole(rest.removeprefix("+"), change)
    if not 0 < more <= 10**5:
        raise UsageError(f"--what-if {change!r}: write 1 to 100,000 nodes")
    kinds = Counter((node.gpus, node.groups, node.models) for node in queue.nodes)
    gpus, groups, models = kinds.most_common(1)[0][0]
    like = next(node for node in queue.nodes if (node.gpus, node.groups, node.models) == (gpus, groups, models))
    new = (replace(like, name=f"new-{at}", in_service=True) for at in range(more))
    return replace(queue, nodes=(*queue.nodes, *new))


def _quota(queue: ForeignQueue, rest: str, change: str) -> ForeignQueue:
    team, number = _pair(rest, change)
    return replace(queue, teams=teams_with(queue.teams, team, _whole(number, change)))


def _pair(rest: str, change: str) -> tuple[str, str]:
    name, colon, value = rest.rpartition(":")
    if not colon or not name:
        raise UsageError(f"--what-if {change!r}: write {FORMS}")
    return name, value


def _whole(number: str, change: str) -> int:
    if not number.isdecimal() or not number.isascii() or len(number) > len(str(_MOST)):
        raise UsageError(f"--what-if {change!r}: {number[:40]!r} is no whole number")
    return int(number)


_CHANGES: dict[str, Callable[[ForeignQueue, str, str], ForeignQueue]] = {
    "cancel": _cancel, "priority": _priority, "limit": _limit, "nodes": _nodes, "quota": _quota,
}  # fmt: skip
