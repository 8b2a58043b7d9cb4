"""`weft simulate --collective`: one collective by several transports, best first."""

from pathlib import Path
from typing import NamedTuple

from weft.cli.output import print_json, print_table, progress, save_picture, say
from weft.collectives.registry import named
from weft.core import quantity
from weft.core.errors import UsageError
from weft.core.quantity import RATE, SIZE, TIME
from weft.netsim.comparison import CompareOptions, Posting, Row, compare
from weft.specs import load_site

SITE = "bed-64x400g"
"""Where transports are compared unless another site is named."""
RIVALS = ("mrc", "roce:1", "roce:8", "roce:16", "reps", "adaptive")
"""Transports that are compared unless others are named."""
_RANKS = 64
_SWEEP = (256, 16, 1)


class CollectiveRun(NamedTuple):
    """Which collective is compared, and by which transports."""

    kind: str
    size: str
    ranks: int | None
    posting: Posting
    site: str | None
    transports: tuple[str, ...]
    seed: int


def run_collective(asked: CollectiveRun, *, json: bool, plot: Path | None) -> None:
    """Compare transports on one collective and print the table; a plot of one size has smaller ones too."""
    kind, posting = asked.kind, asked.posting
    named(kind)  # An unknown name is refused before anything is read.
    given = [_bytes(text) for text in asked.size.split(",")]
    sizes = sorted({given[0] // part for part in _SWEEP}) if plot is not None and len(given) == 1 else given
    place = load_site(asked.site or SITE)
    ranks = min(_RANKS, place.fabric.gpus) if asked.ranks is None else asked.ranks
    names = asked.transports or RIVALS
    with progress() as watch:
        rows = compare(kind, sizes, ranks, place, names, CompareOptions(asked.seed, posting, watch=watch))
    base = {row.size: row.bus_bps for row in rows if row.transport == "mrc"}
    save_picture(plot, "draw_collective", rows, f"{kind} over {ranks} ranks on {place.name}")
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
        raise UsageError(f"--size: {text!r} is empty; write a size such as 1GiB")
    return found


def _print(rows: list[Row], base_bps: float, title: str) -> None:
    table = [_cells(row, base_bps) for row in rows]
    columns = ("transport", "time", "bus bandwidth", "to mrc", "resent", "trimmed", "pauses", "dropped", "CPU")
    print_table(f"{title}: {SIZE.about(rows[0].size)}", columns, table)
    if rows[0].rounds < rows[0].of_rounds:
        rounds, all_rounds = rows[0].rounds, rows[0].of_rounds
        off_by = 100 * max(row.off_by for row in rows)
        say(
            f"simulated {rounds} of {all_rounds} identical rounds; times extrapolated to {all_rounds} are at most "
            f"{off_by:.2g} % off where no other round is quicker or slower than these"
        )
    for row in rows:
        pausing = row.report.pausing
        if pausing is not None and pausing.tree_at_ps >= 0:
            text = (f"{row.transport}: PFC: {len(pausing.tree_ports)} ports paused behind {pausing.tree_root} "
                    f"(depth {pausing.tree_depth}), {pausing.tree_innocent} victim QPs")  # fmt: skip
            say(text)


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
