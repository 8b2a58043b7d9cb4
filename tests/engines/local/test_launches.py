"""From a submission to commands: sweeps, environments, and what the runner of an attempt gets."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.records.job import Gang, Job, Placement
from weft.core.errors import SpecError
from weft.core.specfile import with_values
from weft.engines.local.launches import Launch, order_of, prepared, with_package
from weft.specs import load_job
from weft.specs.submission import SubmissionSpec

values = st.lists(st.text("abc123", min_size=1, max_size=3), min_size=1, max_size=3, unique=True)


def submitted(*command: str, **more: Any) -> list[tuple[Job, Launch]]:
    return prepared(SubmissionSpec.model_validate({"command": command, **more}), 5)


def test_a_gang_is_asked_for_with_what_it_requires_of_the_topology():
    ((job, _),) = submitted("run", nodes=4, within="rack", slice_nodes=2)
    assert job.gang == Gang(4, 1, step=2, within="rack", slice_nodes=2)
    for wrong in ({"slice_nodes": 3, "within": "rack"}, {"slice_nodes": 2}, {"within": "t0", "apart": "rack"}):
        with pytest.raises(ValueError, match=r"slice|within"):
            submitted("run", nodes=4, **wrong)


@given(st.dictionaries(st.sampled_from(["lr", "seed", "depth"]), values, min_size=1))
def test_a_sweep_is_every_combination_once(sweep: dict[str, list[str]]):
    found = submitted("run", sweep=sweep)
    assert [job.id for job, _ in found] == [f".{number}" for number in range(len(found))]
    wanted = [dict(zip(sweep, each, strict=True)) for each in itertools.product(*sweep.values())]
    assert [dict(launch.sweep) for _, launch in found] == wanted


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("run", "--lr={lr}"), ("run", "--lr=1e-3")),
        (("run", "{lr}", "{lr}"), ("run", "1e-3", "1e-3")),
        (("run",), ("run", "--lr", "1e-3")),
        (("run", "{seed}"), ("run", "{seed}", "--lr", "1e-3")),
    ],
)
def test_a_value_goes_to_its_mark_or_becomes_an_option(command: tuple[str, ...], expected: tuple[str, ...]):
    ((_, launch),) = submitted(*command, sweep={"lr": ["1e-3"]})
    assert launch.command == expected


def test_a_single_job_has_no_suffix_and_keeps_what_was_asked():
    ((job, launch),) = submitted("run", nodes=3, gpus_per_node=2, team="red", priority=7, after=["a"], time_limit="2 s")
    assert (job.id, job.gang, job.team, job.priority, job.after, job.limit_ms) == (
        "",
        Gang(3, 2),
        "red",
        7,
        ("a",),
        2000,
    )
    assert (job.submit_ms, job.array_at_once, launch.training) == (5, 0, None)


launches = st.builds(
    Launch, st.lists(st.text(max_size=3), max_size=3).map(tuple),
    environment=st.dictionaries(st.text(max_size=3), st.text()),
    snapshot=st.one_of(st.none(), st.just("0a")), metric=st.sampled_from(["min:loss", "max:accuracy"]),
)  # fmt: skip


@given(launches)
def test_a_launch_survives_the_database(launch: Launch):
    assert Launch.from_plain(launch.as_plain()) == launch


def order(job: Job, launch: Launch, attempt: int = 1) -> dict[str, Any]:
    return order_of(job, launch, Path("/home/jobs/j"), attempt, Path("/home/snapshots"))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_command_is_started_on_each_of_its_nodes(count: int):
    job = Job("j", Gang(count, 2), 0, placement=Placement(tuple(range(10, 10 + count)), 2), grace_ms=2500)
    found = order(job, Launch(("run", "it"), snapshot="0a"))
    assert [command["argv"] for command in found["commands"]] == [["run", "it"]] * count
    assert [command["environment"]["RANK"] for command in found["commands"]] == [str(rank) for rank in range(count)]
    assert {command["environment"]["WORLD_SIZE"] for command in found["commands"]} == {str(count)}
    assert found["commands"][0]["environment"]["WEFT_NODES"] == " ".join(str(10 + each) for each in range(count))
    assert (found["grace_s"], found["snapshot"]) == (2.5, "/home/snapshots/0a")


def test_a_training_is_one_process_that_starts_its_ranks():
    job = Job("j", Gang(3, 1), 0, placement=Placement((0, 1, 2), 1))
    (command,) = order(job, Launch(training={"name": "t"}), attempt=4)["commands"]
    assert command["argv"][1:] == ["-m", "weft.engines.local.training_process", "/home/jobs/j", "4"]
    assert command["environment"]["PYTHONPATH"]


def test_a_job_that_shares_nodes_is_given_its_devices():
    job = Job("j", Gang(2, 2), 0, placement=Placement((0, 1), 2, ((0, 3), (1, 2))))
    commands = order(job, Launch(("run",)))["commands"]
    assert [command["environment"]["WEFT_DEVICES"] for command in commands] == ["0,3", "1,2"]


def test_the_jobs_own_environment_wins_over_the_machines_but_not_over_wefts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LANG", "xx")
    monkeypatch.setenv("SECRET", "s")
    job = Job("j", Gang(1, 1), 0, placement=Placement((0,), 1))
    (command,) = order(job, Launch(("run",), environment={"LANG": "yy", "WEFT_JOB": "other"}))["commands"]
    assert command["environment"]["LANG"] == "yy"
    assert command["environment"]["WEFT_JOB"] == "j"
    assert "SECRET" not in command["environment"]


@given(st.lists(st.sampled_from(["/a", "/b", ""]), max_size=4))
def test_this_package_is_found_first_and_each_path_once(paths: list[str]):
    found = with_package(":".join(paths)).split(":")
    assert found[1:] == list(dict.fromkeys(filter(None, paths)))
    assert (Path(found[0]) / "weft").is_dir()


@pytest.mark.parametrize(
    ("key", "text", "path", "value"),
    [
        ("steps", "17", ("steps",), 17),
        ("plan.dp", "3", ("plan", "dp"), 3),
        ("model.layers", "2", ("model", "layers"), 2),
        ("name", "other", ("name",), "other"),
        ("optimizer.learning_rate", "1e-3", ("optimizer", "learning_rate"), 1e-3),
    ],
)
def test_a_value_is_put_at_its_key_however_deep(key: str, text: str, path: tuple[str, ...], value: object):
    found: Any = with_values(load_job("tiny-gpt"), {key: text}, "tiny-gpt with --set").as_written()
    for part in path:
        found = found[part]
    assert found == value


def test_values_are_checked_as_a_whole_and_none_changes_nothing():
    job = load_job("tiny-gpt")
    assert with_values(job, {}, "x") is job
    with pytest.raises(SpecError, match="tiny-gpt with --set"):
        with_values(job, {"steps.more": "1"}, "tiny-gpt with --set")
    with pytest.raises(SpecError, match="colour"):
        with_values(job, {"colour": "red"}, "x")
