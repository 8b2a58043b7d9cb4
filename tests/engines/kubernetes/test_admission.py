"""The shipped admission policies, evaluated by Google's CEL on drawn objects, say what the engine says."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from cel_expr_python import cel
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.engines.kubernetes.workloads import KIND_NAMES, workload

from weft.engines.kubernetes.api.crds import JobBody

Object = dict[str, Any]
_FILE = Path(__file__).parents[3] / "deploy" / "admission" / "policies.yaml"
_ENGINE = "system:serviceaccount:weft-system:weft-engine"
_PERSON = "ada"
_POLICIES = {
    one["metadata"]["name"]: one["spec"]
    for one in yaml.safe_load_all(_FILE.read_text(encoding="utf-8"))
    if one["kind"] == "ValidatingAdmissionPolicy"
}


class Policy:
    """One policy: its conditions, variables and rules, compiled once."""

    def __init__(self, name: str) -> None:
        names = ("object", "oldObject", "request", "variables")
        environment = cel.NewEnv(variables=dict.fromkeys(names, cel.Type.DYN))
        said = _POLICIES[name]
        self.conditions = [environment.compile(one["expression"]) for one in said.get("matchConditions") or ()]
        self.variables = {one["name"]: environment.compile(one["expression"]) for one in said["variables"]}
        self.rules = [(environment.compile(one["expression"]), one["message"]) for one in said["validations"]]

    def says(self, item: Object, old: Object | None = None, user: str = _PERSON) -> list[str]:
        """Return the messages of the rules that an object breaks."""
        data: Object = {"object": item, "oldObject": old, "request": {"userInfo": {"username": user}}, "variables": {}}
        if not all(self._value(one, data) for one in self.conditions):
            return []
        for name, one in self.variables.items():
            data["variables"][name] = self._value(one, data)
        return [message for one, message in self.rules if not self._value(one, data)]

    def _value(self, expression: Any, data: Object) -> Any:
        found = expression.eval(data=data)
        assert found.type() != cel.Type.ERROR, found.value()
        return found.value()


_WORKLOADS, _JOBS = Policy("weft-workloads"), Policy("weft-jobs")


def _item(kind: str, *, suspend: bool | None, labels: Object | None = None, **meta: Any) -> Object:
    spec = workload(kind, 2, suspend=bool(suspend))
    if suspend is None:
        (spec.get("runPolicy") or spec).pop("suspend")
    marks = {"cluster.weft/queue": "team", **(labels or {})}
    return {"kind": kind, "metadata": {"name": "one", "labels": marks, **meta}, "spec": spec}


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_a_queued_workload_is_made_suspended(kind: str) -> None:
    assert _WORKLOADS.says(_item(kind, suspend=True)) == []
    for suspend in (False, None):
        (said,) = _WORKLOADS.says(_item(kind, suspend=suspend))
        assert "suspend: true" in said
    assert _WORKLOADS.says({**_item(kind, suspend=False), "metadata": {"name": "one"}}) == [], "not in the queue"
    owner = {"kind": "JobSet", "controller": True}
    assert _WORKLOADS.says(_item(kind, suspend=False, ownerReferences=[owner])) == []
    # One that a CronJob makes is of its own.
    assert _WORKLOADS.says(_item(kind, suspend=False, ownerReferences=[{"kind": "CronJob", "controller": True}]))


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_nobody_but_the_engine_lets_it_go(kind: str) -> None:
    waits, runs = _item(kind, suspend=True), _item(kind, suspend=False)
    assert _WORKLOADS.says(runs, waits)
    assert _WORKLOADS.says(runs, waits, _ENGINE) == []
    assert _WORKLOADS.says(runs, runs) == [], "what runs may be changed"
    assert _WORKLOADS.says(waits, runs) == [], "everybody may let it wait"


@given(text=st.one_of(st.text("0123456789", max_size=5), st.integers(-5, 1100).map(str), st.text(max_size=3)))
def test_priorities_are_those_that_the_engine_takes(text: str) -> None:
    taken = (
        text.isascii() and text.isdigit() and len(text) <= 4 and int(text) <= 1000 and (len(text) < 4 or text == "1000")
    )
    assert (not _WORKLOADS.says(_item("Job", suspend=True, labels={"cluster.weft/priority": text}))) == taken


def test_kinds_are_those_that_the_engine_takes() -> None:
    for kind in ("training", "experiment", "service"):
        assert not _WORKLOADS.says(_item("Job", suspend=True, labels={"cluster.weft/kind": kind}))
    assert _WORKLOADS.says(_item("Job", suspend=True, labels={"cluster.weft/kind": "pipeline"}))


_BODIES = st.fixed_dictionaries(
    {},
    optional={
        "nodes": st.integers(1, 4), "minNodes": st.integers(0, 5), "hostNetwork": st.booleans(),
        "command": st.lists(st.just("true"), max_size=2),
        "workload": st.just({"kind": "Job", "name": "one", "uid": "u"}),
    },
)  # fmt: skip


@given(spec=_BODIES)
def test_rules_over_several_fields_are_those_of_the_engine(spec: Object) -> None:
    try:
        JobBody.model_validate(spec)
    except ValidationError:
        taken = False
    else:
        taken = True
    assert (not _JOBS.says({"spec": spec}, user=_ENGINE)) == taken


def test_people_let_no_job_stand_for_a_workload() -> None:
    spec = {"workload": {"kind": "Job", "name": "one", "uid": "u"}}
    assert _JOBS.says({"spec": spec})
    assert not _JOBS.says({"spec": spec}, user=_ENGINE)
    assert not _JOBS.says({"spec": {**spec, "priority": 5}}, {"spec": spec}), "to cancel one is to change it"
    assert not _JOBS.says({"spec": {"command": ["true"]}})
