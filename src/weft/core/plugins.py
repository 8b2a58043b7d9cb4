"""Plugins: what other distributions add to weft, found by entry points and loaded only when asked for by name.

A distribution names its plugins in its `pyproject.toml`, one table for each group:

    [project.entry-points."weft.transports"]
    my-transport = "my_package.my_transport:Transport"

This module finds and loads. What a group's plugins have to provide is said where they are used (`GROUPS`).
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint
from importlib.metadata import entry_points as _installed
from types import MappingProxyType

from weft.core.errors import FailedError, UsageError

GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "weft.transports": "transports of the packet simulator",
        "weft.models": "models that `weft train --model` trains",
        "weft.collectives": "collectives as schedules of sends",
        "weft.policies": "scheduling policies",
        "weft.health_checks": "health checks of nodes",
        "weft.sinks": "places where metrics go",
        "weft.readers": "readers of traces and logs for `weft doctor`",
        "weft.commands": "commands of the command line",
        "weft.underlays": "networks that ranks of a job send over by MRC",
    }
)
"""Every group of entry points that weft reads, and what its plugins are."""


@cache
def _group(group: str) -> Mapping[str, EntryPoint]:
    assert group in GROUPS, f"{group} is no group of weft's"
    found: dict[str, EntryPoint] = {}
    for point in sorted(_installed(group=group), key=_origin):
        if (other := found.get(point.name)) is not None and other.value != point.value:
            # Which of the two is meant would depend on the order of installation: nobody may decide that silently.
            raise UsageError(
                f"{_origin(other)} and {_origin(point)} both provide {point.name!r} in {group}; uninstall one of them"
            )
        found[point.name] = point
    return MappingProxyType(found)


def _origin(point: EntryPoint) -> str:
    """Return the distribution that an entry point comes from, or the object it names where that is unknown."""
    return point.dist.name if point.dist is not None else point.value


def names(group: str) -> tuple[str, ...]:
    """Return the names of a group's plugins, sorted, without loading any."""
    return tuple(sorted(_group(group)))


def entry_point(group: str, name: str) -> object | None:
    """Load the plugin called `name` of `group`; nothing where no distribution provides it."""
    point = _group(group).get(name)
    if point is None:
        return None
    try:
        return point.load()
    except Exception as error:
        # A plugin is somebody else's code: whatever it raises on import, the message names who ships it.
        raise FailedError(f"plugin {name!r} of {_origin(point)} could not be loaded: {error!r}") from error


def entry_points(group: str) -> Mapping[str, object]:
    """Load every plugin of a group, by name."""
    return {name: entry_point(group, name) for name in names(group)}
