"""What a fake API server keeps: objects with versions, and the rules by which they are made, changed and removed.

The rules are those of Kubernetes as far as weft and its tests lean on them: optimistic concurrency, status as a
subresource, graceful deletion of pods, finalizers, pages, label selectors, budgets. No I/O, no clock of its own.
"""

import base64
import copy
import random
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from weft.engines.kubernetes.api import resources as known
from weft.engines.kubernetes.api.resources import Resource

_OTHERS = {"secrets": "Secret", "services": "Service", "serviceaccounts": "ServiceAccount"}
_CORE = (
    *(one for one in vars(known).values() if isinstance(one, Resource) and one not in known.OURS),
    *(Resource("", "v1", plural, kind) for plural, kind in _OTHERS.items()),
)
_STATUS = {"jobs", "pods", "nodes", "namespaces", "poddisruptionbudgets", "customresourcedefinitions"}
_NAMESPACES = ("default", "kube-system", "kube-node-lease", "kube-public")
_OVER = ("Succeeded", "Failed")
_GRACE_S = 30

Object = dict[str, Any]


class Refusal(Exception):  # noqa: N818 - an answer of the server, not an error of this program
    """The server says no: an HTTP status, a reason and a message."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: int | None = None) -> None:
        """Describe one refusal."""
        super().__init__(message)
        self.status, self.reason, self.message, self.retry_after_s = status, reason, message, retry_after_s


class StoredEvent(NamedTuple):
    """One change, as watches tell it: what was there before, and what is there now."""

    version: int
    old: Object | None
    new: Object | None


class Target(NamedTuple):
    """What a path names."""

    resource: Resource
    namespace: str | None
    name: str | None
    part: str | None


class ObjectStore:
    """Objects of every kind, by resource and key."""

    def __init__(self, now: Callable[[], str], seed: int = 0) -> None:
        """Begin with the namespaces that every cluster has; `now` gives the time as Kubernetes writes it."""
        self._now = now
        self._random = random.Random(seed)  # noqa: S311 - uids that repeat from run to run
        self._served: dict[str, Resource] = {one.path(): one for one in _CORE}
        self._with_status = set(_STATUS)
        self._objects: dict[str, dict[str, Object]] = {}
        self._history: dict[str, list[StoredEvent]] = {}
        self._pages: dict[str, tuple[int, list[Object]]] = {}
        self.version = 1
        self.oldest = 0
        """Watches and pages from before this version are refused as gone."""
        self.garbage_collector = True
        """Whether what an object owned goes with it, as kube-controller-manager would have it."""
        self.rules: list[Callable[[Resource, Object, Object], None]] = []
        """Admission: each is asked about a change of an object before it is done, and may refuse it."""
        for name in _NAMESPACES:
            self.create(Target(known.NAMESPACES, None, None, None), {"metadata": {"name": name}})

    def target(self, path: str) -> Target:
        """Return what a path names; refuses one that the server does not serve."""
        parts = path.strip("/").split("/")
        root, rest = (parts[:2], parts[2:]) if parts[0] == "api" else (parts[:3], parts[3:])
        namespace = None
        # /namespaces/NAME is the object itself; only with more behind it is it somebody's namespace.
        if len(rest) > 2 and rest[0] == "namespaces":  # noqa: PLR2004 - namespaces, NAME and a plural
            namespace, rest = rest[1], rest[2:]
        resource = self._served.get("/" + "/".join((*root, *rest[:1])))
        if resource is None or len(rest) > 3:  # noqa: PLR2004 - plural, name and part
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        return Target(resource, namespace, *(*rest[1:], None, None)[:2])

    def groups(self) -> list[Object]:
        """Return the API groups that are served, and their versions, as discovery lists them."""
        found: dict[str, list[str]] = {}
        for one in self._served.values():
            if one.group and one.version not in found.setdefault(one.group, []):
                found[one.group].append(one.version)
        return [{"name": name, "versions": [{"version": one} for one in each]} for name, each in found.items()]

    def compact(self) -> None:
        """Forget the past: who asks for an older version than now learns that it is gone."""
        self.oldest = self.version
        self._pages.clear()
        self._history.clear()

    def objects(self, resource: Resource) -> dict[str, Object]:
        """Return the objects of a kind by key; callers must not change them."""
        return self._objects.setdefault(resource.plural, {})

    def get(self, target: Target) -> Object:
        """Return one object."""
        found = self.objects(target.resource).get(_key(target))
        if found is None:
            raise Refusal(404, "NotFound", f'{target.resource.plural} "{target.name}" not found')
        return found

    def page(self, target: Target, query: Mapping[str, str]) -> Object:
        """Return a list, or a part of one with a token for the rest; all parts are of the same version."""
        token = query.get("continue", "")
        if token:
            if token not in self._pages:
                raise Refusal(410, "Expired", "the provided continue parameter is too old")
            version, items = self._pages.pop(token)
        else:
            chosen = selector(target, query)
            held = sorted(self.objects(target.resource).items())
            version, items = self.version, [one for _, one in held if chosen(one)]
        limit = int(query.get("limit") or 0) or len(items)
        meta: Object = {"resourceVersion": str(version)}
        if items[limit:]:
            meta["continue"] = base64.b64encode(f"{version}:{len(self._pages)}:{len(items)}".encode()).decode()
            self._pages[meta["continue"]] = (version, items[limit:])
        return {"kind": f"{target.resource.kind}List", "apiVersion": target.resource.api_version, "metadata": meta,
                "items": items[:limit]}  # fmt: skip

    def since(self, resource: Resource, version: int) -> list[StoredEvent]:
        """Return what has changed after a version."""
        if version < self.oldest:
            raise Refusal(410, "Expired", f"too old resource version: {version} ({self.oldest})")
        history = self._history.get(resource.plural, [])
        return history[bisect_right(history, version, key=lambda event: event.version) :]

    def create(self, target: Target, body: Object) -> Object:
        """Make an object; refuses one whose name is taken or whose namespace is not there."""
        meta = dict(body.get("metadata") or {})
        resource = target.resource
        space = target.namespace or meta.get("namespace") or ("default" if resource.namespaced else None)
        if resource.namespaced and space not in self.objects(known.NAMESPACES):
            raise Refusal(404, "NotFound", f'namespaces "{space}" not found')
        if "name" not in meta:
            raise Refusal(422, "Invalid", f"{resource.kind} has no metadata.name")
        target = Target(resource, space if resource.namespaced else None, meta["name"], None)
        if _key(target) in self.objects(resource):
            raise Refusal(409, "AlreadyExists", f'{resource.plural} "{meta["name"]}" already exists')
        meta |= {"uid": str(uuid.UUID(int=self._random.getrandbits(128), version=4)), "generation": 1,
                 "creationTimestamp": self._now()}  # fmt: skip
        if resource.namespaced:
            meta["namespace"] = space
        made = {"apiVersion": resource.api_version, "kind": resource.kind, **copy.deepcopy(body), "metadata": meta}
        if resource.plural == "pods":
            made["status"] = {"phase": "Pending"}
        elif resource.plural in self._with_status and resource.plural != "nodes":
            made.pop("status", None)
        if resource == known.DEFINITIONS:
            self._serve(made)
        return self._put(target, None, made)

    def _serve(self, definition: Object) -> None:
        """Serve the kind that a CustomResourceDefinition defines."""
        spec = definition["spec"]
        for version in spec["versions"]:
            names = spec["names"]
            one = Resource(
                spec["group"], version["name"], names["plural"], names["kind"], spec["scope"] == "Namespaced"
            )
            self._served[one.path()] = one
            if "status" in (version.get("subresources") or {}):
                self._with_status.add(one.plural)
        definition["status"] = {"conditions": [{"type": "Established", "status": "True"}]}

    def replace(self, target: Target, body: Object) -> Object:
        """Replace an object, or its status, if it still has the version that `body` names."""
        old = self.get(target)
        self._check(old, body.get("metadata") or {})
        new = copy.deepcopy(body)
        new["metadata"] = {**(old["metadata"]), **(body.get("metadata") or {})}
        return self._change(target, old, new)

    def merge(self, target: Target, patch: Object) -> Object:
        """Change some fields, as RFC 7386 says: tables are joined, null removes, everything else is replaced."""
        old = self.get(target)
        self._check(old, patch.get("metadata") or {})
        return self._change(target, old, merged(old, patch))

    def apply(self, target: Target, body: Object) -> Object:
        """Make an object be as `body` says in the fields that it names; makes it where it is missing."""
        if target.part is None and _key(target) not in self.objects(target.resource):
            return self.create(target, body)
        return self.merge(target, body)

    def _check(self, old: Object, meta: Mapping[str, Any]) -> None:
        for field in ("resourceVersion", "uid"):
            if meta.get(field) not in (None, "", old["metadata"][field]):
                raise Refusal(409, "Conflict", f"{field} {meta[field]} is not {old['metadata'][field]}")

    def _change(self, target: Target, old: Object, new: Object) -> Object:
        """Keep a subresource's writer to its part, count generations, and finish a deletion that waited."""
        if target.part == "status":
            new = {**old, "status": new.get("status")}
        elif target.resource.plural in self._with_status:
            new = {name: value for name, value in new.items() if name != "status"}
            new |= {"status": old["status"]} if "status" in old else {}
        new["metadata"] = {**new["metadata"], **{name: old["metadata"][name] for name in ("uid", "creationTimestamp")}}
        if new.get("spec") != old.get("spec"):
            for rule in self.rules:
                rule(target.resource, old, new)
            new["metadata"]["generation"] = old["metadata"]["generation"] + 1
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if new == old:
            # Like the real server: a write that changes nothing makes no version and no event.
            return old
        waited = "deletionTimestamp" in new["metadata"] and old["metadata"].get("finalizers")
        if waited and not new["metadata"].get("finalizers"):
            return self._remove(target, old)
        return self._put(target, old, new)

    def _put(self, target: Target, old: Object | None, new: Object | None) -> Object:
        self.version += 1
        held, key = self.objects(target.resource), _key(target)
        if new is None:
            assert old is not None
            held.pop(key)
            old = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.version)}}
        else:
            new["metadata"] = {**new["metadata"], "resourceVersion": str(self.version)}
            held[key] = new
        self._history.setdefault(target.resource.plural, []).append(StoredEvent(self.version, old, new))
        return new or old or {}

    def delete(self, target: Target, options: Mapping[str, Any]) -> Object:
        """Remove an object; a pod on a node and one with finalizers are only marked."""
        old = self.get(target)
        self._check(old, options.get("preconditions") or {})
        meta = dict(old["metadata"])
        grace_s = self._grace_s(target.resource, old, options)
        if not grace_s and not meta.get("finalizers"):
            return self._remove(target, old)
        if "deletionTimestamp" in meta and grace_s >= meta.get("deletionGracePeriodSeconds", 0):
            return old
        meta |= {"deletionTimestamp": self._now(), "deletionGracePeriodSeconds": grace_s}
        return self._put(target, old, {**old, "metadata": meta})

    def _grace_s(self, resource: Resource, old: Object, options: Mapping[str, Any]) -> int:
        """Return how long an object may still live: only a pod that runs on a node is given any time."""
        spec, phase = old.get("spec") or {}, (old.get("status") or {}).get("phase")
        if resource.plural != "pods" or not spec.get("nodeName") or phase in _OVER:
            return 0
        asked = options.get("gracePeriodSeconds")
        return int(spec.get("terminationGracePeriodSeconds", _GRACE_S) if asked is None else asked)

    def _remove(self, target: Target, old: Object) -> Object:
        gone = self._put(target, old, None)
        uid = old["metadata"]["uid"]
        if self.garbage_collector:
            for resource, key, one in list(self._owned_by(uid)):
                space, _, name = key.rpartition("/")
                self.delete(Target(resource, space or None, name, None), {"preconditions": {"uid": one}})
        return gone

    def _owned_by(self, uid: str) -> Iterator[tuple[Resource, str, str]]:
        # One entry for each plural: a kind that is served in two versions is stored once.
        for resource in {one.plural: one for one in self._served.values()}.values():
            for key, one in self.objects(resource).items():
                if any(owner["uid"] == uid for owner in one["metadata"].get("ownerReferences") or ()):
                    yield resource, key, one["metadata"]["uid"]

    def evict(self, target: Target, body: Mapping[str, Any]) -> Object:
        """Delete a pod, unless a disruption budget that covers it allows none."""
        pod = self.get(target)
        labels = pod["metadata"].get("labels") or {}
        for budget in self.objects(known.BUDGETS).values():
            wanted = (budget["spec"].get("selector") or {}).get("matchLabels") or {}
            mine = budget["metadata"]["namespace"] == target.namespace
            if mine and budget["spec"].get("maxUnavailable") == 0 and wanted.items() <= labels.items():
                raise Refusal(429, "TooManyRequests", "a disruption budget allows no eviction now", 10)
        return self.delete(
            Target(target.resource, target.namespace, target.name, None), body.get("deleteOptions") or {}
        )

    def bind(self, target: Target, body: Mapping[str, Any]) -> Object:
        """Bind a pod to a node, once."""
        pod = self.get(target)
        node = body["target"]["name"]
        if pod["spec"].get("nodeName") not in (None, node):
            raise Refusal(409, "Conflict", f"pod {target.name} is already assigned to {pod['spec']['nodeName']}")
        return self._put(target, pod, {**pod, "spec": {**pod["spec"], "nodeName": node}})


def _key(target: Target) -> str:
    return f"{target.namespace}/{target.name}" if target.resource.namespaced else str(target.name)


def merged(old: Any, patch: Any) -> Any:
    """Return `old` with a merge patch applied (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    new = dict(old) if isinstance(old, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = merged(new.get(name), value)
    return new


def selector(target: Target, query: Mapping[str, str]) -> Callable[[Object], bool]:
    """Return whether an object is meant by a list or a watch: its namespace, its name and its labels."""
    labels = [part.partition("=") for part in query.get("labelSelector", "").split(",") if part]
    fields = dict(part.split("=", 1) for part in query.get("fieldSelector", "").split(",") if part)

    def chosen(item: Object) -> bool:
        meta = item["metadata"]
        held = meta.get("labels") or {}
        if target.namespace is not None and meta.get("namespace") != target.namespace:
            return False
        if fields.get("metadata.name", meta["name"]) != meta["name"]:
            return False
        return all(held.get(name) == value if equals else name in held for name, equals, value in labels)

    return chosen
