"""Real trainings in which something was made slow or stopped: the doctor names it, and nobody in a healthy one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.doctor.examination import examine_evidence
from weft.doctor.gather import gather

CAUSES = {"slow": "slow-rank", "slow-input": "input-stall", "stop": "hang"}


def trained(folder: Path, faults: str, **changes: Any) -> Path:
    """Train a small job with `faults` and return its run folder."""
    (folder / "faults.toml").write_text(faults)
    settings = {"steps": 24, "checkpoint.every": 24, "evaluation.every": 24, **changes}
    command = [sys.executable, "-m", "weft", "train", "tiny-gpt", "--folder", str(folder / "runs"), "--faults",
               str(folder / "faults.toml")]  # fmt: skip
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    subprocess.run(command, check=True, capture_output=True, timeout=560)
    (run,) = (one.parent for one in (folder / "runs").glob("*/metrics.jsonl"))
    return run


def accused(run: Path) -> list[tuple[str, tuple[int, ...]]]:
    """Return what a run's ranks are blamed for."""
    found = examine_evidence(gather([run])).findings()
    return [(one.cause, one.ranks) for one in found if one.ranks and one.verdict != "note"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_what_was_planted_in_a_training_is_named_and_a_healthy_one_accuses_nobody(tmp_path: Path, seed: int) -> None:
    chance = np.random.default_rng(seed)
    kind = (*CAUSES, "none")[seed % 4]
    dp, pp = ((3, 1), (4, 1), (2, 2))[int(chance.integers(3))]
    rank = int(chance.integers(dp * pp))
    fault = f'[[faults]]\nkind = "{kind}"\nrank = {rank}\nstep = {12 if kind == "stop" else 1}\n'
    fault += f"factor = {chance.uniform(1.6, 2.2):.2f}\n" if kind.startswith("slow") else ""
    run = trained(tmp_path, "seed = 1\n" + (fault if kind != "none" else ""), **{"plan.dp": dp, "plan.pp": pp})
    found = accused(run)
    if kind != "none":
        assert found[:1] == [(CAUSES[kind], (rank,))]
    elif found:
        # What else runs on the processors makes a rank slow, too, but not the same one again.
        again = tmp_path / "again"
        again.mkdir()
        assert not set(found) & set(accused(trained(again, "seed = 1\n", **{"plan.dp": dp, "plan.pp": pp})))
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert len(line["rank_waits"]) == len(line["rank_input"]) == dp * pp
