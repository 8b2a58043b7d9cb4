"""What `weft simulate` prints of its reports: the verdict, the completion times, and what faults did."""

import resource

from weft.cli.output import print_table, say
from weft.cli.screen.figures import scaled
from weft.core.quantity import RATE, SIZE, TIME, counted
from weft.netsim.report import SimulationReport

_WORTH_TELLING_S = 1.0
"""Runs that took at least so long say how fast they were and what memory they took."""
_AS_GOOD = 1.005
"""Two makespans within half a per cent are called equal."""


def print_reports(reports: tuple[SimulationReport, ...], *, details: bool) -> None:
    """Print the verdict, a line for each transport, and what faults did; the counters where details are wanted."""
    first = reports[0]
    say(f"{first.scenario}: {first.hosts:,} NICs, {counted(first.planes, 'plane')}", style="bold")
    for line in verdict(reports):
        say(line)
    say("")
    columns = ("transport", "flows", "fct mean", "p99", "max", "to ideal", "NIC goodput", "resent")
    print_table(f"completion times; ideal {TIME.about(first.ideal_ps)}", columns, [_row(each) for each in reports])
    _print_faults(reports)
    if details:
        _print_counters(reports)
    else:
        say("trims, marks, packet-hops and the trace's hash: --details")


def verdict(reports: tuple[SimulationReport, ...]) -> list[str]:
    """Return a line for each transport: whether everything arrived, when, and against the fastest of them."""
    ends = [report.makespan_ps() for report in reports]
    known = [end for end in ends if end is not None]
    best = min(known, default=None)
    lines: list[str] = []
    for report, end in zip(reports, ends, strict=True):
        flows = [flow for flow in report.flows if flow.counted]
        missing = sum(flow.completion_ps is None for flow in flows)
        if end is None or best is None:
            lines.append(f"{report.transport}: {missing:,} of {counted(len(flows), 'flow')} did not complete")
            continue
        over = report.over_ideal()
        ideal = "" if over is None else ", the ideal" if f"{over:.3g}" == "1" else f", {over:.3g} times the ideal"
        slower = "" if end <= _AS_GOOD * best else f"; {end / best:.3g} times as long as the fastest"
        whole = {0: "nothing crosses the fabric;", 1: "the flow"}.get(len(flows), f"all {counted(len(flows), 'flow')}")
        lines.append(f"{report.transport}: {whole} done in {TIME.about(end)}{ideal}{slower}")
    return [f"verdict: {lines[0]}", *(f"         {line}" for line in lines[1:])]


def _print_faults(reports: tuple[SimulationReport, ...]) -> None:
    rows = [
        (report.transport, fault.kind, fault.target, TIME.about(fault.at_ps), f"{fault.data_lost:,}",
         f"{fault.pairs:,} of {len(report.pairs):,}", _longest(fault.recovery_ps))
        for report in reports
        for fault in report.faults
    ]  # fmt: skip
    if rows:
        columns = ("transport", "fault", "part", "at", "data lost", "QPs affected", "longest recovery")
        print_table("impact of the faults", columns, rows, words=(0, 1, 2))


def _print_counters(reports: tuple[SimulationReport, ...]) -> None:
    rows = [
        (report.transport, *(_count(number) for number in (report.trimmed, report.marked, report.packet_hops)),
         f"{report.cpu_s:.1f} s")
        for report in reports
    ]  # fmt: skip
    print_table("packets", ("transport", "trimmed", "marked", "hops", "CPU"), rows)
    for report in reports:
        slowest = report.slowest()
        if slowest is not None:
            took = "did not complete" if slowest.completion_ps is None else TIME.about(slowest.completion_ps)
            failure = f" ({slowest.failure})" if slowest.failure else ""
            say(f"{report.transport}: slowest flow {slowest.name} {took}{failure}; trace {report.hash()}")
        if report.wall_s > _WORTH_TELLING_S:
            hops = report.packet_hops
            say(
                f"{report.transport}: {_count(hops)} packet-hops in {report.wall_s:.0f} s, "
                f"{_count(hops / report.wall_s)} a second and {_count(hops / report.cpu_s)} a CPU second; "
                f"at most {SIZE.about(_peak_bytes())} of memory"
            )


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _count(number: float) -> str:
    """Return a count: all digits of a small one, three and a letter of a large one."""
    return scaled(number, {"G": 1e9, "M": 1e6}, below="{:,.0f}".format)


def _row(report: SimulationReport) -> tuple[str, ...]:
    found = report.as_json()
    times = found["fct_us"]
    known = times["max"] is not None
    us = [TIME.about(times[name] * 10**6, 4) if known else "-" for name in ("mean", "p99", "max")]
    over = report.over_ideal()
    ratio = "-" if over is None else f"{over:.3f}"
    whole = found["completed"] == found["flows"]
    flows = f"{found['flows']:,}" if whole else f"{found['completed']:,} of {found['flows']:,}"
    rate = RATE.about(found["goodput_bps_per_nic"])
    return report.transport, flows, *us, ratio, rate, _count(found["retransmitted"])


def _longest(recovery_ps: tuple[int, ...]) -> str:
    return TIME.about(max(recovery_ps)) if recovery_ps else "-"
