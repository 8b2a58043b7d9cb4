from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.cluster.recovery.limits import LimitRule
from weft.engines.supervisor import Supervisor
from weft.engines.supervisor.rank_layout import RankMain
from weft.specs.faults import FaultsSpec
from weft.specs.job import JobSpec

TEXT = "the quick brown fox jumps over the lazy dog, again and again and again; " * 40


class Field:
    """A place to run tiny trainings in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "corpus.txt").write_text(TEXT, encoding="utf-8")

    def job(self, dp: int = 4, steps: int = 8, **more: Any) -> JobSpec:
        recovery = {"policy": "spare", "spares": 1, "snapshots": 1, "disk": 0, **more.pop("recovery", {})}
        return JobSpec.model_validate(
            {
                "name": "tiny", "seed": more.pop("seed", 3), "steps": steps,
                "model": {"layers": 1, "width": 16, "heads": 2, "ffn": 32},
                "data": {"corpus": str(self.folder / "corpus.txt"), "held_out": 0.2},
                "batch": {"sequences": 8, "micro": 1, "length": 8},
                "plan": {"dp": dp}, "checkpoint": {"every": 0}, "recovery": recovery, **more,
            }
        )  # fmt: skip

    def run(self, job: JobSpec, *faults: dict[str, Any], rule: LimitRule | None = None, resume: bool = False,
            seed: int = 0) -> dict[str, Any]:  # fmt: skip
        spec = FaultsSpec.model_validate({"seed": seed, "faults": list(faults)})
        main = RankMain(rule=rule or LimitRule())
        return Supervisor(job, self.folder / "runs", faults=spec, main=main, resume=resume).run()

    def run_job(self, job: JobSpec) -> dict[str, Any]:
        """Run a job with the faults that it names itself."""
        return Supervisor(job, self.folder / "runs").run()


@pytest.fixture
def field(tmp_path: Path) -> Field:
    return Field(tmp_path)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """Return the weights of the tiny training without any fault, by its number of steps."""
    known: dict[int, str] = {}

    def digest(steps: int) -> str:
        if steps not in known:
            field = Field(tmp_path_factory.mktemp("undisturbed"))
            # One rank alone: the same bits as any number of ranks with any faults.
            known[steps] = field.run(field.job(dp=1, steps=steps, recovery={"spares": 0}))["weights_digest"]
        return known[steps]

    return digest
