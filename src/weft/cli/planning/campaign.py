"""`weft campaign`: months of a fleet in simulated time, with the controllers that run it."""

import re
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from weft.campaign.fleet import HOUR_MS, Fleet
from weft.campaign.gpu_time import BUCKETS
from weft.campaign.outcome import bands
from weft.campaign.seeds_in_parallel import Question, outcomes
from weft.cli.output import (
    JsonFlag,
    PlotFile,
    SiteArgument,
    counting,
    print_json,
    print_table,
    save_plot,
    say,
    writing,
    written_to,
)
from weft.cli.screen.figures import kilograms, kilowatt_hours, seconds, usd, watts
from weft.core.errors import FailedError, UsageError
from weft.core.processors import processors as cores
from weft.core.provenance import provenance
from weft.core.quantity import significant
from weft.core.specfile import with_values
from weft.specs import CAMPAIGNS, load_campaign, load_site
from weft.specs.campaign import CampaignSpec

app = App(
    name="campaign", help="Run months of a fleet with its faults, repairs and controllers.", help_format="plaintext"
)

MOST_SEEDS = 1000
ScenarioName = Annotated[
    str, Parameter(name="--scenario", help="Campaign file, or a built-in name: " + ", ".join(CAMPAIGNS.names()) + ".")
]
SeedCount = Annotated[int, Parameter(name="--seeds", help="How many seeds, from 0 on: bands come from them.")]
Processes = Annotated[
    int | None, Parameter(name="--processes", help="Processes that share the seeds; default: one for each core.")
]
SetValues = Annotated[
    list[str] | None,
    Parameter(name="--set", negative="", help="Change a key, as spares=20 or repair.crews=4; may be repeated."),
]
HtmlFile = Annotated[
    Path | None,
    Parameter(name="--html", help="Write a page with a timeline into FILE (.html)."),
    written_to("--html", ".html"),
]


def question_of(site: str, scenario: str, changes: list[str] | None = None) -> Question:
    """Return the campaign that a command line asks for."""
    spec = with_changes(load_campaign(scenario), changes)
    folder = None if scenario in CAMPAIGNS.names() else Path(scenario).parent
    return Question(load_site(site), spec, folder)


def with_changes(spec: CampaignSpec, changes: list[str] | None) -> CampaignSpec:
    """Return a scenario with the values of `--set`; gangs.KEY changes every gang."""
    values: dict[str, str] = {}
    gangs: dict[str, str] = {}
    for change in changes or []:
        key, equals, value = change.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {change!r}: write KEY=VALUE, such as spares=20")
        plain = value.strip()
        side, _, inner = key.strip().partition("gangs.")
        table, name = (values, side) if not inner else (gangs, inner)
        table[name] = plain if _is_toml(plain) else f'"{plain}"'
    found = with_values(spec, values, "--set")
    if gangs:
        changed = tuple(with_values(gang, gangs, "--set gangs") for gang in found.gangs)
        found = found.model_copy(update={"gangs": changed})
    return found


def _is_toml(text: str) -> bool:
    return re.fullmatch(r"[-+]?\d[\d_]*(\.\d+)?|true|false|\".*\"|'.*'|\[.*\]|\{.*\}", text, re.DOTALL) is not None


def checked_seeds(seeds: int) -> range:
    """Return the seeds of a command line."""
    if not 1 <= seeds <= MOST_SEEDS:
        raise UsageError(f"--seeds {seeds}: ask for 1 to {MOST_SEEDS:,} seeds")
    return range(seeds)


def run_seeds(name: str, question: Question, seeds: range, processes: int | None) -> list[dict[str, Any]]:
    """Run a campaign for every seed, with a bar on a terminal."""
    if processes is not None and processes < 1:
        raise UsageError(f"--processes {processes}: ask for at least 1 process")
    Fleet(question.site, question.spec)
    with counting(name, len(seeds)) as done:
        return outcomes(question, list(seeds), processes or cores(), done)


@app.default
def campaign(
    site: SiteArgument,
    /,
    *,
    scenario: ScenarioName = "standard",
    seeds: SeedCount = 1,
    set_: SetValues = None,
    processes: Processes = None,
    json: JsonFlag = False,
    plot: PlotFile = None,
    html: HtmlFile = None,
) -> None:
    """Run a fleet over months of simulated time and say where every GPU-hour went."""
    question = question_of(site, scenario, set_)
    found = run_seeds(scenario, question, checked_seeds(seeds), processes)
    origin = provenance({"site": question.site.as_written(), "scenario": question.spec.as_written()}, 0)
    for each in found[1:]:
        del each["timeline"]
    document = {
        "site": question.site.name, "scenario": scenario, "bands": bands(found), "seeds": found,
        "provenance": origin.as_json(),
    }  # fmt: skip
    if plot is not None:
        from weft.cli.planning.campaign_pictures import draw_campaign

        save_plot(plot, partial(draw_campaign, document=document), size=(11.0, 7.5))
    if html is not None:
        from weft.cli.planning.campaign_page import page_of

        with writing(html) as part:
            part.write_text(page_of(document), encoding="utf-8")
    if json:
        print_json(document)
    else:
        _print(question, scenario, document)


CHOICES: dict[str, tuple[str, ...]] = {
    "no-spares": ("spares=0",),
    "spares": (),
    "one-plane": ("network.planes=1",),
    "eight-planes": ("network.planes=8",),
    "bgp": ("network.recovery=5 s",),
    "mrc": ("network.recovery=100 us",),
    "restart": ("gangs.recovery=restart",),
    "in-step": ("gangs.recovery=in-step",),
    "whole-racks": ("ladder.unit=rack", "ladder.needed=0"),
    "64-of-72": ("ladder.unit=rack", "ladder.needed=16"),
    "no-screening": ("screening.mode=none",),
    "screening-weekly": ("screening.mode=replay", "screening.every=7 d"),
    "screening-daily": ("screening.mode=replay", "screening.every=1 d"),
}
"""Policies by name. BGP converges in 1 to 10 s, MRC finds another path within a round trip (arXiv 2605.04333)."""

SideName = Annotated[
    str,
    Parameter(help="A policy (" + ", ".join(CHOICES) + "), changes as spares=0,repair.crews=4, or a campaign file."),
]


def side_of(name: str, site: str, scenario: str) -> Question:
    """Return one side of a comparison."""
    if name in CHOICES:
        return question_of(site, scenario, list(CHOICES[name]))
    if "=" in name:
        return question_of(site, scenario, name.split(","))
    if name in CAMPAIGNS.names() or name.endswith(".toml"):
        return question_of(site, name)
    raise UsageError(f"{name!r} is no policy, change or scenario; policies are {', '.join(CHOICES)}")


@app.command
def compare(
    first: SideName,
    second: SideName,
    /,
    *,
    site: Annotated[str, Parameter(help="Built-in name or path of a site file.")],
    scenario: ScenarioName = "standard",
    seeds: SeedCount = 10,
    processes: Processes = None,
    json: JsonFlag = False,
) -> None:
    """Compare two policies or scenarios over the same seeds, and say what differs."""
    numbers = checked_seeds(seeds)
    sides = [(name, side_of(name, site, scenario)) for name in (first, second)]
    one, two = (run_seeds(name, question, numbers, processes) for name, question in sides)
    from weft.campaign.comparison import compared

    rows = compared(one, two)
    if json:
        print_json({"site": site, "scenario": scenario, "first": first, "second": second, "seeds": seeds, "rows": rows})
        return
    table = [
        (each["figure"], significant(each["first"], 4), significant(each["second"], 4),
         f"{significant(each['difference'])} ({significant(each['low'])} to {significant(each['high'])})",
         "yes" if each["differs"] else "no")
        for each in rows
    ]  # fmt: skip
    title = f"{site}, {scenario}: {first} against {second}, {seeds} seeds with the same faults"
    print_table(title, ("figure", first, second, "difference (95 %)", "differs"), table)
    if seeds == 1:
        say("one seed has no interval; ask for --seeds 5 or more")


@app.command
def fit(
    log: Annotated[Path, Parameter(help="CSV with serial, installed, removed, event (failed, removed, running).")],
    /,
    *,
    component: Annotated[str, Parameter(help="Class of parts that it is about, for the scenario's table.")] = "gpu",
    json: JsonFlag = False,
) -> None:
    """Fit Weibull lives and rates by age to a log of parts, as a scenario takes them."""
    from weft.campaign.csv_rows import csv_text
    from weft.campaign.lifetimes import SURE_FAILURES, fit_weibull, rates_by_age, read_lives
    from weft.specs.campaign import ComponentsSpec

    if component not in ComponentsSpec.model_fields:
        raise UsageError(f"--component {component!r}: write one of {', '.join(ComponentsSpec.model_fields)}")
    lives = read_lives(csv_text(log), str(log))
    found, ages = fit_weibull(lives), rates_by_age(lives)
    table = f'[components.{component}]\nrate = "{found.rate_fit:.4g} FIT"\nshape = {found.shape.value:.3f}'
    if json:
        print_json({
            "parts": len(lives.hours), "failures": int(lives.failed.sum()), "weibull": asdict(found),
            "rates": [asdict(each) for each in ages], "scenario": table,
        })  # fmt: skip
        return
    rows = [
        ("shape", f"{found.shape.value:.3f}", f"{found.shape.low:.3f} to {found.shape.high:.3f}"),
        ("scale", f"{found.scale_h.value:,.0f} h", f"{found.scale_h.low:,.0f} to {found.scale_h.high:,.0f} h"),
        ("mean life", f"{found.mean_h:,.0f} h", ""),
    ]
    title = f"{log}: {len(lives.hours):,} parts, {int(lives.failed.sum()):,} failures"
    print_table(title, ("Weibull", "estimate", "95 % interval"), rows)
    bands_ = [
        (f"{each.from_h / 24:,.0f} to {each.to_h / 24:,.0f} d", f"{each.failures:,}", f"{each.part_h:,.0f}",
         f"{each.fit.value:,.0f} FIT", f"{each.fit.low:,.0f} to {each.fit.high:,.0f}")
        for each in ages
    ]  # fmt: skip
    if lives.failed.sum() < SURE_FAILURES:
        say(f"with fewer than {SURE_FAILURES} failures the intervals are too narrow; collect more")
    print_table("rate by age", ("age", "failures", "part-hours", "rate", "95 % interval"), bands_)
    say(table)


@app.command(name="replay-diary")
def replay_diary(
    diary: Annotated[Path, Parameter(help="CSV with at_h, class, part, or a decision log (.jsonl) of an engine.")],
    /,
    *,
    site: Annotated[str, Parameter(help="Built-in name or path of a site file.")] = "gb200-8x100g-131k",
    scenario: ScenarioName = "standard",
    set_: SetValues = None,
    json: JsonFlag = False,
) -> None:
    """Run a fleet through a written history of faults, or make an engine's decisions again."""
    from weft.campaign.diary import read_diary, replayed_log

    if diary.suffix == ".jsonl":
        again = replayed_log(diary)
        if json:
            print_json(again.as_json())
        else:
            say(f"{diary}: {again.passes:,} passes, {again.decisions:,} decisions, {again.faults:,} reports of faults")
            say(f"made again by the campaign: {again.differences:,} differ")
        if again.differences:
            raise FailedError(
                f"{diary}: {again.differences:,} passes decide otherwise today; the first at {again.first}"
            )
        return
    question = question_of(site, scenario, set_)
    script = read_diary(diary, Fleet(question.site, question.spec))
    found = run_seeds(str(diary), replace(question, script=script), range(1), 1)
    document = {"site": question.site.name, "scenario": scenario, "bands": bands(found), "seeds": found}
    if json:
        print_json(document)
    else:
        _print(question, f"{scenario}, faults of {diary}", document)


def _print(question: Question, scenario: str, document: dict[str, Any]) -> None:
    first, band = document["seeds"][0], document["bands"]
    count = len(document["seeds"])
    title = f"{question.site.name}, {scenario}: {first['gpus']:,} GPUs, {first['days']:g} days, {count} seed" + (
        "s" if count > 1 else ""
    )
    _print_gangs(title, first, band)
    all_ms = first["gpu_ms_in_all"]
    rows = [
        (name, f"{band['gpu_ms'][name]['mean'] / HOUR_MS:,.0f}", _share(band["gpu_ms"][name], all_ms), meaning)
        for name, meaning in BUCKETS.items()
        if band["gpu_ms"][name]["mean"]
    ]
    print_table("where every GPU-hour went", ("bucket", "GPU-hours", "share", "what"), rows, words=(0, 3))
    _print_faults(first, band)
    _print_jobs(first, band)
    _print_operations(band)


def _print_gangs(title: str, first: dict[str, Any], band: dict[str, Any]) -> None:
    rows = [
        (each["name"], f"{each['gpus']:,}", _percent(band["gangs"][each["name"]]["ettr"]),
         _plain(band["gangs"][each["name"]]["interruptions"], 1), _hours(each["mtbf_h"]),
         seconds(each["checkpoint_interval_s"]), seconds(each["restart_s"]))
        for each in first["gangs"]
    ]  # fmt: skip
    print_table(title, ("gang", "GPUs", "ETTR", "interruptions", "MTBF", "checkpoint every", "restart"), rows)
    say(f"goodput: {_percent(band['goodput'])} of all GPU-hours were steps, experiments or serving that counted")


def _print_faults(first: dict[str, Any], band: dict[str, Any]) -> None:
    rows = []
    for each in first["faults"]:
        name = each["class"]
        found = band["faults"].get(name, {})
        if "count" not in found:
            continue
        blast = "-" if "blast_gpus" not in found else f"{found['blast_gpus']['mean']:,.0f}"
        each_h = "-" if "gpu_h_each" not in found else f"{found['gpu_h_each']['mean']:,.1f}"
        hours = (f"{found[key]['mean']:,.0f}" for key in ("stopped_gpu_h", "out_gpu_h"))
        rows.append((name, _plain(found["count"], 1), f"{found['stops']['mean']:,.0f}", blast, *hours, each_h))
    columns = ("class", "faults", "stops", "GPUs idled each", "GPU-h stopped", "GPU-h out", "GPU-h each")
    print_table("faults, by class", columns, rows)


def _print_jobs(first: dict[str, Any], band: dict[str, Any]) -> None:
    if first["waits_s"]:
        rows = [
            (nodes, f"{waits['jobs']['mean']:,.0f}", seconds(waits["mean"]["mean"]), seconds(waits["p95"]["mean"]))
            for nodes, waits in band["waits_s"].items()
        ]
        print_table("waits of small jobs", ("nodes", "jobs", "mean", "95th percentile"), rows)
    rows = [(team, _percent(share)) for team, share in band["availability"].items()]
    print_table("availability", ("team", "share of what it asked for"), rows)


def _print_operations(band: dict[str, Any]) -> None:
    repair, power, money, silent = band["repair"], band["power"], band["money"], band["silent"]

    def mean(table: dict[str, Any], key: str) -> float:
        return table[key]["mean"]

    rows = [
        ("repair tickets", f"{mean(repair, 'tickets'):,.0f}"),
        ("technician time", f"{_hours(mean(repair, 'technician_h'))}, "
         f"{seconds(60 * mean(repair, 'technician_min_a_ticket'))} a ticket"),
        ("parts used", f"{mean(repair, 'parts'):,.0f}"),
        ("units out of service", f"{mean(repair, 'out_mean'):,.1f} on average, {mean(repair, 'out_most'):,.0f} "
         "at most"),
        ("spare units", f"{mean(repair, 'spares'):,.0f}; more were out in {mean(repair, 'more_out_than_spares'):.2%} "
         "of the time"),
        ("silent corruption", f"{mean(silent, 'began'):,.0f} units, {mean(silent, 'not_found_at_the_end'):,.0f} not "
         f"found; {mean(silent, 'poisoned_steps_not_found'):,.0f} poisoned steps kept"),
        ("power", f"{watts(mean(power, 'mean_w'))} on average, {watts(mean(power, 'peak_w'))} at most"),
        ("steepest change", f"{watts(mean(power, 'steepest_w_per_s'))}/s; violations: limit "
         f"{mean(power, 'limit_violations'):,.0f}, ramp {mean(power, 'ramp_violations'):,.0f}, swing "
         f"{mean(power, 'swing_violations'):,.0f}"),
        ("energy", f"{kilowatt_hours(mean(power, 'energy_kwh'))}, {kilograms(1000 * mean(power, 'carbon_t'))} of CO2, "
         f"{usd(mean(power, 'energy_usd'))}"),
        ("GPU-hours not useful", usd(mean(money, "not_useful_usd"))),
        ("repairs", usd(mean(money, "repair_usd"))),
        ("decisions", f"{mean(band, 'events'):,.0f} events, {mean(band, 'passes'):,.0f} scheduling cycles"),
    ]  # fmt: skip
    print_table("operations", ("what", "found"), rows, words=(0, 1))


def _percent(band: dict[str, float]) -> str:
    if band["p5"] == band["p95"]:
        return f"{band['mean']:.2%}"
    return f"{band['mean']:.2%} ({band['p5']:.2%} to {band['p95']:.2%})"


def _share(band: dict[str, float], whole: int) -> str:
    return _percent({key: value / whole for key, value in band.items()})


def _plain(band: dict[str, float], scale: float) -> str:
    if band["p5"] == band["p95"]:
        return f"{band['mean'] / scale:,.0f}"
    return f"{band['mean'] / scale:,.0f} ({band['p5'] / scale:,.0f} to {band['p95'] / scale:,.0f})"


def _hours(hours: float | None) -> str:
    return "-" if hours is None else seconds(3600 * hours)
