"""`weft scale ladder`: train small runs, predict a large one from them, and hold it against the large one itself."""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

from weft.cli.cluster import local
from weft.cli.cluster.local import HomeOption, home_of
from weft.cli.cluster.submit import findable
from weft.cli.output import JsonFlag, counting, print_json, print_table, say, written_to
from weft.cli.planning.scale import counted, print_prediction, print_warnings
from weft.core.errors import FailedError, UsageError
from weft.core.seeds import Seed
from weft.engines.local.atomic_files import write_whole
from weft.engines.local.client import LocalClient
from weft.planning.scaling_laws import scaling
from weft.planning.scaling_laws.ladder import Rung, cautions, rung_of
from weft.planning.scaling_laws.ladder import ladder as rungs_of
from weft.planning.scaling_laws.selftest import Trial, predict_large
from weft.specs import load_job
from weft.specs.submission import SubmissionSpec

_LOOK_S = 0.5
_ENDED = ("done", "failed", "cancelled")


def ladder(
    job: Annotated[str, Parameter(help="Built-in name or path of a job file: the large run.")] = "ladder-gpt", /, *,
    budget: Annotated[float | None, Parameter(help="FLOPs of all small runs together; default: enough.")] = None,
    run: Annotated[bool, Parameter(negative="", help="Also run the large one, and compare.")] = False,
    out: Annotated[
        Path, Parameter(help="Where the points go, for weft scale fit."), written_to("--out")
    ] = Path("ladder.csv"),
    home: HomeOption = None, json: JsonFlag = False,
) -> None:  # fmt: skip
    """Predict the loss of JOB from a ladder of smaller runs, which are submitted to the cluster as experiments.

    The largest of them is at least ten times cheaper than JOB. Where no cluster is up, one is started for the time.
    """
    target = findable(load_job(job))
    top, rungs = rung_of(target), rungs_of(target, budget)
    with _cluster(home) as client, counting("runs", len(rungs) + run) as finished:
        # The large run takes the longest, so it begins first; the prediction does not know it.
        losses = _train(client, [top, *rungs] if run else rungs, finished)
        measured = losses.pop(0) if run else None
        points = [(rung.params, rung.tokens, loss) for rung, loss in zip(rungs, losses, strict=True)]
        write_whole(out, "params,tokens,loss\n" + "".join(f"{a},{b},{c!r}\n" for a, b, c in points))
        columns = np.array(points, dtype=np.float64)
        known = scaling.Points(columns[:, 0], columns[:, 1], columns[:, 2])
        prediction, found, trial = predict_large(known, top.params, top.tokens, Seed(target.seed))
    document = {
        "job": target.name, "rungs": [{"params": a, "tokens": b, "loss": c} for a, b, c in points],
        "flops": sum(rung.flops for rung in rungs), "times_cheaper": top.flops / max(rung.flops for rung in rungs),
        "self_test": trial.as_json(), "warnings": list(cautions(rungs)),
        "predicted": prediction.as_json(), "fit": found.as_json(), "measured": measured,
        "error": None if measured is None else prediction.loss / measured - 1, "points_file": str(out),
    }  # fmt: skip
    if json:
        print_json(document)
        return
    rows = [(counted(a), counted(b), f"{6 * a * b:.2g}", f"{c:.4f}") for a, b, c in points]
    print_table(f"{len(points)} small runs, kept in {out}", ("parameters", "tokens", "FLOPs", "loss"), rows)
    _print_trial(trial)
    print_prediction(prediction)
    print_warnings(cautions(rungs))
    if measured is not None:
        say(f"measured {measured:.4f}: the prediction was {document['error']:+.2%} off")


def _print_trial(trial: Trial) -> None:
    """Print how well each law predicts the largest small runs, and its weight."""
    first = trial.tests[0]
    title = f"self-test: the {first.held} largest of them, up to {first.factor:.1f} times what the laws saw, predicted"
    rows: list[tuple[str, ...]] = [
        (test.form, scaling.FORMULAS[test.form], f"{test.error:.2%}", f"{test.worst:+.2%}", f"{test.weight:.0%}")
        for test in trial.tests
    ]
    rows.append(("together", "", f"{trial.error:.2%}", "", ""))
    print_table(title, ("law", "", "error (rms)", "worst", "weight"), rows, words=(0, 1))


def _train(client: LocalClient, rungs: Sequence[Rung], finished: Callable[[], None]) -> list[float]:
    """Submit runs as experiments, wait for all, and return their held-out losses."""
    names: list[str] = []
    for rung in rungs:
        evaluated = rung.job.evaluation.model_copy(update={"every": rung.job.steps})
        spec = rung.job.model_copy(update={"evaluation": evaluated})
        table = {"kind": "experiment", "job": spec.as_written(), "key": str(uuid.uuid4())}
        SubmissionSpec.model_validate(table)
        names += [job["id"] for job in client.submit(table)]
    try:
        return [_loss(_ended(client, name, finished)) for name in names]
    except BaseException:
        for name in names:
            with contextlib.suppress(UsageError, FailedError):
                client.post("v1", "jobs", name, "cancel")
        raise


def _ended(client: LocalClient, name: str, finished: Callable[[], None]) -> dict[str, Any]:
    while (job := client.get("v1", "jobs", name))["state"] not in _ENDED:
        time.sleep(_LOOK_S)
    finished()
    return job


def _loss(job: dict[str, Any]) -> float:
    if job["state"] != "done" or job["score"] is None:
        raise FailedError(
            f"{job['id']} {job['state']}: {job['text'] or 'it has no loss'}; weft logs {job['id']} says more"
        )
    return float(job["score"])


@contextlib.contextmanager
def _cluster(given: Path | None) -> Iterator[LocalClient]:
    """Use the cluster that is up, or one for the time of this command."""
    client = LocalClient(home_of(given))
    if client.process() is not None:
        yield client
        return
    local.bring_up(home_of(given))
    try:
        yield client
    finally:
        local.take_down(client)
