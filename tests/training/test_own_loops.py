"""Loops of one's own, disturbed: the same bits in weights, buffers and everything that optimizers keep."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.training.own_loops import loop, synchronised, uneven
from tests.training.ranks import job_of

from weft.core.errors import UsageError
from weft.core.toml import written
from weft.engines.supervisor import Supervisor
from weft.engines.supervisor.rank_layout import RankMain
from weft.specs.faults import FaultsSpec
from weft.training.run_dir import RunRecord

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Place:
    """A folder in which a loop is run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def train(self, model: str, plan: dict[str, Any], *faults: dict[str, Any], steps: int = 6) -> dict[str, Any]:
        """Train a model of one's own, or go on with it."""
        recovery = {"snapshots": 2, "disk": 0, "policy": "wait"}
        job = job_of(
            self.folder, plan, steps=steps, checkpoint={"every": 3}, recovery=recovery, guard={"digest_every": 1},
            optimizer={"learning_rate": 1e-2, "schedule": "constant"},
        )  # fmt: skip
        arguments = {"job": job, "folder": str(self.folder / "runs"), "model": model}
        spec = FaultsSpec.model_validate({"faults": list(faults)})
        main = RankMain(arguments=arguments)
        return Supervisor(job, self.folder / "runs", main=main, faults=spec, resume=True).run()

    def run(self, main: Callable[[str, str], Any], *faults: dict[str, Any], ranks: int = 2) -> dict[str, Any]:
        recovery = {"snapshots": 2, "disk": 0, "policy": "wait"}
        job = job_of(
            self.folder, {"dp": ranks}, steps=8, checkpoint={"every": 4}, recovery=recovery, guard={"digest_every": 1}
        )
        file = self.folder / f"job-{ranks}.toml"
        file.write_text(written(job.as_written()))
        arguments = {"main": main, "job": str(file), "folder": str(self.folder / "runs")}
        spec = FaultsSpec.model_validate({"faults": list(faults)})
        program = RankMain("weft.training.launch.ranks:call", arguments)
        return Supervisor(job, self.folder / "runs", main=program, faults=spec, resume=True).run()

    def stored(self, result: dict[str, Any]) -> dict[str, str]:
        _, manifest = RunRecord(self.folder / "runs" / result["run"]).checkpoints()[0]
        return {name: entry.digest for name, entry in manifest.tensors.items()}


@pytest.fixture
def place(tmp_path: Path) -> Callable[[str], Place]:
    def make(name: str) -> Place:
        (tmp_path / name).mkdir()
        return Place(tmp_path / name)

    return make


def test_a_loop_with_everything_goes_on_exactly_and_is_accounted_for(place: Callable[[str], Place]) -> None:
    calm, broken = place("calm"), place("broken")
    wanted = calm.run(loop)
    result = broken.run(
        loop, {"kind": "kill", "rank": 0, "step": 4}, {"kind": "flip", "place": "weights", "rank": 1, "step": 7}
    )
    assert [one["kind"] for one in result["incidents"]] == ["killed", "diverged"]
    assert broken.stored(result) == calm.stored(wanted)
    assert result["weights_digest"] == wanted["weights_digest"]
    for one in (wanted, result):
        assert one["goodput"]["share"] > 0
        assert one["goodput"]["seconds"]["start_up"] > 0
    # What killed ranks have used is not forgotten.
    assert result["energy_j"] > 0
    noted = sum(line["energy_j"] for line in RunRecord(broken.folder / "runs" / result["run"]).steps())
    assert result["energy_j"] > noted


@pytest.mark.parametrize(
    ("model", "plan", "longer"),
    [
        ("tests.training.own_models:foreign", {"dp": 2}, {"dp": 3}),
        ("tests.training.own_models:foreign", {"dp": 2, "shard": 2}, {"dp": 2, "shard": 2}),
        ("tests.training.own_models:mixer", {"dp": 2, "pp": 2}, {"dp": 2, "pp": 2}),
        ("tests.training.own_models:mixer", {"dp": 2, "tp": 2}, {"dp": 2, "tp": 2}),
    ],
    ids=str,
)
def test_models_of_others_are_killed_flipped_and_resumed_with_the_same_bits(
    place: Callable[[str], Place], model: str, plan: dict[str, Any], longer: dict[str, Any]
) -> None:
    calm, broken = place("calm"), place("broken")
    wanted = calm.train(model, longer)
    flip = {"kind": "flip", "place": "weights", "rank": 1, "step": 4}
    # Of a shard nobody holds a second copy that could tell.
    faults = [{"kind": "kill", "rank": 0, "step": 2}, *([] if "shard" in plan else [flip])]
    first = broken.train(model, plan, *faults, steps=5)
    assert next(one["kind"] for one in first["incidents"]) == "killed"
    assert len(first["incidents"]) == len(faults)
    result = broken.train(model, longer)
    assert result["run"] == first["run"]
    assert result["weights_digest"] == wanted["weights_digest"]
    assert broken.stored(result) == calm.stored(wanted)
    assert RunRecord(broken.folder / "runs" / result["run"]).provenance()["model"] == model


def test_synchronised_statistics_do_not_depend_on_the_number_of_replicas(place: Callable[[str], Place]) -> None:
    one, two, three = place("one"), place("two"), place("three")
    alone = one.stored(one.run(synchronised, ranks=1))
    assert any(name.startswith("buffers.norm") for name in alone)
    assert two.stored(two.run(synchronised)) == alone
    assert three.stored(three.run(synchronised, {"kind": "kill", "rank": 1, "step": 6}, ranks=3)) == alone


def test_a_state_that_differs_from_rank_to_rank_is_refused_at_once(place: Callable[[str], Place]) -> None:
    with pytest.raises(UsageError, match=r"Place-0 has another state on rank .*attach what is equal on all ranks"):
        place("uneven").run(uneven)
