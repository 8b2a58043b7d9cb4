"""`weft design`: the fabric of a site in figures, or every sensible fabric for a number of GPUs side by side."""

from fractions import Fraction
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from weft import api
from weft.cli.output import BuiltInSite, DetailsFlag, JsonFlag, PlotFile, print_json, print_table, save_picture, say
from weft.cli.screen.figures import usd, watts
from weft.core.errors import UsageError
from weft.core.quantity import RATE, TIME, counted, significant
from weft.fabric.design import Design

_NIC = "800 Gb/s"
_SWITCH = "51.2 Tb/s"


def design(
    site: Annotated[
        BuiltInSite | None, Parameter(help="Built-in name or path of a site file.", show_choices=False)
    ] = None,
    /,
    *,
    gpus: Annotated[int | None, Parameter(help="Compare fabrics for this many GPUs.")] = None,
    nic: Annotated[str | None, Parameter(help=f"NIC rate. [default: {_NIC}]")] = None,
    switch: Annotated[str | None, Parameter(help=f"Switch capacity. [default: {_SWITCH}]")] = None,
    planes: Annotated[
        list[int] | None, Parameter(help="Only these numbers of planes.", consume_multiple=True, negative="")
    ] = None,
    details: DetailsFlag = False,
    json: JsonFlag = False,
    plot: PlotFile = None,
) -> None:
    """Describe the fabric of SITE, or compare every sensible fabric for --gpus GPUs, the best first."""
    if (site is None) == (gpus is None):
        raise UsageError("name a site (weft design gb200-8x100g-131k) or a number of GPUs (weft design --gpus 131072)")
    if site is not None:
        given = {"--nic": nic, "--switch": switch, "--planes": planes}
        for option in (name for name, value in given.items() if value is not None):
            raise UsageError(f"{option} goes with --gpus; a site's own is written in its file")
        _one(api.design(site), details=details, json=json, plot=plot)
    else:
        assert gpus is not None
        _several(
            api.compare(gpus, _NIC if nic is None else nic, _SWITCH if switch is None else switch, tuple(planes or ())),
            json=json,
            plot=plot,
        )


def _one(found: Design, *, details: bool, json: bool, plot: Path | None) -> None:
    save_picture(plot, "draw_fabric", found)
    if json:
        print_json(found.as_json())
        return
    for line in _headline(found):
        say(line)
    say("")
    print_table("the fabric", ("what", "value"), _facts(found), words=(0, 1))
    if not details:
        say("what each failure takes, and the bill of materials: --details")
        return
    print_table(
        "impact of a failure",
        ("failed part", "NICs affected", "bandwidth each loses"),
        [(b.part, f"{b.nics:,}", share_text(b.share)) for b in found.limits.blasts],
    )
    total = (("all", "", "", watts(found.bill.power_mw / 1000), _money(found.bill.price_cents), ""),)
    rows = [
        (line.part, line.place, f"{line.count:,}", watts(line.count * line.spec.power / 1000),
         _money(line.count * line.spec.price), _per_year(line.count * line.spec.failure_rate))
        for line in found.bill.lines
    ]  # fmt: skip
    print_table(
        "bill of materials (prices are classes, for ratios)",
        ("part", "place", "count", "power", "price", "failures a year"),
        [*rows, *total],
        words=(0, 1),
    )


def _headline(found: Design) -> list[str]:
    """Return what a fabric is, what it takes, and whether one failure can cut a NIC off."""
    spec = found.spec
    planes = f"{counted(spec.planes, 'plane')} of {RATE.format(spec.port_rate)}"
    takes = [f"{found.shape.switches:,} switches", *_power_and_price(found)]
    # A NIC has a port in every plane: one failure takes a plane from it, which is everything only where there is one.
    t0 = next(each for each in found.limits.blasts if each.part == "t0")
    nics = counted(t0.nics, "NIC")
    verdict = (
        f"a failed T0 cuts {nics} off, a failed cable one" if spec.planes == 1
        else f"no failed cable, optic or switch cuts a NIC off; a failed T0 takes {share_text(t0.share)} from {nics}"
    )  # fmt: skip
    return [f"{found.name}: {counted(spec.gpus, 'GPU')}, {planes}, {', '.join(takes)}", f"verdict: {verdict}"]


def _power_and_price(found: Design) -> list[str]:
    """Return the power and the price of a fabric whose parts have some."""
    bill = found.bill
    return [watts(bill.power_mw / 1000), _money(bill.price_cents)] if bill.power_mw else []


def _facts(found: Design) -> list[tuple[str, str]]:
    spec, shape, limits = found.spec, found.shape, found.limits
    hops = "1 switch" if limits.hops_max == 1 else f"{limits.hops_max} switches"
    tiers = " + ".join(f"{grid.size:,} T{tier}" for tier, grid in enumerate(shape.switch_grids))
    facts = [
        ("GPUs", f"{spec.gpus:,} of at most {limits.hosts_max:,}"),
        ("planes", f"{spec.planes} of {RATE.format(spec.port_rate)}, each {spec.tiers} tiers of radix {spec.radix}"),
        ("switches", f"{shape.switches:,} = {tiers}"),
        ("links", f"{sum(shape.links):,}"),
        ("optics", f"{found.bill.count('optic'):,}"),
        ("longest path", f"{hops}, {TIME.about(limits.latency_floor_ps)} through empty ones"),
        ("paths between two NICs", f"{limits.paths:,}"),
        ("bisection", RATE.about(limits.bisection_bps)),
        ("network power", watts(found.bill.power_mw / 1000)),
    ]
    if found.ratio is not None:
        facts.append(("switches per GPU, to three tiers", fraction_text(found.ratio.switches_per_gpu)))
        if found.ratio.optics_per_gpu is not None:
            facts.append(("optics per GPU, to three tiers", fraction_text(found.ratio.optics_per_gpu)))
    return facts


def _several(found: tuple[Design, ...], *, json: bool, plot: Path | None) -> None:
    save_picture(plot, "draw_comparison", found)
    if json:
        print_json([each.as_json() for each in found])
        return
    rows = [
        (
            f"{each.spec.planes} x {RATE.format(each.spec.port_rate)}",
            str(each.spec.tiers),
            f"{each.shape.switches:,}",
            f"{each.bill.count('optic'):,}",
            str(each.limits.hops_max),
            f"{each.limits.paths:,}",
            fraction_text(each.limits.share_lost("nic link")),
            fraction_text(each.limits.share_lost("t0-t1 link")),
            watts(each.bill.power_mw / 1000),
            _money(each.bill.price_cents),
            "-" if each.ratio is None else significant(float(each.ratio.switches_per_gpu)),
            "-" if each.ratio is None or each.ratio.optics_per_gpu is None
            else significant(float(each.ratio.optics_per_gpu)),
        )
        for each in found
    ]  # fmt: skip
    print_table(
        f"fabrics for {found[0].spec.gpus:,} GPUs, cheapest first (share lost per failed link; ratios to three tiers)",
        ("planes", "tiers", "switches", "optics", "hops", "paths", "NIC link", "fabric link", "power", "price",
         "switches to 3T", "optics to 3T"),
        rows,
    )  # fmt: skip


def share_text(share: Fraction) -> str:
    """Return a share as people say it: "1/256 (0.39 %)"."""
    if share in (0, 1):
        return "all" if share else "nothing"
    return f"{share} ({significant(float(share) * 100)} %)"


def fraction_text(value: Fraction) -> str:
    """Return a ratio as a fraction where that is short, as a decimal otherwise."""
    longest = 1000
    return str(value) if value.denominator < longest else significant(float(value))


def _money(cents: int) -> str:
    return usd(cents / 100)


def _per_year(fit: int) -> str:
    return significant(fit * 8766 / 10**9, 2)
