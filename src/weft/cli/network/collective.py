"""`weft simulate --collective`: one collective by several transports, best first."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from weft.cli.output import console, print_json, print_table, save_plot
from weft.core import quantity
from weft.core.errors import UsageError
from weft.core.quantity import RATE, SIZE, TIME
from weft.netsim.comparison import Collective, Posting, Row, compare
from weft.specs import load_site

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SITE = "bed-64x400g"
"""Where transports are compared unless another site is named."""
RIVALS = ("mrc", "roce:1", "roce:8", "roce:16", "reps", "adaptive")
"""Transports that are compared unless others are named."""
_SWEEP = (256, 16, 1)


def run_collective(
    kind: str,
    size: str,
    ranks: int,
    site: str | None,
    names: tuple[str, ...],
    *,
    seed: int,
    posting: Posting,
    json: bool,
    plot: Path | None,
) -> None:
    """Compare transports on one collective and print the table; a plot of one size has smaller ones too."""
    if kind not in get_args(Collective):
        raise UsageError(f"there is no collective called {kind!r}; there are {', '.join(get_args(Collective))}")
    asked = [_bytes(text) for text in size.split(",")]
    sizes = sorted({asked[0] // part for part in _SWEEP}) if plot is not None and len(asked) == 1 else asked
    place = load_site(site or SITE)
    rows = compare(cast("Collective", kind), sizes, ranks, place, names or RIVALS, seed=seed, posting=posting)
    base = {row.size: row.bus_bps for row in rows if row.transport == "mrc"}
    if plot is not None:
        save_plot(plot, lambda figure: _draw(figure, rows, f"{kind} over {ranks} ranks on {place.name}"))
    if json:
        print_json([row.as_json(base.get(row.size, 0.0)) | {"posting": posting} for row in rows])
        return
    title = f"{kind}, {ranks} ranks, {place.name}" + (", posted as NCCL does" if posting == "nccl" else "")
    for each in sizes:
        _print([row for row in rows if row.size == each], base.get(each, 0.0), title)


def _bytes(text: str) -> int:
    try:
        found = SIZE.parse(text.strip())
    except quantity.QuantityError as error:
        raise UsageError(f"--size: {error}") from None
    if found < 1:
        raise UsageError(f"--size: {text!r} holds nothing; write a size such as 1GiB")
    return found


def _print(rows: list[Row], base_bps: float, title: str) -> None:
    table = [_cells(row, base_bps) for row in rows]
    columns = ("transport", "time", "bus bandwidth", "to mrc", "resent", "trimmed", "pauses", "dropped", "CPU")
    print_table(f"{title}: {SIZE.about(rows[0].size)}", columns, table)
    if rows[0].rounds < rows[0].of_rounds:
        text = f"{rows[0].rounds} of {rows[0].of_rounds} rounds were run; all are alike, and the time is that of all"
        console().print(text, markup=False, soft_wrap=True)
    for row in rows:
        pausing = row.report.pausing
        if pausing is not None and pausing.tree_at_ps >= 0:
            text = (f"{row.transport}: {len(pausing.tree_ports)} ports waited for {pausing.tree_root}, "
                    f"{pausing.tree_depth} deep, with {pausing.tree_innocent} innocent queue pairs")  # fmt: skip
            console().print(text, markup=False, soft_wrap=True)


def _cells(row: Row, base_bps: float) -> tuple[str, ...]:
    report = row.report
    return (
        row.transport,
        TIME.about(row.time_ps, 4) if row.time_ps >= 0 else "did not complete",
        RATE.about(row.bus_bps),
        f"{row.bus_bps / base_bps:.3f}" if base_bps else "-",
        f"{report.total('resent'):,}",
        f"{report.trimmed:,}",
        "-" if report.pausing is None else f"{report.pausing.pauses:,}",
        f"{report.dropped:,}",
        f"{report.cpu_s:.1f} s",
    )


def _draw(figure: "Figure", rows: tuple[Row, ...], title: str) -> None:
    from weft.cli.pictures import COLOURS

    axes = figure.subplots()
    by_name: dict[str, list[Any]] = {}
    for row in sorted(rows, key=lambda row: row.size):
        by_name.setdefault(row.transport, []).append((row.size, row.bus_bps / 10**9))
    best = sorted(by_name.items(), key=lambda item: -item[1][-1][1])
    for colour, (name, points) in zip(COLOURS, best, strict=False):
        axes.plot(*zip(*points, strict=True), "o-", label=name, color=colour)
    axes.set_xscale("log", base=2)
    sizes = sorted({row.size for row in rows})
    axes.set_xticks(sizes, [SIZE.about(size) for size in sizes])
    axes.set(title=title, xlabel="size", ylabel="bus bandwidth, Gb/s", ylim=(0, None))
    axes.legend()
