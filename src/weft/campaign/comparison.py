"""Two campaigns side by side: the same seeds, so the same faults; the difference of each pair, and its interval."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.campaign.fleet import HOUR_MS
from weft.campaign.outcome import Document

Figure = Callable[[Document], float]
_CONFIDENCE = 0.95


def _ettr(document: Document) -> float:
    gpus = sum(gang["gpus"] for gang in document["gangs"])
    return sum(gang["ettr"] * gang["gpus"] for gang in document["gangs"]) / gpus if gpus else 0.0


def _bucket(name: str) -> Figure:
    return lambda document: document["gpu_ms"][name] / HOUR_MS


FIGURES: dict[str, Figure] = {
    "goodput": lambda document: document["goodput"],
    "ETTR of the gangs": _ettr,
    "useful GPU-hours": lambda document: document["goodput"] * document["gpu_ms_in_all"] / HOUR_MS,
    "interruptions": lambda document: float(sum(gang["interruptions"] for gang in document["gangs"])),
    "GPU-hours rolled back": _bucket("rolled back"),
    "GPU-hours restarting": _bucket("restart"),
    "GPU-hours slowed by the network": _bucket("network"),
    "GPU-hours poisoned": _bucket("poisoned"),
    "poisoned steps kept": lambda document: float(document["silent"]["poisoned_steps_not_found"]),
    "technician hours": lambda document: document["repair"]["technician_h"],
    "energy, MWh": lambda document: document["power"]["energy_kwh"] / 1000,
    "USD for a useful GPU-hour": lambda document: document["money"]["useful_gpu_hour_usd"] or 0.0,
}
"""What is compared."""


def compared(first: Sequence[Document], second: Sequence[Document]) -> list[dict[str, Any]]:
    """Return each figure of both, and the paired difference with its 95 % interval (Student's t)."""
    from scipy.stats import t

    pairs = len(first)
    found: list[dict[str, Any]] = []
    for name, figure in FIGURES.items():
        one, two = (np.array([figure(document) for document in side]) for side in (first, second))
        gaps = two - one
        half = 0.0
        if pairs > 1:
            half = float(t.ppf((1 + _CONFIDENCE) / 2, pairs - 1) * gaps.std(ddof=1) / pairs**0.5)
        mean = float(gaps.mean())
        found.append({
            "figure": name, "first": float(one.mean()), "second": float(two.mean()), "difference": mean,
            "low": mean - half, "high": mean + half,
            "differs": pairs > 1 and (mean - half > 0 or mean + half < 0),
        })  # fmt: skip
    return found
