"""The picture of a campaign: where the GPU-hours went, and how many GPUs were where over time."""

from typing import TYPE_CHECKING, Any

from weft.campaign.gpu_time import BUCKETS, USEFUL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SMALLEST = 0.0005
"""Share below which a bucket is not drawn."""


def draw_campaign(figure: "Figure", document: dict[str, Any]) -> None:
    """Draw the buckets that are not goodput, and the timeline of the first seed."""
    first, band = document["seeds"][0], document["bands"]
    above, below = figure.subplots(2, 1, height_ratios=(3, 2))
    whole = first["gpu_ms_in_all"]
    shown = [name for name in BUCKETS if name not in USEFUL and band["gpu_ms"][name]["mean"] / whole > _SMALLEST]
    means = [100 * band["gpu_ms"][name]["mean"] / whole for name in shown]
    lows = [100 * (band["gpu_ms"][name]["mean"] - band["gpu_ms"][name]["p5"]) / whole for name in shown]
    highs = [100 * (band["gpu_ms"][name]["p95"] - band["gpu_ms"][name]["mean"]) / whole for name in shown]
    above.barh(shown, means, xerr=(lows, highs), color="tab:orange", capsize=3)
    above.invert_yaxis()
    above.set_xlabel("% of all GPU-hours (bars: 5th to 95th percentile over seeds)")
    above.set_title(f"{document['site']}, {document['scenario']}: goodput {band['goodput']['mean']:.1%}")
    timeline = first["timeline"]
    days = [hours / 24 for hours in timeline["at_h"]]
    names = [name for name in timeline["gpus"] if name not in ("training", "jobs")]
    below.stackplot(days, *(timeline["gpus"][name] for name in names), labels=names)
    below.set_xlabel("days")
    below.set_ylabel("GPUs that do not train")
    if names:
        below.legend(loc="upper right", fontsize=7, ncols=3)
