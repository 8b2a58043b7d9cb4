"""`weft calibrate`: one run's log against what was expected of it, and a site file that meets it."""

import errno
import gzip
import io
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from weft.cli.output import JobArgument, JsonFlag, print_json, print_table, say, warn, writing, written_to
from weft.cli.screen.figures import second_range, seconds
from weft.core.errors import UsageError
from weft.core.input_files import LARGEST_BYTES, read_bytes
from weft.core.provenance import provenance
from weft.core.toml import written
from weft.planning.calibration.run_calibration import RunCalibration, calibrated
from weft.planning.calibration.run_logs import StepLog, read_log
from weft.planning.report import step_row
from weft.specs import load_job, load_site

_MANY = 0.1
_GZIP = b"\x1f\x8b"


def calibrate(
    log: Annotated[
        Path, Parameter(help="Log of a run: MLPerf, torchtitan, Megatron-LM, NeMo, or metrics.jsonl; .gz too.")
    ],
    /,
    *,
    job: JobArgument,
    site: Annotated[str, Parameter(help="Built-in name or path of a site file.")],
    out: Annotated[
        Path | None, Parameter(help="Site file to write, calibrated by the run."), written_to("--out", ".toml")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Compare the steps in LOG with what JOB should take on a site, and predict runs 2 to 16 times as large."""
    room, task = load_site(site), load_job(job)
    if task.plan == "auto":
        raise UsageError(f'{task.name} leaves its plan open (plan = "auto"); write the [plan] that the run had')
    tokens = task.batch.sequences * task.batch.length
    found = read_log(_text(log), str(log), tokens=tokens, gpus=task.plan.ranks, sequences=task.batch.sequences)
    fit = calibrated(room, task, found.median_s)
    if out is not None:
        with writing(out) as part:
            part.write_text(
                f"# Calibrated by `weft calibrate` with a run of {task.name}.\n{written(fit.site.as_written())}\n",
                encoding="utf-8",
            )
    if json:
        print_json(_document(found, fit))
        return
    _print(found, fit, out)


def _text(log: Path) -> str:
    try:
        content = read_bytes(log)
        return (_unpacked(content) if content.startswith(_GZIP) else content).decode("utf-8", errors="replace")
    except FileNotFoundError:
        raise UsageError(f"there is no file {log}; a log of a run is wanted") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{log} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _unpacked(content: bytes) -> bytes:
    """Return what a gzip file holds; a little one that would fill the memory is refused."""
    with gzip.open(io.BytesIO(content)) as packed:
        found = packed.read(LARGEST_BYTES + 1)
    if len(found) > LARGEST_BYTES:
        raise OSError(errno.EFBIG, f"it unpacks to more than {LARGEST_BYTES >> 20} MiB")
    return found


def _document(found: StepLog, fit: RunCalibration) -> dict[str, object]:
    return {
        "source": found.source,
        "steps": len(found.seconds),
        "warm_up": found.warm_up,
        "odd": found.odd,
        "measured_s": fit.measured_s,
        "spread": found.spread,
        "expected_s": float(fit.expected.step_s[0]),
        "ratio": fit.ratio,
        "pace": fit.pace,
        "expected": step_row(fit.expected, 0),
        "calibrated": step_row(fit.adjusted, 0),
        "forecasts": [asdict(each) for each in fit.forecasts],
        "provenance": provenance({"site": fit.site.as_written()}).as_json(),
    }


def _print(found: StepLog, fit: RunCalibration, out: Path | None) -> None:
    before, after = step_row(fit.expected, 0), step_row(fit.adjusted, 0)
    rows = [
        (name.removesuffix("_s"), seconds(before[name]), seconds(after[name]), seconds(after[name] - before[name]))
        for name in before
        if before[name] or after[name]
    ]
    rows.append(
        ("step", seconds(float(fit.expected.step_s[0])), seconds(fit.measured_s),
         seconds(fit.measured_s - float(fit.expected.step_s[0])))
    )  # fmt: skip
    print_table(
        f"{len(found.seconds)} steps by {found.source}: {fit.ratio:.3f} times what was expected",
        ("part", "expected", "calibrated", "difference"),
        rows,
    )
    grown = [
        (
            f"{each.gpus:,}",
            f"{each.sequences:,}",
            seconds(each.step_s),
            second_range(each.low_s, each.step_s, each.high_s),
        )
        for each in fit.forecasts
    ]
    print_table("the same job with more replicas", ("GPUs", "batch", "step", "90 % interval"), grown, words=(3,))
    if found.odd:
        warn(f"note: {found.odd} later steps were far from the others and do not count (evaluations, checkpoints)")
    if found.spread > _MANY:
        warn(f"note: the middle half of the steps spreads over {100 * found.spread:.0f} %; a calmer run says more")
    say(f"compute takes {fit.pace:.3f} times what the catalogue says" + (f"; written to {out}" if out else ""))
