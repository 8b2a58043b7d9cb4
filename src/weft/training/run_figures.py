"""What a finished run measured, under the names of a rehearsal's lines, so that it stands beside what was predicted."""

from pathlib import Path

from weft.core.errors import UsageError
from weft.planning.run.power import JOULES_PER_KWH
from weft.specs import JobSpec
from weft.training.run_dir import RunRecord, records


def run_figures(record: RunRecord, steps_asked: int) -> dict[str, float]:
    """Return what a finished run measured.

    Figures of the whole run count only where it was as long as what is rehearsed.
    """
    result, steps = record.result() or {}, record.steps()
    found: dict[str, float] = {}
    spent = sorted(sum(line["seconds"].values()) for line in steps)
    if spent:
        found["step_s"] = spent[len(spent) // 2]
    whole = record.job().steps == steps_asked
    wall = sum(record.seconds().values())
    if whole and wall > 0:
        found["run_s"] = wall
    for key, name, scale in (("tokens_per_s", "tokens_per_s", 1.0), ("mfu", "mfu", 100.0)):
        if result.get(key) is not None:
            found[name] = scale * float(result[key])
    if result.get("energy_j") is not None and steps:
        found["energy_j_per_step"] = float(result["energy_j"]) / len(steps)
        if whole:
            found["energy_kwh"] = float(result["energy_j"]) / JOULES_PER_KWH
    return found


def newest_run(folder: Path, job: JobSpec) -> RunRecord | None:
    """Return the newest finished run of the same training: name, model, batch and plan; none where there is none."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--folder {folder} is not a folder; name a folder of runs")
    if not folder.is_dir():
        return None
    own = [record for record in records(folder) if record.state() == "finished" and _same(record.job(), job)]
    return own[-1] if own else None


def _same(one: JobSpec, other: JobSpec) -> bool:
    """Return whether two jobs train the same in the same way, for however many steps."""
    return all(getattr(one, key) == getattr(other, key) for key in ("name", "model", "batch", "plan"))
