"""`weft serve-plan`: a model served on a site with prefill and decode apart, its price, and the training beside it."""

from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from weft import api
from weft.cli.output import JobArgument, JsonFlag, SiteArgument, print_json, print_table, say
from weft.cli.screen.figures import days, money, seconds, thousands
from weft.core.errors import UsageError
from weft.core.provenance import provenance
from weft.core.quantity import TIME, QuantityError, significant
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.fabric.bill import bill_of
from weft.planning.cost_model.machine import machine_of
from weft.planning.cost_model.plans import dimensions_of
from weft.planning.report import PlanReport
from weft.planning.run.inference import ServedPrecision
from weft.planning.run.serving_plan import LOAD, ServingPlan, ServingPool, ServingRequest, serving_plan
from weft.specs import load_job, load_site
from weft.specs.site import SiteSpec

_LONGEST_TEXT = 10_000_000


def serve_plan(
    job: JobArgument,
    /,
    *,
    site: SiteArgument,
    prompt: Annotated[int, Parameter(help="Tokens of a prompt.")] = 2048,
    output: Annotated[int, Parameter(help="Tokens of an answer.")] = 512,
    ttft: Annotated[str, Parameter(help="Longest mean time to the first token.")] = "1 s",
    tpot: Annotated[str, Parameter(help="Longest time between two tokens.")] = "50 ms",
    precision: Annotated[ServedPrecision, Parameter(help="Arithmetic of the products.")] = "fp8",
    kv: Annotated[ServedPrecision, Parameter(help="Precision of keys and values.")] = "fp8",
    rate: Annotated[
        float | None, Parameter(help="Requests a second; the other GPUs of the site go to training JOB.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Plan serving the model of JOB: prefill and decode on GPUs of their own, within TTFT and TPOT."""
    room, task = load_site(site), load_job(job)
    for name, value in (("--prompt", prompt), ("--output", output)):
        if not 1 <= value <= _LONGEST_TEXT:
            raise UsageError(f"{name} {value}: write a number of tokens from 1 to {_LONGEST_TEXT:,}")
    if rate is not None and not 0 < rate < float("inf"):
        raise UsageError(f"--rate {rate:g}: write a number of requests a second above zero")
    asked = ServingRequest(prompt, output, _time("--ttft", ttft), _time("--tpot", tpot), precision, kv)
    found = serving_plan(dimensions_of(task.model), machine_of(room), asked)
    if isinstance(found, str):
        raise UsageError(f"{task.name} on {room.name}: {found}")
    prices = _prices(room, found, output)
    beside = None if rate is None else _beside(room, job, found, rate)
    if json:
        print_json(_document(room, found, prices, beside))
        return
    _print(f"{task.name} served on {room.name}", room, found, prices)
    if beside is not None and rate is not None:
        _print_beside(found, rate, beside)


def _time(name: str, text: str) -> float:
    try:
        found = TIME.parse(text) / PICOSECONDS_PER_SECOND
    except QuantityError as error:
        raise UsageError(f"{name}: {error}") from None
    if found <= 0:
        raise UsageError(f"{name} {text}: write a time above zero, such as '50 ms'")
    return found


def _prices(site: SiteSpec, found: ServingPlan, output: int) -> dict[str, float]:
    """Return what a million written tokens take: GPU-hours, energy, carbon and money, in hundredths."""
    hours = 1e6 / found.tokens_per_s_per_gpu / 3600
    other_w = site.node.power / 1000 / site.node.gpus + bill_of(site.fabric).power_mw / 1000 / site.fabric.gpus
    energy = hours * (site.gpu.power / 1000 + other_w) * site.power.pue / 1000
    return {
        "gpu_hours": hours,
        "gpu_cents": hours * site.prices.gpu_hour,
        "energy_kwh": energy,
        "energy_cents": energy * site.power.price_per_kwh,
        "carbon_g": energy * site.power.carbon_g_per_kwh,
        "requests": 1e6 / output,
    }


def _beside(site: SiteSpec, job: str, found: ServingPlan, rate: float) -> tuple[int, PlanReport, PlanReport]:
    """Return the GPUs that serve `rate` requests a second, and JOB's training on the whole site and on the rest."""
    gpus = sum(found.gpus_for(rate))
    nodes = -(-gpus // site.node.gpus)
    whole = site.fabric.gpus // site.node.gpus
    if nodes >= whole:
        raise UsageError(
            f"--rate {rate:g} takes {gpus:,} GPUs, and the site has {site.fabric.gpus:,}; ask for at most "
            f"{significant(found.requests_per_s_per_gpu * site.fabric.gpus)} requests a second"
        )
    return gpus, api.plan(job, site, top=1), api.plan(job, site, top=1, what_if=f"nodes={whole - nodes}")


def _document(
    site: SiteSpec, found: ServingPlan, prices: dict[str, float], beside: tuple[int, PlanReport, PlanReport] | None
) -> dict[str, Any]:
    document: dict[str, Any] = {**asdict(found), "load": LOAD, "currency": site.prices.currency,
                                "per_million_tokens": prices, "beside": None}  # fmt: skip
    if beside is not None:
        gpus, whole, rest = beside
        document["beside"] = {
            "serving_gpus": gpus, "training_gpus": rest.machine.gpus,
            "step_s": float(rest.chosen.step_s[0]), "days": rest.run.days,
            "step_alone_s": float(whole.chosen.step_s[0]), "days_alone": whole.run.days,
        }  # fmt: skip
    return {**document, "provenance": provenance({"site": site.as_written()}).as_json()}


def _print(title: str, site: SiteSpec, found: ServingPlan, prices: dict[str, float]) -> None:
    currency = site.prices.currency
    say(
        f"TTFT {seconds(found.ttft_s)}, TPOT {seconds(found.tpot_s)}, {thousands(found.tokens_per_s_per_gpu)} tokens/s "
        f"per GPU, {money((prices['gpu_cents'] + prices['energy_cents']) / 100, currency)} for a million tokens"
    )
    rows = [_row("prefill", found.prefill, found.prefill_share), _row("decode", found.decode, 1 - found.prefill_share)]
    print_table(title, ("pool", "GPUs", "TP", "EP", "batch", "time", "share of GPUs"), rows)
    facts = [
        ("KV cache of a token", f"{found.kv_bytes_per_token:,} B"),
        ("KV transfer of a prompt", seconds(found.transfer_s)),
        ("load of a replica", f"{LOAD:.0%}"),
        ("GPU-hours", significant(prices["gpu_hours"])),
        ("price of GPU-hours", money(prices["gpu_cents"] / 100, currency)),
        ("energy", f"{significant(prices['energy_kwh'])} kWh"),
        ("price of energy", money(prices["energy_cents"] / 100, currency)),
        ("carbon", f"{significant(prices['carbon_g'])} g CO2"),
    ]
    print_table("a million tokens written", ("what", "value"), facts, words=(0, 1))


def _row(name: str, pool: ServingPool, share: float) -> tuple[str, ...]:
    return (name, f"{pool.gpus}", f"{pool.tp}", f"{pool.ep}", f"{pool.batch:,}", seconds(pool.seconds), f"{share:.0%}")


def _print_beside(found: ServingPlan, rate: float, beside: tuple[int, PlanReport, PlanReport]) -> None:
    gpus, whole, rest = beside
    prefill, decode = found.gpus_for(rate)
    rows = [
        ("serving", f"{gpus:,}", "-", "-"),
        ("training beside it", f"{rest.machine.gpus:,}", seconds(float(rest.chosen.step_s[0])), days(rest.run.days)),
        ("training alone", f"{whole.machine.gpus:,}", seconds(float(whole.chosen.step_s[0])), days(whole.run.days)),
    ]
    print_table(
        f"{significant(rate)} requests/s: {prefill:,} GPUs for prefill, {decode:,} for decode",
        ("what", "GPUs", "step", "run"),
        rows,
    )
