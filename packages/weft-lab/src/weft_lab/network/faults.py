"""Faults of a lab: which there are, and the batches that put them in and take them out.

Pure: commands are data. A cut takes both ends of a link down, as a pulled cable does. Loss is a rule at the receiving
device that drops a random share of everything. A slow link has a smaller shaper. A black hole stays up, answers its
neighbours and drops what it should forward. No netem is needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from weft.fabric import linux
from weft.fabric.addressing import srv6
from weft_lab.network.plain_routes import NETWORK_TEXT
from weft_lab.network.plan import Batch, LabPlan, batches_of

Filter = Literal["nft", "ip6tables"]
Into = Literal["both", "lower", "upper"]

MILLION = 1_000_000
"""Loss is counted in packets of a million."""


@dataclass(frozen=True)
class Loss:
    """Share of the packets that are dropped on arrival at each end of a link, in a million."""

    lower: int = 0
    """At the end that is nearer to the NICs."""
    upper: int = 0
    """At the other end."""


@dataclass(frozen=True)
class Faults:
    """Everything that is wrong with a lab on purpose."""

    cut: frozenset[str] = frozenset()
    """Links that are down."""
    loss: Mapping[str, Loss] = field(default_factory=dict)
    """Links that drop packets."""
    slow: Mapping[str, int] = field(default_factory=dict)
    """Links with another rate, in bits a second."""
    black_holes: frozenset[str] = frozenset()
    """Switches that are up and forward nothing."""

    def __bool__(self) -> bool:
        """Return whether anything is wrong."""
        return bool(self.cut or self.loss or self.slow or self.black_holes)

    def of(self, name: str) -> list[str]:
        """Return what is wrong with a link or switch, in words."""
        words = ["cut"] if name in self.cut else []
        words += ["black hole"] if name in self.black_holes else []
        if name in self.loss:
            loss = self.loss[name]
            words.append(
                f"loses {loss.lower / 10_000:g} % into its lower end, {loss.upper / 10_000:g} % into its upper"
            )
        return words + ([f"slowed to {self.slow[name] / 1e6:g} Mb/s"] if name in self.slow else [])

    def as_json(self) -> dict[str, Any]:
        """Return the faults in a form that `from_json` reads."""
        return {
            "cut": sorted(self.cut),
            "loss": {name: {"lower": loss.lower, "upper": loss.upper} for name, loss in sorted(self.loss.items())},
            "slow": dict(sorted(self.slow.items())),
            "black_holes": sorted(self.black_holes),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Faults":
        """Return the faults that `as_json` wrote."""
        loss = {name: Loss(**ends) for name, ends in document["loss"].items()}
        return cls(frozenset(document["cut"]), loss, document["slow"], frozenset(document["black_holes"]))


@dataclass(frozen=True)
class FaultChange:
    """A step from one set of faults to another, with the batches that carry it out."""

    after: Faults
    batches: tuple[Batch, ...]


def cut(plan: LabPlan, faults: Faults, name: str) -> FaultChange:
    """Pull the cable of a link."""
    link = plan.topology.names.find(name, ("link",))[1]
    commands = linux.link_down(plan.topology, link, plan.spec.name)
    return FaultChange(replace(faults, cut=faults.cut | {name}), tuple(batches_of(commands)))


def join(plan: LabPlan, faults: Faults, name: str) -> FaultChange:
    """Plug the cable of a cut link in again."""
    if name not in faults.cut:
        return FaultChange(faults, ())
    link = plan.topology.names.find(name, ("link",))[1]
    commands = [
        *linux.link_up(plan.tables, link, plan.spec.name),
        *plan.plain.link_up(linux.ends_of(plan.topology, link), plan.spec.name),
    ]
    # One batch for each end: addresses, carriers' routes and ordinary ones together.
    by_end = sorted(commands, key=lambda command: command.namespace or "")
    return FaultChange(replace(faults, cut=faults.cut - {name}), tuple(batches_of(by_end)))


def lose(plan: LabPlan, faults: Faults, name: str, per_million: int, *, into: Into, by: Filter) -> FaultChange:
    """Let a link drop a random share of its packets; none for a share of zero."""
    link = plan.topology.names.find(name, ("link",))[1]
    before = faults.loss.get(name, Loss())
    after = Loss(
        per_million if into != "upper" else before.lower,
        per_million if into != "lower" else before.upper,
    )
    batches: list[Batch] = []
    ends = zip(plan.ends(link), (before.lower, before.upper), (after.lower, after.upper), strict=True)
    for (namespace, device), old, new in ends:
        if old != new:
            write = _loss_nft if by == "nft" else _loss_ip6tables
            batches.append(Batch(by, namespace, write(device, old, new)))
    loss = {**faults.loss, name: after}
    if after == Loss():
        del loss[name]
    return FaultChange(replace(faults, loss=loss), tuple(batches))


def slow(plan: LabPlan, faults: Faults, name: str, rate_bps: int) -> FaultChange:
    """Give a link another rate; the lab's own rate ends the fault."""
    link = plan.topology.names.find(name, ("link",))[1]
    batches = [Batch("tc", namespace, plan.shaper(device, rate_bps)) for namespace, device in plan.ends(link)]
    rates = {**faults.slow, name: rate_bps}
    if rate_bps == plan.spec.rate_bps:
        del rates[name]
    return FaultChange(replace(faults, slow=rates), tuple(batches))


def black_hole(plan: LabPlan, faults: Faults, name: str, by: Filter) -> FaultChange:
    """Let a switch stay up and forward nothing."""
    if name in faults.black_holes:
        return FaultChange(faults, ())
    batch = Batch(by, _switch(plan, name), _hole_nft(plan) if by == "nft" else _hole_ip6tables(plan, "-A"))
    return FaultChange(replace(faults, black_holes=faults.black_holes | {name}), (batch,))


def fill_in(plan: LabPlan, faults: Faults, name: str, by: Filter) -> FaultChange:
    """Let a black hole forward again."""
    if name not in faults.black_holes:
        return FaultChange(faults, ())
    rules = _without("ip6 weft-hole") if by == "nft" else _hole_ip6tables(plan, "-D")
    batch = Batch(by, _switch(plan, name), rules)
    return FaultChange(replace(faults, black_holes=faults.black_holes - {name}), (batch,))


def heal(plan: LabPlan, faults: Faults, name: str, by: Filter) -> FaultChange:
    """End everything that is wrong with a link or switch."""
    kind, _ = plan.topology.names.find(name, ("link", "switch"))
    if kind == "switch":
        return fill_in(plan, faults, name, by)
    batches: list[Batch] = []
    if name in faults.loss:
        batches += (change := lose(plan, faults, name, 0, into="both", by=by)).batches
        faults = change.after
    if name in faults.slow:
        batches += (change := slow(plan, faults, name, plan.spec.rate_bps)).batches
        faults = change.after
    change = join(plan, faults, name)
    return FaultChange(change.after, (*batches, *change.batches))


def _switch(plan: LabPlan, name: str) -> str:
    number = plan.topology.names.find(name, ("switch",))[1]
    return linux.namespace_of(plan.topology, plan.topology.switch_node(number), plan.spec.name)


def _loss_nft(device: str, old: int, new: int) -> tuple[str, ...]:
    table = f"netdev weft-loss-{device}"
    rules = _without(table) if old else ()
    if not new:
        return rules
    hook = f'type filter hook ingress device "{device}" priority 0; policy accept;'
    rule = f"numgen random mod {MILLION} < {new} counter drop"
    return (*rules, f"table {table} {{", f"chain loss {{ {hook}", rule, "}", "}")


def _without(table: str) -> tuple[str, ...]:
    """Return what removes a table, whether or not it is there."""
    return (f"table {table} {{", "}", f"delete table {table}")


def _loss_ip6tables(device: str, old: int, new: int) -> tuple[str, ...]:
    rules = [
        f"{verb} PREROUTING -i {device} -m statistic --mode random --probability {share / MILLION:.6f} -j DROP"
        for verb, share in (("-D", old), ("-A", new))
        if share
    ]
    return ("*raw", *rules, "COMMIT")


def _forwarded(plan: LabPlan) -> tuple[str, str]:
    """Return the networks that a switch forwards; what it needs to be a neighbour is not among them."""
    return f"{srv6.to_text(plan.addressing.block << 96)}/32", NETWORK_TEXT


def _hole_nft(plan: LabPlan) -> tuple[str, ...]:
    networks = ", ".join(_forwarded(plan))
    hook = "type filter hook prerouting priority -300; policy accept;"
    return ("table ip6 weft-hole {", f"chain hole {{ {hook}", f"ip6 daddr {{ {networks} }} counter drop", "}", "}")


def _hole_ip6tables(plan: LabPlan, verb: str) -> tuple[str, ...]:
    return ("*raw", *(f"{verb} PREROUTING -d {network} -j DROP" for network in _forwarded(plan)), "COMMIT")
