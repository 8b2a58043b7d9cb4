"""The picture of `weft plan --plot`: memory, the step as a Gantt chart, power over time, goodput over failure rates."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from weft.cli.pictures import COLOURS
from weft.planning.cost_model.timeline import timeline
from weft.planning.report import PlanReport
from weft.planning.run.goodput import DAY_S, HOUR_S, daly_interval_s, daly_share

_GIB = 2**30
_SHOWN_STAGES, _SHOWN_ROUNDS, _SHOWN_STEPS = 8, 16, 3
_FAR = 10
"""A limit that lies this many times above what is drawn is named, not drawn: it would flatten the rest."""
_WATTS = {"MW": 1e6, "kW": 1e3}
_KINDS = {"forward": COLOURS[0], "backward": COLOURS[1], "weights": COLOURS[2]}


def draw_plan(figure: Figure, found: PlanReport) -> None:
    """Draw the four pictures of a plan."""
    row = found.chosen.plans.row(0)
    figure.suptitle(
        f"{found.job.name} on {found.site.name}: dp {row['dp']} x tp {row['tp']} x pp {row['pp']} x cp {row['cp']}, "
        f"step {float(found.chosen.step_s[0]):.3g} s, MFU {float(found.chosen.mfu[0]):.1%}"
    )
    places = figure.subplots(2, 2).ravel()
    _memory(places[0], found)
    _gantt(places[1], found)
    _power(places[2], found)
    _goodput(places[3], found)


def _memory(axes: Axes, found: PlanReport) -> None:
    best = found.outcome.best if len(found.outcome.best) else found.chosen
    names = [f"{p['dp']}x{p['tp']}x{p['pp']}x{p['cp']}" for p in (best.plans.row(i) for i in range(len(best)))]
    bottom = [0.0] * len(best)
    for colour, part in zip(COLOURS, ("weights", "gradients", "optimizer", "activations", "working"), strict=False):
        heights = [float(value) / _GIB for value in getattr(best.memory, part)]
        axes.bar(range(len(best)), heights, bottom=bottom, color=colour, label=part)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    _limit(axes, found.machine.memory_bytes / _GIB, max(bottom), "GPU memory", "GiB")
    axes.set_xticks(range(len(best)), names, rotation=45, ha="right", fontsize=7)
    axes.set_ylabel("GiB on the fullest GPU")
    axes.set_title("memory of the best plans (dp x tp x pp x cp)", fontsize=10)
    axes.margins(y=0.25)
    axes.legend(fontsize=7, ncols=3, loc="upper right")


def _limit(axes: Axes, limit: float, drawn: float, what: str, unit: str) -> None:
    """Draw a limit as a line, or name it in the legend where it is far above what is drawn."""
    if limit > _FAR * drawn:
        axes.plot([], [], linestyle="none", label=f"{what}: {limit:,.3g} {unit}")
    else:
        axes.axhline(limit, color="#333333", linestyle="--", linewidth=1, label=what)


def _gantt(axes: Axes, found: PlanReport) -> None:
    row = found.chosen.plans.row(0)
    times = found.chosen.times
    rounds = found.work.sequences // (row["dp"] * row["micro"])
    stages = min(row["pp"], _SHOWN_STAGES)
    shown = max(stages, min(rounds, _SHOWN_ROUNDS) // stages * stages)
    chunks = row["chunks"] if row["schedule"] == "interleaved" else 1
    forward, backward = float(times.forward_s[0]), float(times.backward_s[0])
    weights = forward if row["schedule"] in ("zero-bubble", "zbv") and backward > forward else 0.0
    bars = list(timeline(stages, shown, forward, backward, chunks=chunks, weights_s=weights))
    for bar in bars:
        axes.barh(
            bar.stage, 1e3 * (bar.end_s - bar.start_s), left=1e3 * bar.start_s, height=0.85, color=_KINDS[bar.kind],
            alpha=0.55 + 0.45 * (bar.micro % 2), linewidth=0,
        )  # fmt: skip
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.set_ylabel("stage")
    axes.set_yticks(range(stages))
    axes.grid(visible=False)
    name = "zbv, drawn as zero-bubble" if row["schedule"] == "zbv" else row["schedule"]
    axes.set_title(f"{name}: {stages} of {row['pp']} stages, {shown} of {rounds} micro-batches", fontsize=10)
    drawn = {bar.kind for bar in bars}
    handles = [Patch(color=colour, label=kind) for kind, colour in _KINDS.items() if kind in drawn]
    # The bars fill the axes, so the legend stands below them.
    axes.legend(handles=handles, fontsize=7, ncols=len(handles), loc="lower right", bbox_to_anchor=(1.0, -0.16))


def _power(axes: Axes, found: PlanReport) -> None:
    count = max(2, round(_SHOWN_STEPS * float(found.chosen.step_s[0]) * found.per_second))
    wave = found.meter.at(found.wave[:count])
    unit, size = next(((unit, size) for unit, size in _WATTS.items() if wave.max() >= size), ("W", 1.0))
    wave = wave / size
    axes.plot([number / found.per_second for number in range(len(wave))], wave, color=COLOURS[5], linewidth=1)
    limit = found.site.power.limit
    if limit is not None:
        _limit(axes, limit / 1000 / size, float(wave.max()), "contract", unit)
        axes.legend(fontsize=7)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("s")
    axes.set_ylabel(f"{unit} at the meter")
    axes.set_title(f"power over {_SHOWN_STEPS} steps, swing {found.power.swing_w / size:.3g} {unit}", fontsize=10)


def _goodput(axes: Axes, found: PlanReport) -> None:
    good = found.goodput
    nodes = int(found.chosen.plans.ranks[0]) / found.site.node.gpus
    own = 1000 * DAY_S / (good.mttf_s * nodes)
    lowest = min(0.25, own / 10) if own > 0 else 0.25
    rates = [lowest * 1.2**power for power in range(80)]
    rates = [rate for rate in rates if rate <= max(24, 10 * own)]
    for share, colour in ((1 / 3, COLOURS[2]), (1, COLOURS[0]), (3, COLOURS[1])):
        restart = share * good.restart_s
        shares: list[float] = []
        for rate in rates:
            mttf = 1000 * DAY_S / (rate * nodes)
            interval = max(float(found.chosen.step_s[0]), daly_interval_s(mttf, good.write_s))
            shares.append(daly_share(mttf, restart, good.write_s, interval))
        axes.plot(rates, shares, color=colour, label=f"restart {restart:.3g} s")
    if own > 0:
        label = f"this site: {good.mttf_s / HOUR_S:.2g} h between failures"
        axes.plot([own], [good.share], "o", color="#333333", label=label)
    else:
        axes.plot([], [], " ", label="this site: no failures")
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("failures for 1,000 node-days")
    axes.set_ylabel("share of time that is work")
    axes.set_title("goodput over failure rates", fontsize=10)
    axes.legend(fontsize=7)
