"""The rules of the fake server's store, against Kubernetes' own."""

import contextlib
import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.engines.kubernetes.api.crds import definition
from weft.engines.kubernetes.api.resources import (
    BUDGETS,
    CONFIG_MAPS,
    DEFINITIONS,
    EVENTS,
    JOBS,
    NAMESPACES,
    NODES,
    OLD_BUDGETS,
    PODS,
    TEAMS,
    Resource,
)
from weft.testing.api_store import ObjectStore, Refusal, Target, merged, selector

_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text("ab", max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=8,
)
_TABLES = st.dictionaries(st.sampled_from("abcd"), _PLAIN, max_size=4)


def _store(*, kinds: bool = True) -> ObjectStore:
    store = ObjectStore(lambda: "2024-01-01T00:00:00Z")
    if kinds:
        for one in (JOBS, TEAMS):
            store.create(_at(DEFINITIONS), definition(one))
    return store


def _at(resource: Resource, name: str | None = None, part: str | None = None) -> Target:
    return Target(resource, "default" if resource.namespaced else None, name, part)


def _pod(name: str = "p", node: str | None = "n", **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **more}, "spec": {"nodeName": node} if node else {}}


@contextlib.contextmanager
def _refused(status: int) -> Iterator[None]:
    with pytest.raises(Refusal) as caught:
        yield
    assert caught.value.status == status


def test_an_object_has_uid_version_generation_and_the_time_of_its_making() -> None:
    meta = _store().create(_at(PODS), _pod())["metadata"]
    assert meta["namespace"] == "default"
    assert (meta["generation"], meta["creationTimestamp"]) == (1, "2024-01-01T00:00:00Z")
    assert len(meta["uid"]) == 36
    assert meta["resourceVersion"].isdigit()


def test_uids_are_the_same_for_the_same_seed_and_differ_otherwise() -> None:
    def uids(seed: int) -> list[str]:
        store = ObjectStore(lambda: "", seed)
        return [store.create(_at(PODS), _pod(str(number)))["metadata"]["uid"] for number in range(3)]

    assert uids(1) == uids(1)
    assert uids(1) != uids(2)
    assert len(set(uids(1))) == 3


def test_a_name_is_taken_once() -> None:
    store = _store()
    store.create(_at(PODS), _pod())
    with _refused(409):
        store.create(_at(PODS), _pod())


def test_a_name_and_a_namespace_are_needed() -> None:
    store = _store()
    with _refused(422):
        store.create(_at(PODS), {"spec": {}})
    with _refused(404):
        store.create(Target(PODS, "nowhere", None, None), _pod())
    store.create(_at(NAMESPACES), {"metadata": {"name": "nowhere"}})
    store.create(Target(PODS, "nowhere", None, None), _pod())


@pytest.mark.parametrize(
    "path", ["/api/v1/things", "/apis/cluster.weft/v1alpha1/weftjobs", "/apis/x/v1/y", "/api/v1/pods/a/b/c"]
)
def test_what_is_not_served_is_not_found(path: str) -> None:
    with _refused(404):
        _store(kinds=False).target(path)


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/api/v1/pods", Target(PODS, None, None, None)),
        ("/api/v1/namespaces/a/pods/b", Target(PODS, "a", "b", None)),
        ("/api/v1/namespaces/a/pods/b/eviction", Target(PODS, "a", "b", "eviction")),
        ("/api/v1/namespaces/a", Target(NAMESPACES, None, "a", None)),
        ("/api/v1/nodes/a/status", Target(NODES, None, "a", "status")),
        ("/apis/cluster.weft/v1alpha1/teams/a", Target(TEAMS, None, "a", None)),
        ("/apis/cluster.weft/v1alpha1/namespaces/a/weftjobs", Target(JOBS, "a", None, None)),
    ],
)
def test_a_path_names_a_kind_a_namespace_and_an_object(path: str, wanted: Target) -> None:
    assert _store().target(path) == wanted


@pytest.mark.parametrize("resource", [JOBS, TEAMS, PODS, NODES, CONFIG_MAPS, EVENTS, BUDGETS, OLD_BUDGETS])
def test_paths_of_every_kind_lead_back_to_it(resource: Resource) -> None:
    target = _store().target(resource.path("default", "x"))
    assert (target.resource.plural, target.name) == (resource.plural, "x")


def test_every_change_has_a_version_of_its_own_and_they_grow() -> None:
    store = _store()
    versions = [int(store.create(_at(PODS), _pod(str(number)))["metadata"]["resourceVersion"]) for number in range(5)]
    assert versions == sorted(set(versions))


def test_a_write_that_changes_nothing_makes_no_version() -> None:
    store = _store()
    made = store.create(_at(PODS), _pod())
    before = store.version
    assert store.merge(_at(PODS, "p"), {"spec": {"nodeName": "n"}}) == made
    assert store.version == before


def test_only_the_newest_version_can_be_replaced() -> None:
    store = _store()
    old = copy.deepcopy(store.create(_at(CONFIG_MAPS), {"metadata": {"name": "c"}, "data": {"a": "1"}}))
    store.replace(_at(CONFIG_MAPS, "c"), {**old, "data": {"a": "2"}})
    with _refused(409):
        store.replace(_at(CONFIG_MAPS, "c"), {**old, "data": {"a": "3"}})
    assert store.get(_at(CONFIG_MAPS, "c"))["data"] == {"a": "2"}


@pytest.mark.parametrize("field", ["resourceVersion", "uid"])
def test_a_patch_that_names_another_version_or_uid_is_refused(field: str) -> None:
    store = _store()
    meta = store.create(_at(PODS), _pod())["metadata"]
    with _refused(409):
        store.merge(_at(PODS, "p"), {"metadata": {field: "other", "labels": {"a": "b"}}})
    store.merge(_at(PODS, "p"), {"metadata": {field: meta[field], "labels": {"a": "b"}}})


def test_status_is_written_by_its_subresource_alone() -> None:
    store = _store()
    body = {"metadata": {"name": "j"}, "spec": {"nodes": 1}, "status": {"state": "lie"}}
    assert "status" not in store.create(_at(JOBS), body)
    store.merge(_at(JOBS, "j"), {"status": {"state": "lie"}})
    assert "status" not in store.get(_at(JOBS, "j"))
    store.merge(_at(JOBS, "j", "status"), {"status": {"state": "true"}, "spec": {"nodes": 7}})
    found = store.get(_at(JOBS, "j"))
    assert (found["status"], found["spec"]) == ({"state": "true"}, {"nodes": 1})


def test_a_generation_counts_changes_of_what_is_asked() -> None:
    store = _store()
    store.create(_at(JOBS), {"metadata": {"name": "j"}, "spec": {"nodes": 1}})
    store.merge(_at(JOBS, "j", "status"), {"status": {"state": "x"}})
    assert store.get(_at(JOBS, "j"))["metadata"]["generation"] == 1
    store.merge(_at(JOBS, "j"), {"spec": {"nodes": 2}})
    assert store.get(_at(JOBS, "j"))["metadata"]["generation"] == 2


def test_a_node_registers_with_its_status_and_a_pod_begins_as_pending() -> None:
    store = _store()
    assert store.create(_at(NODES), {"metadata": {"name": "n"}, "status": {"a": 1}})["status"] == {"a": 1}
    assert store.create(_at(PODS), {**_pod(), "status": {"phase": "Running"}})["status"] == {"phase": "Pending"}


def test_apply_makes_what_is_missing_and_changes_what_is_there() -> None:
    store = _store()
    body = {"metadata": {"name": "t"}, "spec": {"quota": 1}}
    store.apply(_at(TEAMS, "t"), body)
    store.apply(_at(TEAMS, "t"), {**body, "spec": {"most": 3}})
    assert store.get(_at(TEAMS, "t"))["spec"] == {"quota": 1, "most": 3}
    with _refused(404):
        store.apply(_at(TEAMS, "none", "status"), {"status": {}})


def test_a_pod_on_a_node_is_only_marked_and_goes_when_its_kubelet_says_so() -> None:
    store = _store()
    store.create(_at(PODS), _pod())
    store.delete(_at(PODS, "p"), {})
    meta = store.get(_at(PODS, "p"))["metadata"]
    assert meta["deletionGracePeriodSeconds"] == 30
    version = store.version
    store.delete(_at(PODS, "p"), {"gracePeriodSeconds": 60})
    assert store.version == version, "a longer grace is not given afterwards"
    store.delete(_at(PODS, "p"), {"gracePeriodSeconds": 5})
    assert store.get(_at(PODS, "p"))["metadata"]["deletionGracePeriodSeconds"] == 5
    store.delete(_at(PODS, "p"), {"gracePeriodSeconds": 0})
    with _refused(404):
        store.get(_at(PODS, "p"))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", None])
def test_a_pod_that_is_over_or_was_never_bound_goes_at_once(phase: str | None) -> None:
    store = _store()
    store.create(_at(PODS), _pod(node=None if phase is None else "n"))
    if phase is not None:
        store.merge(_at(PODS, "p", "status"), {"status": {"phase": phase}})
    store.delete(_at(PODS, "p"), {})
    assert not store.objects(PODS)


def test_a_deletion_means_one_uid_and_no_other() -> None:
    store = _store()
    store.create(_at(PODS), _pod())
    with _refused(409):
        store.delete(_at(PODS, "p"), {"preconditions": {"uid": "another"}})
    with _refused(404):
        store.delete(_at(PODS, "q"), {})


def test_an_object_with_finalizers_stays_until_they_are_gone() -> None:
    store = _store()
    store.create(_at(JOBS), {"metadata": {"name": "j", "finalizers": ["a/b"]}, "spec": {}})
    store.delete(_at(JOBS, "j"), {})
    assert "deletionTimestamp" in store.get(_at(JOBS, "j"))["metadata"]
    store.merge(_at(JOBS, "j"), {"metadata": {"labels": {"x": "y"}}})
    store.merge(_at(JOBS, "j"), {"metadata": {"finalizers": []}})
    assert not store.objects(JOBS)


@pytest.mark.parametrize("collects", [True, False])
def test_what_an_object_owned_goes_with_it(collects: bool) -> None:
    store = _store()
    store.garbage_collector = collects
    uid = store.create(_at(JOBS), {"metadata": {"name": "j"}, "spec": {}})["metadata"]["uid"]
    store.create(_at(PODS), _pod(node=None, ownerReferences=[{"uid": uid}]))
    store.create(_at(PODS), _pod("other", node=None))
    store.create(_at(BUDGETS), {"metadata": {"name": "b", "ownerReferences": [{"uid": uid}]}, "spec": {}})
    store.delete(_at(JOBS, "j"), {})
    assert ("default/p" in store.objects(PODS)) is not collects
    assert ("default/b" in store.objects(BUDGETS)) is not collects
    assert "default/other" in store.objects(PODS)


@pytest.mark.parametrize(
    ("most", "labels", "holds"), [(0, {"a": "b"}, True), (1, {"a": "b"}, False), (0, {"a": "c"}, False)]
)
def test_a_budget_holds_the_pods_that_it_selects(most: int, labels: dict[str, str], holds: bool) -> None:
    store = _store()
    store.create(_at(PODS), _pod(labels={"a": "b"}))
    spec = {"maxUnavailable": most, "selector": {"matchLabels": labels}}
    store.create(_at(BUDGETS), {"metadata": {"name": "b"}, "spec": spec})
    if holds:
        with _refused(429):
            store.evict(_at(PODS, "p", "eviction"), {})
    else:
        store.evict(_at(PODS, "p", "eviction"), {"deleteOptions": {"gracePeriodSeconds": 0}})
        assert not store.objects(PODS)


def test_a_pod_is_bound_once() -> None:
    store = _store()
    store.create(_at(PODS), _pod(node=None))
    for _ in range(2):
        store.bind(_at(PODS, "p", "binding"), {"target": {"name": "n"}})
    with _refused(409):
        store.bind(_at(PODS, "p", "binding"), {"target": {"name": "m"}})


@given(st.integers(0, 30), st.integers(1, 12))
def test_pages_together_are_the_list_whatever_their_size(count: int, limit: int) -> None:
    store = _store(kinds=False)
    for number in range(count):
        store.create(_at(PODS), _pod(f"{number:03d}"))
    names: list[str] = []
    versions: set[str] = set()
    query = {"limit": str(limit)}
    while True:
        page = store.page(_at(PODS), query)
        names += [one["metadata"]["name"] for one in page["items"]]
        versions.add(page["metadata"]["resourceVersion"])
        assert len(page["items"]) <= limit
        # What is made between two pages is no part of the list.
        store.create(_at(PODS), _pod(f"new{len(names)}-{count}"))
        if "continue" not in page["metadata"]:
            break
        query = {"limit": str(limit), "continue": page["metadata"]["continue"]}
    assert names == [f"{number:03d}" for number in range(count)]
    assert len(versions) == 1


def test_the_rest_of_a_list_is_gone_after_a_compaction() -> None:
    store = _store()
    for number in range(3):
        store.create(_at(PODS), _pod(str(number)))
    token = store.page(_at(PODS), {"limit": "1"})["metadata"]["continue"]
    store.compact()
    with _refused(410):
        store.page(_at(PODS), {"continue": token})


@given(st.lists(st.sampled_from(["make", "change", "remove"]), max_size=30), st.data())
def test_events_since_any_version_lead_from_the_list_of_then_to_the_list_of_now(acts: list[str], data: Any) -> None:
    store = _store(kinds=False)
    names = itertools.count()
    lists: list[tuple[int, dict[str, str]]] = []

    def held() -> dict[str, str]:
        return {key: one["metadata"]["resourceVersion"] for key, one in store.objects(PODS).items()}

    for act in acts:
        there = sorted(store.objects(PODS))
        if act == "make" or not there:
            store.create(_at(PODS), _pod(str(next(names)), node=None))
        else:
            name = data.draw(st.sampled_from(there)).split("/")[1]
            if act == "change":
                store.merge(_at(PODS, name), {"metadata": {"labels": {"v": str(store.version)}}})
            else:
                store.delete(_at(PODS, name), {})
        lists.append((store.version, held()))
    for version, then in lists:
        now = dict(then)
        for event in store.since(PODS, version):
            some = event.new or event.old
            assert some is not None
            key = f"default/{some['metadata']['name']}"
            if event.new is None:
                del now[key]
            else:
                now[key] = event.new["metadata"]["resourceVersion"]
        assert now == held()


def test_versions_from_before_a_compaction_are_gone() -> None:
    store = _store()
    store.create(_at(PODS), _pod())
    store.compact()
    with _refused(410):
        store.since(PODS, store.version - 1)
    assert store.since(PODS, store.version) == []


@given(_TABLES, _TABLES)
def test_a_merge_patch_is_taken_twice_like_once(old: dict[str, Any], patch: dict[str, Any]) -> None:
    once = merged(old, patch)
    assert merged(once, patch) == once


@given(_TABLES, _TABLES)
def test_a_merge_patch_touches_only_what_it_names(old: dict[str, Any], patch: dict[str, Any]) -> None:
    after = merged(old, patch)
    for name, value in patch.items():
        assert (name in after) is (value is not None)
        if value is not None and not hasattr(value, "items"):
            assert after[name] == value
    assert {name: old[name] for name in old if name not in patch} == {
        name: after[name] for name in after if name not in patch
    }


@given(_TABLES)
def test_an_empty_patch_changes_nothing_and_does_not_alias(old: dict[str, Any]) -> None:
    assert merged(old, {}) == old


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({}, "abc"),
        ({"labelSelector": "x=1"}, "a"),
        ({"labelSelector": "x"}, "ab"),
        ({"labelSelector": "x,y=2"}, "b"),
        ({"labelSelector": "z"}, ""),
        ({"fieldSelector": "metadata.name=c"}, "c"),
    ],
)
def test_selectors_choose_by_labels_and_names(query: dict[str, str], names: str) -> None:
    store = _store()
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "2", "y": "2"}), ("c", {})):
        store.create(_at(PODS), _pod(name, labels=labels))
    chosen = selector(_at(PODS), query)
    assert "".join(sorted(one["metadata"]["name"] for one in store.objects(PODS).values() if chosen(one))) == names
    assert not selector(Target(PODS, "kube-system", None, None), {})(store.objects(PODS)["default/a"])
