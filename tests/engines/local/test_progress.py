"""What a training says of itself becomes checkpoints, forecasts and evidence about the right node, each once."""

from pathlib import Path
from typing import Any

import pytest

from weft.cluster.records.job import Gang, Job, JobState, Placement
from weft.engines.local.atomic_files import write_document
from weft.engines.local.home import Home
from weft.engines.local.launches import PROGRESS, Launch
from weft.engines.local.progress import News, news_of
from weft.engines.local.store import StoredJob


def heard(folder: Path, document: dict[str, Any], noted: int = 0, gpus: int = 2) -> News | None:
    job = Job(
        "j", Gang(2, gpus), 0, "training", state=JobState.RUNNING, placement=Placement((7, 9), gpus), start_ms=100
    )
    home = Home(folder)
    home.job("j").mkdir(parents=True, exist_ok=True)
    write_document(home.job("j") / PROGRESS, document)
    return news_of(home, StoredJob(1, job, Launch(training={}), noted=noted), 300)


def incident(slot: int | None, kind: str = "hung") -> dict[str, Any]:
    return {"slot": slot, "kind": kind, "step": 4, "seen": "no progress\nsecond line"}


@pytest.mark.parametrize("document", [{}, {"incidents": []}, {"checkpoint_ms": 99}, {"checkpoint_ms": None, "step": 3}])
def test_nothing_new_is_no_news(document: dict[str, Any], tmp_path: Path):
    assert heard(tmp_path, document) is None


def test_a_training_that_wrote_nothing_yet_has_no_news(tmp_path: Path):
    job = Job("j", Gang(1), 0, "training", state=JobState.RUNNING, placement=Placement((0,), 1), start_ms=1)
    assert news_of(Home(tmp_path), StoredJob(1, job, Launch(training={})), 5) is None


@pytest.mark.parametrize(("step", "steps", "predicted"), [(1, 4, 900), (2, 4, 500), (4, 4, 300), (0, 4, None)])
def test_a_checkpoint_brings_a_forecast_of_the_end(step: int, steps: int, predicted: int | None, tmp_path: Path):
    news = heard(tmp_path, {"checkpoint_ms": 250, "step": step, "steps": steps})
    assert news is not None
    assert (news.job.checkpoint_ms, news.job.predicted_ms) == (250, predicted)


@pytest.mark.parametrize(("slot", "gpus", "node"), [(0, 2, 7), (1, 2, 7), (2, 2, 9), (3, 2, 9), (1, 1, 9)])
def test_an_incident_is_evidence_about_the_node_of_its_slot(slot: int, gpus: int, node: int, tmp_path: Path):
    news = heard(tmp_path, {"incidents": [incident(slot)]}, gpus=gpus)
    assert news is not None
    ((number, evidence),) = news.seen
    assert (number, evidence.check, evidence.job, evidence.at_ms) == (node, "trainer", "j", 300)
    assert evidence.text == "hung after step 4 of j: no progress"


@pytest.mark.parametrize(
    ("kind", "severity"),
    [("hung", "warning"), ("stopped", "warning"), ("diverged", "warning"), ("killed", "note"), ("error", "note")],
)
def test_wrong_answers_and_silence_weigh_more_than_a_death(kind: str, severity: str, tmp_path: Path):
    news = heard(tmp_path, {"incidents": [incident(0, kind)]})
    assert news is not None
    assert news.seen[0][1].severity == severity


@pytest.mark.parametrize("slot", [None, 4, 99])
def test_an_incident_of_no_node_counts_but_blames_nobody(slot: int | None, tmp_path: Path):
    news = heard(tmp_path, {"incidents": [incident(slot)]})
    assert news is not None
    assert (news.seen, news.incidents) == ((), 1)


@pytest.mark.parametrize(("noted", "new"), [(0, 3), (1, 2), (2, 1)])
def test_each_incident_is_news_once(noted: int, new: int, tmp_path: Path):
    news = heard(tmp_path, {"incidents": [incident(0)] * 3}, noted)
    assert news is not None
    assert (len(news.seen), news.incidents) == (new, 3)


@pytest.mark.parametrize("noted", [3, 4])
def test_what_is_known_already_is_no_news(noted: int, tmp_path: Path):
    assert heard(tmp_path, {"incidents": [incident(0)] * 3}, noted) is None
