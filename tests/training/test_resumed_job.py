"""Every key of a job, as the schema lists them: what becomes of it where a run goes on with another value."""

import shutil
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.training.ranks import job_of

from weft.core.errors import UsageError
from weft.specs import JobSpec, load_job
from weft.specs.faults import RunFaultSpec
from weft.specs.job import PlanSpec
from weft.training.model.optimizer import learning_rate
from weft.training.resumed_job import ASKED, FIXED, FREE, begun, gone_on, identity, kind_of, notes
from weft.training.run_dir import RunDir, RunRecord
from weft.training.train import train

# Keys whose other value cannot be guessed from their type, or would be no job.
_OTHERS: dict[str, Any] = {
    "name": "other", "team": "other", "time_limit": 5, "sinks": ("wandb",), "backend": "mrc",
    "faults": (RunFaultSpec(kind="kill", step=99),),
    "model.heads": 8, "model.kv_heads": 4, "model.head_width": 16, "model.window_from": 1,
    "model.rope_scaling.high": 5.0, "model.rope_scaling.low": 0.5, "model.experts.groups": 2, "model.experts.nodes": 2,
    "batch.sequences": 24, "batch.micro": 2, "optimizer.betas": (0.8, 0.9), "optimizer.horizon": 77,
    "plan.dp": 2, "plan.shard": 2, "plan.ep": 2, "recovery.accept": ("optimizer.clip",), "recovery.in_step": True,
    "checkpoint.patience": 5, "recovery.patience": 5,
}  # fmt: skip
_NO_VALUES = {"model.config", "model.from"}
"""Loading a file replaces them by what they say, so no job has them."""


def _tables() -> dict[str, Any]:
    """Return a job that spells out every table that may be absent."""
    job = load_job("tiny-gpt").model_copy(update={"plan": PlanSpec(dp=4, shard=4, exact=False)})
    table = job.as_written()
    table["model"] |= {
        "rope_scaling": {"factor": 2.0, "length": 64}, "latent": {"kv_rank": 8, "rope_width": 4, "value_width": 8},
        "experts": {"count": 8, "top_k": 2, "ffn": 32, "groups": 4, "nodes": 4},
    }  # fmt: skip
    return table | {"software": {}, "batch": {"sequences": 16, "micro": 1, "length": 32}}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        for part in typing.get_args(annotation):
            yield from _models(part)


def _leaves(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key of a job with its type; tuples of tables are values."""
    for name, field in model.model_fields.items():
        key = f"{above}{field.alias or name}"
        inner = list(_models(field.annotation))
        if inner:
            yield from _leaves(inner[0], f"{key}.")
        elif key not in _NO_VALUES:
            yield key, field.annotation


def _other(key: str, annotation: Any, value: Any) -> Any:
    """Return another value than `value` for a key."""
    if key in _OTHERS:
        return _OTHERS[key]
    parts = (annotation, *typing.get_args(annotation))
    choices = [one for part in parts for one in typing.get_args(part)]
    for part in parts:
        if typing.get_origin(part) is typing.Literal:
            return next(one for one in typing.get_args(part) if one != value)
    if isinstance(value, bool) or bool in (annotation, *choices):
        return not value
    if isinstance(value, int) or int in (annotation, *choices):
        return (value or 0) + 1
    if isinstance(value, float):
        return value / 2 if value else 0.25
    assert isinstance(value, str), f"{key} is new: say in this test which other value it may have"
    return f"{value}x"


LEAVES = dict(_leaves(JobSpec))
BASE = begun(JobSpec.model_validate(_tables()))


def _put(spec: Any, path: list[str], value: Any) -> Any:
    """Return `spec` with another value at `path`; rules between keys are not asked, as one key is changed at a time."""
    name = {"from": "from_"}.get(path[0], path[0])
    return spec.model_copy(update={name: value if len(path) == 1 else _put(getattr(spec, name), path[1:], value)})


def _changed(job: JobSpec, keys: set[str], accept: tuple[str, ...] = ()) -> JobSpec:
    """Return `job` with another value at each of `keys`."""
    if "recovery.accept" not in keys:
        job = _put(job, ["recovery", "accept"], accept)
    for key in sorted(keys):
        value = job
        for name in key.split("."):
            value = getattr(value, name)
        job = _put(job, key.split("."), _other(key, LEAVES[key], value))
    return job


def test_every_key_of_a_job_is_of_one_kind():
    assert not (FREE & ASKED) | (FREE & FIXED) | (ASKED & FIXED)
    listed = FREE | ASKED | FIXED
    for key in LEAVES:
        parts = key.split(".")
        assert any(".".join(parts[:end]) in listed for end in range(1, len(parts) + 1)), f"{key} is of no kind"
    known = set(LEAVES) | {key[: key.rindex(".")] for key in LEAVES if "." in key}
    assert listed <= known | {key.partition(".")[0] for key in known}, "a kind names a key that does not exist"


@pytest.mark.parametrize("key", sorted(LEAVES))
def test_another_value_is_free_refused_or_accepted(key: str):
    other = _changed(BASE, {key})
    if kind_of(key) is FREE:
        assert gone_on(BASE, other, "there")[1] == []
        assert identity(other) == identity(BASE)
        return
    with pytest.raises(UsageError, match=f"there is the run folder of another job: {key}"):
        gone_on(BASE, other, "there")
    asked = _changed(BASE, {key}, (key,))
    if kind_of(key) is FIXED:
        with pytest.raises(UsageError, match=f"recovery.accept names '{key}', which cannot change"):
            gone_on(BASE, asked, "there")
    else:
        kept, differing = gone_on(BASE, asked, "there")
        assert [one.key for one in differing] == [key]
        assert any(key in said for said in notes(BASE, kept, differing))


@given(st.sets(st.sampled_from(sorted(LEAVES)), max_size=4), st.sets(st.sampled_from(sorted(ASKED & set(LEAVES)))))
def test_no_set_of_changes_goes_on_unless_each_is_free_or_accepted(keys: set[str], accept: set[str]):
    keys -= {"recovery.accept"}
    other = _changed(BASE, keys, tuple(accept))
    bad = {key for key in keys if kind_of(key) is FIXED or (kind_of(key) is ASKED and key not in accept)}
    if "optimizer.schedule" in keys:
        # Another schedule has a horizon of its own.
        bad -= {"optimizer.horizon"}
    if bad:
        with pytest.raises(UsageError, match="another job") as caught:
            gone_on(BASE, other, "there")
        assert any(f"job: {key} is" in str(caught.value) for key in bad)
        assert (f"and {len(bad) - 1} more" in str(caught.value)) == (len(bad) > 1)
    else:
        gone_on(BASE, other, "there")


@given(st.sampled_from(["cosine", "linear", "constant"]), st.integers(1, 60), st.integers(1, 60), st.integers(0, 9))
def test_no_number_of_steps_bends_a_schedule_that_has_begun(schedule: str, steps: int, later: int, warmup: int):
    table = BASE.as_written() | {"steps": steps, "optimizer": {"schedule": schedule, "warmup": warmup}}
    first = begun(JobSpec.model_validate(table))
    kept, changed = gone_on(first, JobSpec.model_validate(table | {"steps": later}), "there")
    rates = [learning_rate(first.optimizer, step, steps) for step in range(steps)]
    again = [learning_rate(kept.optimizer, step, later) for step in range(later)]
    assert changed == []
    assert again[:steps] == rates[:later]
    assert bool(notes(first, kept, changed)) == (schedule != "constant" and steps != later)
    # Asked for, the new horizon holds.
    table["optimizer"] |= {"horizon": later}
    asked = JobSpec.model_validate(table | {"steps": later, "recovery": {"accept": ["optimizer.horizon"]}})
    assert gone_on(first, asked, "there")[0].optimizer.horizon == later


def test_of_a_plan_left_open_nothing_is_compared():
    job = load_job("tiny-gpt")
    left_open = job.model_copy(update={"plan": "auto"})
    assert gone_on(job, left_open, "there")[1] == []
    assert gone_on(left_open, job, "there")[1] == []


def _lines(folder: Path) -> list[tuple[str, Any]]:
    return [(line["loss_bits"], line["learning_rate"]) for line in RunRecord(folder).steps()]


def _small(folder: Path, **changes: Any) -> JobSpec:
    small = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "ffn": 16}
    batch = {"sequences": 2, "micro": 1, "length": 8}
    return job_of(folder, **{"model": small, "batch": batch, "recovery": {}} | changes)


def test_more_steps_go_on_as_one_run_with_the_first_horizon_would(tmp_path: Path):
    train(_small(tmp_path, steps=3), str(tmp_path / "parts"))
    last = train(_small(tmp_path, steps=5), str(tmp_path / "parts"), resume=True)
    optimizer = {"learning_rate": 1e-2, "warmup": 2, "horizon": 3}
    whole = train(_small(tmp_path, steps=5, optimizer=optimizer), str(tmp_path / "whole"))
    assert last["weights_digest"] == whole["weights_digest"]
    assert _lines(tmp_path / "parts" / "toy-1") == _lines(tmp_path / "whole" / "toy-1")
    with pytest.raises(UsageError, match="has 5 steps behind it, and the job asks for 4; write steps = 5 or more"):
        train(_small(tmp_path, steps=4), str(tmp_path / "parts"), resume=True)
    dist.destroy_process_group()


def test_an_accepted_value_holds_from_the_resumed_step_on_and_is_written_down(tmp_path: Path):
    train(_small(tmp_path, steps=3), str(tmp_path))
    told: list[Any] = []
    values = {"learning_rate": 2e-2, "warmup": 2, "weight_decay": 0.5}
    accept = {"accept": ["optimizer.learning_rate", "optimizer.weight_decay"]}
    asked = _small(tmp_path, steps=4, optimizer=values, recovery=accept)
    with RunDir.resume(tmp_path / "toy-1", asked) as run:
        told += run.notes
    assert sum("from here on" in one for one in told) == 2
    record = RunRecord(tmp_path / "toy-1")
    changed = next(note["changed"] for note in record.sessions() if "changed" in note)
    assert changed == {"optimizer.learning_rate": [1e-2, 2e-2], "optimizer.weight_decay": [0.1, 0.5]}
    assert record.job().optimizer.weight_decay == 0.5
    without = tmp_path / "without"
    shutil.copytree(tmp_path / "toy-1", without / "toy-1")
    ends = train(asked, str(tmp_path), resume=True)["weights_digest"]
    assert RunRecord(tmp_path / "toy-1").steps()[-1]["learning_rate"] == pytest.approx(2e-2 * 0.1)
    # Another decay alone gives other weights, though the optimizer's own state was stored with the first one.
    less = _small(tmp_path, steps=4, optimizer=values | {"weight_decay": 0.0}, recovery=accept)
    assert train(less, str(without), resume=True)["weights_digest"] != ends


_ALONE = {"plan.dp", "plan.shard", "recovery.in_step", "sinks", "guard.replay_every", "steps", "faults"}
"""Need other ranks or packages, or are what this test sets itself; other tests hold them."""


@pytest.mark.slow
def test_no_free_key_changes_a_bit(tmp_path: Path):
    horizon = {"learning_rate": 1e-2, "warmup": 2, "horizon": 4}
    first, whole = _small(tmp_path, steps=2, optimizer=horizon), _small(tmp_path, steps=4, optimizer=horizon)
    train(first, str(tmp_path / "begun"))
    wanted = train(whole, str(tmp_path / "whole"))["weights_digest"]
    free = [key for key in LEAVES if kind_of(key) is FREE and key not in _ALONE]
    for key in free:
        shutil.copytree(tmp_path / "begun", tmp_path / key)
        job = JobSpec.model_validate(_changed(whole, {key}).as_written())
        found = train(job, str(tmp_path / key), resume=True)
        assert (key, found["weights_digest"]) == (key, wanted)
        assert _lines(tmp_path / key / "toy-1") == _lines(tmp_path / "whole" / "toy-1"), key
