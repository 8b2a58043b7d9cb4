"""A campaign as one self-contained page: tables, and a timeline that can be played. No network, no library."""

import html
import json
from pathlib import Path
from typing import Any

from weft.campaign.fleet import HOUR_MS
from weft.campaign.gpu_time import BUCKETS, USEFUL

_TEMPLATE = Path(__file__).with_name("campaign_page.html")


def page_of(document: dict[str, Any]) -> str:
    """Return the page of a campaign."""
    first, band = document["seeds"][0], document["bands"]
    title = f"{document['site']}, {document['scenario']}"
    whole = first["gpu_ms_in_all"]
    rows = "".join(
        f"<tr class='{'useful' if name in USEFUL else ''}'><td>{name}</td><td>{found['mean'] / HOUR_MS:,.0f}</td>"
        f"<td>{found['mean'] / whole:.3%}</td><td>{found['p5'] / whole:.3%} to {found['p95'] / whole:.3%}</td>"
        f"<td>{html.escape(BUCKETS[name])}</td></tr>"
        for name, found in band["gpu_ms"].items()
        if found["mean"]
    )
    faults = "".join(
        f"<tr><td>{html.escape(each['class'])}</td><td>{each['count']:,}</td><td>{each['stops']:,}</td>"
        f"<td>{each['stopped_gpu_h']:,.0f}</td><td>{each['out_gpu_h']:,.0f}</td></tr>"
        for each in first["faults"]
    )
    summary = (
        f"{first['gpus']:,} GPUs over {first['days']:g} days, {len(document['seeds'])} seeds: goodput "
        f"{band['goodput']['mean']:.2%}"
    )
    data = json.dumps({"timeline": first["timeline"], "gpus": first["gpus"]}, separators=(",", ":"))
    page = _TEMPLATE.read_text(encoding="utf-8")
    # Inside a script element nothing but "</" ends it.
    for mark, text in (
        ("@TITLE@", html.escape(title)), ("@SUMMARY@", html.escape(summary)), ("@BUCKETS@", rows),
        ("@FAULTS@", faults), ("@DATA@", data.replace("</", "<\\/")),
    ):  # fmt: skip
        page = page.replace(mark, text)
    return page
