"""The life of a node as a table: which state follows from which on which event. Anything else is refused.

    joining - preflight - ready - suspect - quarantined - testing - repairing - validating - ready ... retired
                               draining

Who says that an event has happened is `health`'s business; what a state means for work is `pool`'s.
"""

from enum import StrEnum

from weft.cluster.records.node import NodeState


class NodeEvent(StrEnum):
    """What can happen to a node."""

    FOUND = "found"
    """It has made itself known."""
    PASSED = "passed"
    """The test that its state calls for has passed."""
    FAILED = "failed"
    """That test has failed."""
    WARNED = "warned"
    """Something was seen that may be nothing."""
    CLEARED = "cleared"
    """It was not seen again."""
    CONDEMNED = "condemned"
    """It is sick, by proof or by too many warnings."""
    DRAIN = "drain"
    """An operator wants it empty."""
    UNDRAIN = "undrain"
    """The operator gives it back."""
    EMPTY = "empty"
    """Its last job has gone."""
    REPAIR = "repair"
    """Somebody is to work on it."""
    REPAIRED = "repaired"
    """Somebody has."""
    RETIRE = "retire"
    """It is given up."""


_S, _E = NodeState, NodeEvent
TABLE: dict[tuple[NodeState, NodeEvent], NodeState] = {
    (_S.JOINING, _E.FOUND): _S.PREFLIGHT,
    (_S.JOINING, _E.RETIRE): _S.RETIRED,
    (_S.PREFLIGHT, _E.PASSED): _S.READY,
    (_S.PREFLIGHT, _E.FAILED): _S.QUARANTINED,
    (_S.PREFLIGHT, _E.RETIRE): _S.RETIRED,
    (_S.READY, _E.WARNED): _S.SUSPECT,
    (_S.READY, _E.CONDEMNED): _S.QUARANTINED,
    (_S.READY, _E.DRAIN): _S.DRAINING,
    (_S.SUSPECT, _E.CLEARED): _S.READY,
    (_S.SUSPECT, _E.CONDEMNED): _S.QUARANTINED,
    (_S.SUSPECT, _E.DRAIN): _S.DRAINING,
    (_S.QUARANTINED, _E.EMPTY): _S.TESTING,
    (_S.QUARANTINED, _E.REPAIR): _S.REPAIRING,
    (_S.QUARANTINED, _E.RETIRE): _S.RETIRED,
    (_S.DRAINING, _E.UNDRAIN): _S.READY,
    (_S.DRAINING, _E.CONDEMNED): _S.QUARANTINED,
    (_S.DRAINING, _E.REPAIR): _S.REPAIRING,
    (_S.DRAINING, _E.RETIRE): _S.RETIRED,
    (_S.TESTING, _E.PASSED): _S.VALIDATING,
    (_S.TESTING, _E.FAILED): _S.REPAIRING,
    (_S.TESTING, _E.RETIRE): _S.RETIRED,
    (_S.REPAIRING, _E.REPAIRED): _S.VALIDATING,
    (_S.REPAIRING, _E.RETIRE): _S.RETIRED,
    (_S.VALIDATING, _E.PASSED): _S.READY,
    (_S.VALIDATING, _E.FAILED): _S.REPAIRING,
    (_S.VALIDATING, _E.RETIRE): _S.RETIRED,
}
"""Every step that there is."""


class NodeLifeError(AssertionError):
    """A step was tried that is not in the table."""


def allowed(state: NodeState, event: NodeEvent) -> bool:
    """Return whether an event can happen in a state."""
    return (state, event) in TABLE


def after(state: NodeState, event: NodeEvent) -> NodeState:
    """Return the state that follows, or raise where there is none."""
    if not allowed(state, event):
        raise NodeLifeError(f"a node that is {state} cannot be {event}")
    return TABLE[state, event]
