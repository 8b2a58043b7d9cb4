"""The pictures of `weft simulate --plot`. Loaded only when one is drawn, because matplotlib is slow to import."""

import numpy as np
from matplotlib.figure import Figure

from weft.cli.pictures import COLOURS
from weft.core.quantity import counted
from weft.netsim.report import SimulationReport

_PS_PER_US = 10**6
_KB = 1000


def draw_reports(figure: Figure, reports: tuple[SimulationReport, ...]) -> None:
    """Draw rate and deepest queue over time, and how completion times are spread, one colour a transport."""
    (rate, spread), (queue, stages) = figure.subplots(2, 2)
    for report, colour in zip(reports, COLOURS, strict=False):
        ends_us = np.array(report.series.ends_ps) / _PS_PER_US
        nics = max(1, len({destination for _, destination in report.pairs}))
        rate.step(ends_us, report.series.rates_bps() / nics / 1e9, where="pre", color=colour, label=report.transport)
        peaks = report.series.queue_peaks
        queue.step(ends_us, peaks[:, 1:].max(axis=1) / _KB, where="pre", color=colour, label=report.transport)
        times = report.completions_us()
        if len(times):
            spread.step(times, np.arange(1, len(times) + 1) / len(times), where="post", color=colour)
        stages.plot(range(1, peaks.shape[1]), peaks[:, 1:].max(axis=0) / _KB, "o-", color=colour)
    spread.axvline(reports[0].ideal_ps / _PS_PER_US, color="#999999", linestyle="--", linewidth=1)
    for at in (fault.at_ps for fault in reports[0].faults):
        rate.axvline(at / _PS_PER_US, color="#d55e00", linestyle=":", linewidth=1)
    rate.set(title="payload per receiving NIC", xlabel="time, us", ylabel="Gb/s", ylim=(0, None))
    queue.set(title="deepest data queue in the switches", xlabel="time, us", ylabel="kB", ylim=(0, None))
    spread.set(title="flows completed (dashed: ideal)", xlabel="completion time, us", ylabel="share", ylim=(0, 1.02))
    stages.set_xticks(range(1, peaks.shape[1]))
    stages.set(title="deepest data queue by hop", xlabel="hop on the path", ylabel="kB", ylim=(0, None))
    rate.legend()
    figure.suptitle(f"{reports[0].scenario}: {reports[0].hosts:,} NICs, {counted(reports[0].planes, 'plane')}")
