"""`weft lab ping` and `weft lab bench`: MRC between hosts of a lab, live, and TCP on the same links beside it."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from weft.cli.output import JsonFlag, PlotFile, console, draw_own_screen, print_json, print_table, save_plot, say
from weft.core import quantity
from weft.core.errors import FailedError, UsageError
from weft.core.input_files import json_of, read_bytes
from weft.core.provenance import provenance
from weft_lab.commands.lab_app import Name, records
from weft_lab.measurements.bench import (
    BIN_S,
    PlannedFault,
    Rival,
    StreamRequest,
    StreamResult,
    planned,
    run_mrc,
    run_tcp,
)
from weft_lab.measurements.ping import Trip, ping_by_mrc
from weft_lab.measurements.rates import binned_bps
from weft_lab.measurements.stream import TrafficStream, warm_up
from weft_lab.network import lab as labs
from weft_lab.network.lab import Lab

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

LONGEST_S, SHORTEST_S = 3600.0, 1.5
LARGEST_MESSAGE = 64 << 20
MOST_PINGS = 100_000
_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 60

DenyFile = Annotated[Path | None, Parameter(name="--deny", help="Paths to avoid, as weft lab map --deny writes them.")]
From = Annotated[str, Parameter(name="--from", help="Sending host.")]
To = Annotated[str | None, Parameter(name="--to", help="Receiving host; default: the last one.")]


def ping(
    *,
    source: From = "0",
    destination: To = None,
    count: Annotated[int, Parameter(help="How many.")] = 10,
    size: Annotated[str, Parameter(help="Size of each write.")] = "64 B",
    interval: Annotated[str, Parameter(help="Time between one answer and the next question.")] = "100 ms",
    name: Name = "w",
    json: JsonFlag = False,
) -> None:
    """Send small writes from one host to another by MRC, have them answered, and say how long that takes."""
    lab = labs.find(records(), name)
    ends = _ends(lab, source, destination)
    bytes_each = _amount(quantity.SIZE, size, LARGEST_MESSAGE)
    if not 1 <= count <= MOST_PINGS:
        raise UsageError(f"--count {count}: write a number from 1 to {MOST_PINGS:,}")
    pause_s = _amount(quantity.TIME, interval, int(LONGEST_S * 1e12), least=0) / 1e12

    def show(trip: Trip) -> None:
        if not json:
            say(f"{trip.number}: {quantity.significant(trip.round_trip_us)} us")

    warm_up(_say)
    trips, statistics = ping_by_mrc(lab, ends, count=count, size=bytes_each, interval_s=pause_s, watch=show)
    took = sorted(trip.round_trip_us for trip in trips)
    if json:
        print_json({
            "source": ends[0], "destination": ends[1], "size": bytes_each, "asked": count,
            "round_trips_us": [trip.round_trip_us for trip in trips], "statistics": statistics,
            "provenance": provenance(lab.record.spec.as_json()).as_json(),
        })  # fmt: skip
    elif took:
        shown = ", ".join(
            f"{word} {quantity.significant(took[place])} us"
            for word, place in (("least", 0), ("median", len(took) // 2), ("most", -1))
        )
        say(f"{len(took)} of {count} answered; {shown}")
    if len(took) < count:
        raise FailedError(f"{count - len(took)} of {count} were not answered")


def bench(
    *,
    source: From = "0",
    destination: To = None,
    seconds: Annotated[float, Parameter(help="How long each stream runs.")] = 9.0,
    rival: Annotated[Rival | None, Parameter(help="Run it as well, on one path: tcp (cubic) or tcp-bbr.")] = None,
    fault: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            show_default=False,
            help="What happens in the second third: 'cut LINK', 'blackhole SWITCH', 'loss LINK 1%', 'slow LINK RATE'.",
        ),
    ] = (),
    size: Annotated[str, Parameter(help="Size of each write.")] = "1 MiB",
    deny: DenyFile = None,
    name: Name = "w",
    plot: PlotFile = None,
    json: JsonFlag = False,
) -> None:
    """Send a stream of large writes by MRC over all planes, through faults; with --rival tcp, a TCP stream after it."""
    lab = labs.find(records(), name)
    ends = _ends(lab, source, destination)
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise UsageError(f"--seconds {seconds:g}: write a number from {SHORTEST_S:g} to {LONGEST_S:g}")
    wanted = [planned(lab, words) for words in fault]
    bytes_each = _amount(quantity.SIZE, size, LARGEST_MESSAGE)
    denied = {} if deny is None else _read_denials(deny)
    warm_up(_say)
    results: list[StreamResult] = []
    with _screen(live=not json) as watch:
        trial = StreamRequest(ends, wanted, seconds, watch)
        results.append(run_mrc(lab, trial, size=bytes_each, denied=denied))
        if rival is not None:
            results.append(run_tcp(lab, trial, rival=rival))
    save_plot(plot, lambda figure: _draw(figure, results))
    if json:
        documents = [result.as_json() for result in results]
        print_json({"results": documents, "provenance": provenance(lab.record.spec.as_json()).as_json()})
    else:
        _print_results(lab, results, wanted)
    failed = [result.stream for result in results if result.stream.kind == "mrc" and result.stream.error]
    if failed:
        raise FailedError(f"the MRC stream ended: {failed[0].error}")


def _print_results(lab: Lab, results: Sequence[StreamResult], wanted: Sequence[PlannedFault]) -> None:
    rate = quantity.RATE.about
    spec, planes = lab.record.spec, lab.plan.addressing.shape.planes
    stream = results[0].stream
    split = f"{quantity.counted(planes, 'plane')} of {quantity.RATE.format(spec.rate_bps)}"
    title = f"host {stream.source} to host {stream.destination}, {split}"
    if wanted:
        columns = ("transport", "before", "during", "after", "during / before", "longest stall", "resent")
        rows = [
            (result.stream.label, *(rate(result.mean(phase)) for phase in range(3)),
             f"{result.mean(1) / result.mean(0):.0%}" if result.mean(0) else "-",
             f"{result.stall_s:.2f} s", _resent(result.stream))
            for result in results
        ]  # fmt: skip
        title += f"; {', '.join(fault.words for fault in wanted)}, then healed"
    else:
        columns = ("transport", "mean", "of its links", "resent")
        rows = [
            (result.stream.label, rate(result.overall),
             f"{result.overall / (spec.rate_bps * (planes if result.stream.kind == 'mrc' else 1)):.0%}",
             _resent(result.stream))
            for result in results
        ]  # fmt: skip
    print_table(title, columns, rows)
    top = max((max(_bins(result.stream), default=0.0) for result in results), default=0.0)
    for result in results:
        say(f"{_bars(_bins(result.stream), top)}  {result.stream.label}")
    for result in results:
        if wanted and not result.hit:
            say(f"{result.stream.label}: its path does not cross the fault")
        if result.stream.error:
            say(f"{result.stream.label}: {result.stream.error}")


def _bins(stream: TrafficStream) -> list[float]:
    return binned_bps(stream.samples, stream.now_s, max(BIN_S, stream.seconds / _WIDTH))


def _bars(rates: Sequence[float], top: float) -> str:
    return "".join(_BARS[round((len(_BARS) - 1) * min(1.0, rate / top))] if top else " " for rate in rates)


def _resent(stream: TrafficStream) -> str:
    planes = stream.statistics.get("planes")
    return f"{sum(plane['resent'] for plane in planes):,}" if planes else "-"


@contextmanager
def _screen(*, live: bool) -> "Iterator[Callable[[TrafficStream], None] | None]":
    """Give what shows a stream while it runs, where somebody watches."""
    if not live or not sys.stdout.isatty():
        yield None
        return
    from rich.live import Live

    draw_own_screen()

    with Live(console=console(), transient=True, refresh_per_second=8) as screen:
        yield lambda stream: screen.update(_picture(stream))


def _picture(stream: TrafficStream) -> "Table":
    from rich.table import Table

    rates = _bins(stream)
    table = Table(box=None, pad_edge=False, show_header=False)
    now = quantity.RATE.about(rates[-1]) if rates else "-"
    table.add_row(stream.label, now, _bars(rates, max(rates, default=0.0)))
    planes: list[dict[str, Any]] = stream.statistics.get("planes", [])
    for number, plane in enumerate(planes):
        words = f"{plane['good']} good paths, {plane['resent']:,} resent"
        table.add_row(f"  plane {number}", quantity.SIZE.about(plane["bytes"]), words)
    for at_s, words in stream.events:
        table.add_row(f"  {at_s:.1f} s", words)
    return table


def _draw(figure: "Figure", results: Sequence[StreamResult]) -> None:
    """Draw the rate of every stream over time, with what was done to the lab."""
    axes = figure.subplots()
    for result in results:
        rates = binned_bps(result.stream.samples, result.stream.now_s, BIN_S)
        axes.plot([(place + 0.5) * BIN_S for place in range(len(rates))], [rate / 1e6 for rate in rates],
                  label=result.stream.label)  # fmt: skip
    for at_s, words in results[0].stream.events:
        axes.axvline(at_s, color="0.5", linestyle=":")
        axes.annotate(words, (at_s, 0), xytext=(3, 3), textcoords="offset points", rotation=90, fontsize="small")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds")
    axes.set_ylabel("goodput, Mb/s")
    axes.legend(loc="lower right")


def _ends(lab: Lab, source: str, destination: str | None) -> tuple[int, int]:
    last = lab.plan.topology.nics - 1
    ends = lab.host(source), last if destination is None else lab.host(destination)
    if ends[0] == ends[1]:
        raise UsageError(f"host {ends[0]} is both ends; name two hosts, from 0 to {last}")
    return ends


def _amount(dimension: quantity.Dimension, text: str, most: int, least: int = 1) -> int:
    try:
        amount = dimension.parse(text)
    except quantity.QuantityError as error:
        raise UsageError(str(error)) from None
    if not least <= amount <= most:
        raise UsageError(f"{text!r} is out of range; write {dimension.format(least)} to {dimension.format(most)}")
    return amount


def _read_denials(file: Path) -> dict[tuple[int, int], list[int]]:
    try:
        rows = json_of(read_bytes(file))["denied"]
        return {(int(row["source"]), int(row["destination"])): [int(ev) for ev in row["evs"]] for row in rows}
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{file} is not a list of paths to avoid; weft lab map --deny writes one") from None


def _say(words: str) -> None:
    sys.stderr.write(words + "\n")
