"""What can be written in a sweep file: one scenario, and what is varied in it."""

from typing import Annotated

from pydantic import Field

from weft.core.spec import Spec
from weft.specs.rivals import TransportName
from weft.specs.scenario import FlowSize
from weft.specs.site import Name


class SweepSpec(Spec):
    """A scenario run over every combination of some of its values; a list that is absent leaves the scenario's own."""

    name: Name
    """Short name, used in results."""
    description: str = ""
    """One sentence for people."""
    scenario: str
    """Built-in name or path of the scenario."""
    gpus: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(strict=False)] = ()
    """Sizes of the fabric."""
    size: Annotated[tuple[FlowSize, ...], Field(strict=False)] = ()
    """Bytes of a flow."""
    load: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(strict=False)] = ()
    """Share of every NIC's rate that is offered; for pattern = "poisson"."""
    transport: Annotated[tuple[TransportName, ...], Field(strict=False)] = ()
    """Transports."""
    failed_links: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)] = ()
    """Links between switches, drawn from the seed, that are down from the beginning."""
    seeds: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Seeds 0, 1, ... that every combination is run with."""
