"""`weft site measure`: time this machine with all its ranks busy and write it down as a site."""

import contextlib
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from weft.cli.output import JsonFlag, counting, print_json, print_table, say, warn, writing, written_to
from weft.core import quantity
from weft.core.errors import UsageError
from weft.core.input_files import read_text
from weft.core.processors import processors
from weft.core.provenance import provenance
from weft.core.toml import rewritten, written
from weft.planning.calibration.microbenchmarks import Calibration, MachineTimes, calibrate, measured_site
from weft.planning.calibration.step_probes import fitted, with_step
from weft.specs import SiteSpec, load_site
from weft.specs.efficiency import EfficiencySpec
from weft.specs.gpus import GPUS, gpu_type_named

_BASE = "laptop"
_MOST_RANKS = 64
_MOST_ROUNDS = 20
_MANY_OTHERS = 0.05


def measure(
    file: Annotated[Path, Parameter(help="Site file to write; its name is the site's."), written_to("", ".toml")],
    /,
    *,
    ranks: Annotated[int | None, Parameter(help="Busy ranks; default: one per core or GPU.")] = None,
    seconds: Annotated[float, Parameter(help="Time for each kernel.")] = 0.2,
    rounds: Annotated[int, Parameter(help="Repetitions of each probe; 0 for kernels alone.")] = 2,
    json: JsonFlag = False,
) -> None:
    """Measure what this machine reaches and write it to FILE as a site, for `weft plan` and `weft rehearse`.

    It also trains small models, each mostly one thing, because a whole step takes longer than its kernels do alone: on
    processors many, two and a half minutes in all with four ranks on two cores, on a GPU one.
    """
    from weft.training.launch.machine_times import devices, measure

    count, memory = devices()
    cores = count or processors()
    wanted = cores if ranks is None else ranks
    if not 1 <= wanted <= _MOST_RANKS or not 0 < seconds <= 10 or not 0 <= rounds <= _MOST_ROUNDS:  # noqa: PLR2004 - seconds
        raise UsageError(
            f"--ranks {wanted}, --seconds {seconds}, --rounds {rounds}: ask for 1 to {_MOST_RANKS} ranks, at most 10 "
            f"seconds and at most {_MOST_ROUNDS} rounds"
        )
    times = measure(wanted, seconds)
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in file.stem.lower())
    make = partial(
        measured_site, _base(times), name=name, ranks=wanted, memory_bytes=memory // (1 if count else wanted)
    )
    found = calibrate(times, cores)
    if rounds:
        found = _trained(found, make, wanted, rounds, device=times.device)
    site = make(found)
    with writing(file) as part:
        part.write_text(_text(site, file), encoding="utf-8")
    if json:
        print_json({**site.as_written(), "provenance": provenance(site.as_written()).as_json()})
        return
    _print(site, times, file)


def _trained(
    found: Calibration, make: Callable[[Calibration], SiteSpec], ranks: int, rounds: int, *, device: str
) -> Calibration:
    """Return the calibration that predicts whole steps of the probes.

    A GPU works while the software prepares what comes next, so that all it needs of them is the step that computes
    nothing; a processor does one after the other.
    """
    from weft.engines.supervisor.probes import in_turns, probe_jobs

    jobs = probe_jobs(ranks) if device == "cpu" else probe_jobs(ranks)[:1]
    with counting("training probes", len(jobs) * rounds) as step:
        probes = in_turns(jobs, rounds, step)
    others = statistics.median(probe.others for probe in probes)
    if others > _MANY_OTHERS:
        warn(f"note: other programs took {100 * others:.0f} % of the processors; measure again when they are idle")
    return fitted(found, make, probes) if device == "cpu" else with_step(found, probes[0].seconds)


def _base(times: MachineTimes) -> SiteSpec:
    """Return the template site: this machine, with a GPU's data sheet where the catalogue knows it."""
    site = load_site(_BASE)
    for name in sorted(GPUS.names(), key=len, reverse=True):
        if name in times.device.lower():
            return site.model_copy(update={"gpu": gpu_type_named(name).gpu})
    return site


def _text(site: SiteSpec, file: Path) -> str:
    """Return the file to write: a site that was there before is measured anew and keeps its comments."""
    if file.is_file():
        with contextlib.suppress(ValueError):
            return rewritten(read_text(file), site.as_written()) + "\n"
    return f"# Measured by `weft site measure`.\n{written(site.as_written())}\n"


def _print(site: SiteSpec, times: MachineTimes, file: Path) -> None:
    share = site.efficiency
    assert share is not None
    rows = [
        ("matrix products", quantity.SPEED.about(site.gpu.bf16)),
        ("attention, of that", f"{100 * share.attention:.0f} %"),
        ("element-wise work", quantity.RATE.about(round(site.gpu.memory_rate * share.elementwise))),
        ("optimizer work", quantity.RATE.about(round(site.gpu.memory_rate * share.update))),
        *((f"overhead per {what}", _us(value)) for what, value in _software(share).items() if value),
        ("communication of one rank", quantity.RATE.about(site.fabric.nic_rate)),
        ("latency of a small message", _us(share.message_us)),
    ]
    print_table(f"{times.ranks} busy ranks on {times.device}", ("what", "measured"), rows)
    say(f"written to {file}; try: weft plan JOB --site {file}")


def _software(share: EfficiencySpec) -> dict[str, float]:
    """Return the software overheads of a site, by what they are for."""
    return {
        "block": share.block_us,
        "block with TP": share.tensor_us,
        "block with ZeRO shards": share.shard_us,
        "micro-batch": share.micro_us,
        "step": share.step_us,
    }


def _us(value: float) -> str:
    """Return a time given in microseconds for people."""
    return "< 1 us" if value < 1 else quantity.TIME.about(value * 1e6)
