"""`weft site measure`: time this machine with all its ranks busy and write it down as a site."""

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from weft.cli.output import JsonFlag, console, print_json, print_table
from weft.core import quantity
from weft.core.errors import FailedError, UsageError
from weft.core.provenance import provenance
from weft.core.toml import written
from weft.planning.calibrate import MachineTimes, calibrate, measured_site, with_step
from weft.planning.report import plan_job
from weft.specs import SiteSpec, load_site
from weft.specs.gpus import GPUS, gpu_type_named

_BASE = "laptop"
_MOST_RANKS = 64


def measure(
    file: Path,
    /,
    *,
    ranks: Annotated[int | None, Parameter(help="Ranks that are busy at once; as many as cores or GPUs.")] = None,
    seconds: Annotated[float, Parameter(help="Time for each figure.")] = 0.3,
    json: JsonFlag = False,
) -> None:
    """Measure what this machine reaches and write it to FILE as a site, for `weft plan` and `weft rehearse`.

    Parameters
    ----------
    file
        Site file to write; its name is the site's.

    """
    if file.suffix != ".toml":
        raise UsageError(f"{file}: write a name that ends in .toml")
    if not file.parent.is_dir():
        raise UsageError(f"{file}: there is no folder {file.parent}")
    from weft.training.measure import devices, measure

    count, memory = devices()
    cores = count or os.cpu_count() or 1
    wanted = cores if ranks is None else ranks
    if not 1 <= wanted <= _MOST_RANKS or not 0 < seconds <= 10:  # noqa: PLR2004 - seconds
        raise UsageError(
            f"--ranks {wanted}, --seconds {seconds}: ask for 1 to {_MOST_RANKS} ranks and at most 10 seconds"
        )
    times = measure(wanted, seconds)
    found = calibrate(times, cores)
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in file.stem.lower())
    site = measured_site(_base(times), found, name=name, ranks=wanted, memory_bytes=memory // (1 if count else wanted))
    if times.device == "cpu":
        from weft.engines.supervisor.bare_step import bare_job, trained_step_s

        # A GPU works while the software prepares what comes next; a processor does one after the other.
        bare = bare_job(wanted)
        site = with_step(site, float(plan_job(site, bare).chosen.step_s[0]), trained_step_s(bare))
    try:
        file.write_text(f"# Measured by `weft site measure`.\n{written(site.as_written())}", encoding="utf-8")
    except OSError as error:
        raise FailedError(f"{file} can not be written: {error.strerror}") from None
    if json:
        print_json({**site.as_written(), "provenance": provenance(site.as_written()).as_json()})
        return
    _print(site, times, file)


def _base(times: MachineTimes) -> SiteSpec:
    """Return the site to begin with: this machine, with a GPU's data sheet where the catalogue knows it."""
    site = load_site(_BASE)
    for name in sorted(GPUS.names(), key=len, reverse=True):
        if name in times.device.lower():
            return site.model_copy(update={"gpu": gpu_type_named(name).gpu})
    return site


def _print(site: SiteSpec, times: MachineTimes, file: Path) -> None:
    share = site.efficiency
    assert share is not None
    rows = [
        ("matrix products", quantity.SPEED.about(site.gpu.bf16)),
        ("attention, of that", f"{100 * share.attention:.0f} %"),
        ("element-wise work", quantity.RATE.about(site.gpu.memory_rate * share.elementwise)),
        ("software for a block", f"{share.block_us:,.0f} us"),
        ("software for a step", f"{share.step_us:,.0f} us"),
        ("exchange of one rank", quantity.RATE.about(site.fabric.nic_rate)),
        ("a small message", f"{share.message_us:,.0f} us"),
    ]
    print_table(f"{times.ranks} busy ranks on {times.device}", ("what", "reached"), rows)
    console().print(f"written to {file}; try: weft plan JOB --site {file}", markup=False, soft_wrap=True)
