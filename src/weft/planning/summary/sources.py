"""What a rehearsal rests on: its assumptions, from the site file or weft's defaults, and the sources of its figures."""

from pydantic import BaseModel

from weft.core.spec import Spec
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.fabric.bill import bill_of
from weft.planning.report import PlanReport
from weft.planning.summary.wording import Plain, figure
from weft.specs.site import SiteSpec

_FILE, _DEFAULT = "site file", "weft's default"
_RATES = ("gpu", "host", "link_flap", "software", "silent")
_TIMES = ("detection", "restart", "repair", "silent_detection", "cold_start")
_FIT_PER_YEAR = 8766 / 1e9


def assumptions(site: SiteSpec, report: PlanReport | None) -> list[Plain]:
    """Return what was assumed, and who says so."""
    power, failures = site.power, site.failures
    rows = [
        _row("energy for each unit that computers use (PUE)", power.pue, "", power, "pue"),
        _row("price of a kWh", power.price_per_kwh / 100, site.prices.currency, power, "price_per_kwh"),
        _row("carbon dioxide of a kWh", float(power.carbon_g_per_kwh), "g", power, "carbon_g_per_kwh"),
    ]
    if report is not None:
        prices = site.prices
        rows.append(_row("price of a GPU-hour", prices.gpu_hour / 100, prices.currency, prices, "gpu_hour"))
    for name in _TIMES:
        amount = getattr(failures, name)
        if amount:
            rows.append(_row(_words(name), amount / PICOSECONDS_PER_SECOND, "s", failures, name))
    for name in _RATES:
        rate = getattr(failures, name)
        if rate:
            rows.append(_row(f"{_words(name)} failures a year, each", rate * _FIT_PER_YEAR, "", failures, name))
    return rows


def sources(site: SiteSpec, report: PlanReport | None) -> list[Plain]:
    """Return where the figures come from."""
    rows = [{"what": f"GPU ({site.gpu.kind})", "source": site.gpu.source}]
    if report is not None:
        rows.append({"what": "reached speeds", "source": report.machine.efficiency.source})
        rows.append({"what": "interval of the step time", "source": report.confidence.basis})
    parts = site.fabric.parts
    used = {line.part for line in bill_of(site.fabric).lines if line.count}
    rows += [
        {"what": name, "source": str(getattr(parts, name).source)}
        for name in ("switch", "nic", "optic", "fibre", "copper")
        if name in used
    ]
    rows += [
        {"what": _words(name), "source": _documented(site.failures, name)}
        for name in _RATES
        if getattr(site.failures, name) and name not in site.failures.model_fields_set
    ]
    rows += [
        {"what": "goodput", "source": "Daly, Future Generation Computer Systems 22, 2006, equations 20 and 37"},
        {"what": "power", "source": "waveform, bands and contract after arXiv 2508.14318 and arXiv 2412.08602"},
        {"what": "activations", "source": "arXiv 2205.05198, section 4"},
    ]
    return rows


def _row(what: str, value: float, unit: str, table: Spec, name: str) -> Plain:
    return {"what": what, **figure(value, unit), "by": _FILE if name in table.model_fields_set else _DEFAULT}


def _words(name: str) -> str:
    return {
        "gpu": "GPU", "host": "host", "link_flap": "link flap", "software": "software", "silent": "silent corruption",
        "detection": "time to detect a failure", "restart": "time to restart", "repair": "time to repair a node",
        "silent_detection": "time to detect silent corruption", "cold_start": "longer start for each thousand GPUs",
    }[name]  # fmt: skip


def _documented(table: BaseModel, name: str) -> str:
    """Return what the specification says of a field's default."""
    text = " ".join((type(table).model_fields[name].description or "").split())
    return text.partition("Default: ")[2] or text
