"""What can be written about the network of a site: planes, tiers, ports, links and the parts they are made of."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from weft.core import quantity
from weft.core.spec import Check, Duration, FailureRate, Length, Power, Price, Rate, Size, Spec
from weft.core.units import Bytes


def _read_ratio(value: Any) -> tuple[int, int]:
    match = re.fullmatch(r"\s*([1-9]\d{0,4})\s*:\s*([1-9]\d{0,4})\s*", value) if isinstance(value, str) else None
    if match is None:
        problem = f"{value!r} is not a ratio; write down to up as '1:1' or '3:1'"
        raise PydanticCustomError("quantity", "{problem}", {"problem": problem})
    return int(match[1]), int(match[2])


Ratio = Annotated[
    tuple[int, int],
    PlainValidator(_read_ratio),
    PlainSerializer(lambda ratio: f"{ratio[0]}:{ratio[1]}"),
    WithJsonSchema({"type": "string", "pattern": r"^\d+:\d+$", "examples": ["1:1"]}),
]


class LinkSpec(Spec):
    """The cables of one stage."""

    length: Length
    """Typical length; light in fibre or copper needs about 4.9 ns for a metre."""
    medium: Literal["optical", "copper"] = "optical"
    """Whether both ends need an optic or the cable is passive copper."""


class LinksSpec(Spec):
    """The cables of every stage."""

    nic_t0: LinkSpec
    """From NIC ports to first-tier switches."""
    t0_t1: LinkSpec | None = None
    """From the first to the second tier, where there is one."""
    t1_t2: LinkSpec | None = None
    """From the second to the third tier, where there is one."""


class PartSpec(Spec):
    """A thing that is bought, powered and fails."""

    power: Power
    """Typical power in use."""
    price: Price
    """Price class: the order of magnitude that a large buyer pays, for ratios between designs, not for an offer."""
    failure_rate: FailureRate
    """Hard failures of one such part."""
    source: str
    """Where these figures come from."""


class SwitchPart(PartSpec):
    """A switch without its optics."""

    capacity: Rate
    """Sum of all port rates, one direction."""
    latency: Duration
    """From the first bit in to the first bit out, without queueing."""


class NicPart(PartSpec):
    """A network card, one for a GPU."""

    rate: Rate
    """Sum of all its port rates, one direction."""


class OpticPart(PartSpec):
    """A pluggable transceiver; it carries several links where ports are slower than it is."""

    rate: Rate
    """Sum of its lanes, one direction."""


class CablePart(PartSpec):
    """A cable with both its ends: passive copper, or the fibre between two optics."""


class PartsSpec(Spec):
    """The parts of a fabric."""

    switch: SwitchPart
    """Every switch of every tier."""
    nic: NicPart
    """Every NIC."""
    optic: OpticPart
    """Every transceiver, in NICs and in switches."""
    fibre: CablePart
    """The fibre of one optical module-to-module connection."""
    copper: CablePart
    """One passive copper cable, as wide as an optic."""


def _planes_fill_the_nic(spec: Any) -> str | None:
    total = spec.planes * spec.port_rate
    if total == spec.nic_rate:
        return None
    shown = quantity.RATE.format
    found = (
        f"{spec.planes} planes of {shown(spec.port_rate)} make {shown(total)}, but nic_rate is {shown(spec.nic_rate)}"
    )
    if spec.nic_rate % spec.port_rate == 0:
        return f"{found}; write planes = {spec.nic_rate // spec.port_rate}"
    if spec.nic_rate % spec.planes == 0:
        return f"{found}; write port_rate = {shown(spec.nic_rate // spec.planes)!r}"
    return f"{found}; the planes together must carry exactly what the NIC does"


def _ports_fit_the_switch(spec: Any) -> str | None:
    needed, capacity = spec.radix * spec.port_rate, spec.parts.switch.capacity
    if needed <= capacity:
        return None
    shown = quantity.RATE.format
    found = (
        f"{spec.radix} ports of {shown(spec.port_rate)} need {shown(needed)}, but the switch carries {shown(capacity)}"
    )
    return f"{found}; write radix = {capacity // spec.port_rate} or name a larger switch"


def _nic_part_is_fast_enough(spec: Any) -> str | None:
    if spec.nic_rate <= spec.parts.nic.rate:
        return None
    shown = quantity.RATE.format
    return f"nic_rate is {shown(spec.nic_rate)}; the NIC in parts.nic carries {shown(spec.parts.nic.rate)}"


def _ratio_divides_the_radix(spec: Any) -> str | None:
    down, up = spec.oversubscription
    if spec.tiers == 1 or spec.radix % (down + up) == 0:
        return None
    return f"a radix of {spec.radix} cannot be split {down}:{up}; choose one that {down + up} divides, or another ratio"


def _stages_have_cables(spec: Any) -> str | None:
    needed = ("nic_t0", "t0_t1", "t1_t2")[: spec.tiers]
    missing = [stage for stage in needed if getattr(spec.links, stage) is None]
    return f"{spec.tiers} tiers need cables for {missing[0]}; add [fabric.links.{missing[0]}]" if missing else None


def _gpus_fit_the_clos(spec: Any) -> str | None:
    capacity = clos_capacity(spec.tiers, spec.radix, spec.oversubscription)
    if spec.gpus <= capacity:
        return None
    return (
        f"{spec.gpus:,} GPUs do not fit: {spec.tiers} tiers of {spec.radix}-port switches reach {capacity:,}; "
        "use fewer GPUs, more planes (slower ports, higher radix) or another tier"
    )


def clos_capacity(tiers: int, radix: int, ratio: tuple[int, int]) -> int:
    """Return how many NICs one plane of a Clos network reaches: k, k^2/2 or k^3/4 where nothing is oversubscribed."""
    if tiers == 1:
        return radix
    down = radix * ratio[0] // sum(ratio)
    return down * radix if tiers == 2 else down * (radix // 2) * radix  # noqa: PLR2004  a tier count, not a constant


class FabricSpec(Spec):
    """The network between the nodes: identical Clos planes, every NIC with one port in each."""

    gpus: Annotated[int, Field(ge=1, le=4_000_000)]
    """GPUs on this network; each has one NIC."""
    nic_rate: Rate
    """NIC rate, one direction, over all its ports."""
    planes: Annotated[int, Field(ge=1, le=64)]
    """Independent networks that each NIC is split over."""
    port_rate: Rate
    """Rate of one port, which is the rate of one plane: `planes` of them make `nic_rate`."""
    tiers: Annotated[int, Field(ge=1, le=3)]
    """Switch tiers of one plane."""
    radix: Annotated[int, Field(ge=2, le=4096, multiple_of=2)]
    """Ports of one switch at `port_rate`."""
    oversubscription: Ratio = (1, 1)
    """First-tier ports down to ports up; "1:1" is full bisection."""
    build: Literal["growable", "compact"] = "growable"
    """How a plane that is not full is built: with every upper switch it will ever need and one link to each, or with
    as few upper switches as carry it and several links to each."""
    packet: Size = Bytes(4096)
    """Payload of one packet."""
    links: LinksSpec
    """Cables by stage."""
    parts: PartsSpec
    """What it is made of."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(("planes", "port_rate", "nic_rate"), _planes_fill_the_nic),
        Check(("radix", "port_rate", "parts"), _ports_fit_the_switch),
        Check(("nic_rate", "parts"), _nic_part_is_fast_enough),
        Check(("oversubscription", "radix", "tiers"), _ratio_divides_the_radix),
        Check(("links", "tiers"), _stages_have_cables),
        Check(("gpus", "tiers", "radix", "oversubscription"), _gpus_fit_the_clos),
    )
