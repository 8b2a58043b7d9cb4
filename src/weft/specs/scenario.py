"""What can be written in a `scenario` file: an experiment on a site with traffic, faults over time and measurements."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from weft.core.spec import Check, Duration, Size, Spec
from weft.core.units import Bytes, Picoseconds
from weft.specs.site import Name, Share


class TrafficSpec(Spec):
    """Who sends what to whom."""

    pattern: Literal["pair", "permutation", "incast", "all-to-all"] = "permutation"
    """Shape of the traffic."""
    size: Size = Bytes(8 * 2**20)
    """Bytes of one flow."""
    hosts: Annotated[int, Field(ge=2)] | None = None
    """Hosts that take part; all where absent."""


class FaultSpec(Spec):
    """Something that breaks, and when."""

    kind: Literal["link-down", "switch-down", "port-down", "optic-down", "black-hole", "loss", "slow", "flap"]
    """What happens."""
    target: str
    """Name of the link, port, optic or switch, as `weft fabric` prints it."""
    at: Duration = Picoseconds(0)
    """When it begins."""
    lasts: Duration | None = None
    """How long; for good where absent."""
    amount: Share | None = None
    """Share of packets lost, or of the rate that is left, where the kind needs one."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            ("amount", "kind"),
            lambda s: (
                f"a fault of kind {s.kind!r} needs an amount between 0 and 1; add amount = 0.01"
                if s.kind in ("loss", "slow") and s.amount is None
                else None
            ),
        ),
    )


def _something_to_do(spec: Any) -> str | None:
    return None if (spec.traffic is None) != (spec.job is None) else "a scenario has either traffic or a job; write one"


class ScenarioSpec(Spec):
    """An experiment: a site, traffic or a job, faults over time."""

    name: Name
    """Short name, used in reports."""
    description: str = ""
    """One sentence for people."""
    site: str
    """Built-in name or path of the site."""
    traffic: TrafficSpec | None = None
    """What is sent."""
    job: str | None = None
    """Built-in name or path of a job whose step is sent instead."""
    faults: tuple[FaultSpec, ...] = Field((), strict=False)
    """What breaks."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Root of everything random."""

    checks: ClassVar[tuple[Check, ...]] = (Check(("traffic", "job"), _something_to_do),)
