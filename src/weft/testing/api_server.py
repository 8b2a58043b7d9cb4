"""A fake API server in one process: lists, watches, conflicts and every fault that a real one has, from a seed.

It speaks to an `ApiClient` without a socket (`client`), which together with `virtual_time` makes hours of a cluster's
life pass in milliseconds, and as real HTTP on loopback (`listening`). It starts with the core kinds; the CRDs that are
created on it are served from then on. Faults are planned (`fail`), drawn from a seed (`trouble`), or a crash at the
n-th write of a client (`crash`). What `api_store` does not know of Kubernetes, a test must not lean on.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import orjson
from aiohttp import web
from typing_extensions import override

from weft.engines.kubernetes.api.access import Access
from weft.engines.kubernetes.api.api_client import APPLY, MERGE, Answer, ApiClient, Call
from weft.engines.kubernetes.api.crds import definitions
from weft.engines.kubernetes.api.resources import DEFINITIONS, LEASES, NODES
from weft.testing.api_store import Object, ObjectStore, Refusal, StoredEvent, Target, selector

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
ADMIN = "admin"
_EPOCH_S = 1_700_000_000
_LEASES = "kube-node-lease"


@dataclass
class ServerFault:
    """A fault that is planned: the next `times` requests that match are spoilt."""

    status: int
    """What is answered: 409, 410, 429, 500, 503 ..."""
    method: str = ""
    """Requests of this method; "WATCH" for watches; empty for all."""
    path: str = ""
    """Requests whose path contains this."""
    times: int = 1
    """How many requests."""
    retry_after_s: int | None = None
    """What Retry-After says."""
    done: bool = False
    """Whether the server does what was asked all the same: only the answer is lost."""


@dataclass(frozen=True)
class Trouble:
    """Shares of requests that go wrong, drawn from the server's seed."""

    too_many: float = 0.0
    """Refused with 429 and Retry-After."""
    failed: float = 0.0
    """Refused with 500."""
    lost: float = 0.0
    """Done, but answered with 500."""
    conflict: float = 0.0
    """Writes that name a version and are refused with 409, as if somebody else had been quicker."""
    gone: float = 0.0
    """Watches that are refused with 410."""
    closed: float = 0.0
    """Watches that are closed after some events, silently."""
    silent: float = 0.0
    """Watches that stay open after some events and say nothing more."""
    latency_s: float = 0.0
    """Most time that an answer takes."""


@dataclass
class Crash:
    """The end of a client: nothing that it sends after its n-th write is done or answered."""

    agent: str
    """Whose writes are counted: the client's User-Agent."""
    writes: int
    """The last write that is done; its answer is lost."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when that write has been done."""
    seen: int = 0
    """Writes so far."""


class FakeApiServer:
    """One server. Inside a loop, times are the loop's, so that virtual time counts."""

    def __init__(self, seed: int = 0, *, crds: bool = True) -> None:
        """Begin empty, with weft's CRDs served unless asked otherwise."""
        self.store = ObjectStore(self.now, seed)
        self.trouble = Trouble()
        self.planned: list[ServerFault] = []
        self.crash: Crash | None = None
        self.requests: Counter[str] = Counter()
        """Requests by method and plural, such as "POST pods"."""
        self.writes: list[str] = []
        """Writes that were done, in order."""
        self.users: dict[str, list[Mapping[str, Any]]] | None = None
        """RBAC rules of each token (apiGroups, resources, verbs); none where everybody may do everything."""
        self.logs: dict[str, str] = {}
        """What pods have printed, by namespace/name."""
        self.policy_versions: tuple[str, ...] = ("v1", "v1beta1")
        self.release = (1, 34)
        """Which version of Kubernetes it says that it is."""
        self.bookmark_s = 30.0
        self._random = random.Random(seed + 1)  # noqa: S311 - faults that repeat from run to run
        self._changed: set[asyncio.Event] = set()
        self._muted: set[str] = set()
        if crds:
            for one in definitions():
                self.store.create(Target(DEFINITIONS, None, None, None), one)

    def now_ms(self) -> int:
        """Return the server's time in milliseconds since 1970."""
        with contextlib.suppress(RuntimeError):
            return int((_EPOCH_S + asyncio.get_running_loop().time()) * 1000)
        return _EPOCH_S * 1000

    def now(self) -> str:
        """Return the server's time as Kubernetes writes it."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def access(self, token: str = ADMIN, namespace: str = "default") -> Access:
        """Return an access for clients in this process."""
        return Access("http://fake", "fake", namespace, token=token)

    def client(self, agent: str = "weft", *, token: str = ADMIN, **more: Any) -> "InProcessClient":
        """Return a client that needs no socket."""
        return InProcessClient(self, self.access(token), agent=agent, **more)

    def fail(self, status: int, method: str = "", path: str = "", **more: Any) -> ServerFault:
        """Plan a fault for the next request that matches."""
        self.planned.append(ServerFault(status, method, path, **more))
        return self.planned[-1]

    def mute(self, plural: str, *, muted: bool = True) -> None:
        """Let every watch of a kind stay open and say nothing, or let it speak again."""
        (self._muted.add if muted else self._muted.discard)(plural)
        self._wake()

    def _wake(self) -> None:
        for one in self._changed:
            one.set()

    async def handle(self, call: Call) -> Answer:
        """Answer one request that is not a watch, with the faults that are planned or drawn."""
        agent = call.headers.get("User-Agent", "")
        if self.crash is not None and self.crash.agent == agent and self.crash.reached.is_set():
            await asyncio.Event().wait()
        if self.trouble.latency_s:
            await asyncio.sleep(self._random.random() * self.trouble.latency_s)
        fault = self._fault(call)
        if fault is not None and not fault.done:
            return _refused(Refusal(fault.status, "Fault", "the fake server was asked to fail", fault.retry_after_s))
        try:
            answer = self._do(call)
        except Refusal as why:
            return _refused(why)
        if call.method != "GET":
            self.writes.append(f"{call.method} {call.path}")
            self._wake()
            await self._count(agent)
        if fault is not None:
            return _refused(Refusal(fault.status, "Fault", "done, but the answer was lost", fault.retry_after_s))
        return answer

    async def _count(self, agent: str) -> None:
        """Let the client whose crash is planned hang for ever once its last write is done."""
        if self.crash is not None and self.crash.agent == agent:
            self.crash.seen += 1
            if self.crash.seen >= self.crash.writes:
                self.crash.reached.set()
                await asyncio.Event().wait()

    def _fault(self, call: Call, method: str = "") -> ServerFault | None:
        method = method or call.method
        for one in self.planned:
            if one.times and one.method in ("", method) and one.path in call.path:
                one.times -= 1
                return one
        trouble, guarded = self.trouble, b'"resourceVersion"' in (call.data or b"")
        drawn = (
            (trouble.too_many, ServerFault(429, retry_after_s=1)), (trouble.failed, ServerFault(500)),
            (trouble.lost, ServerFault(500, done=True)), (trouble.conflict * guarded, ServerFault(409)),
        )  # fmt: skip
        if method != "WATCH":
            for share, fault in drawn:
                if share and self._random.random() < share:
                    return fault
        elif trouble.gone and self._random.random() < trouble.gone:
            return ServerFault(410)
        return None

    def _do(self, call: Call) -> Answer:
        if call.path == "/apis/policy":
            return _json({"versions": [{"version": one} for one in self.policy_versions]})
        if call.path == "/version":
            major, minor = self.release
            return _json({"major": str(major), "minor": str(minor)})
        if call.path == "/apis":
            return _json({"groups": self.store.groups()})
        target = self.store.target(call.path)
        self.requests[f"{call.method} {target.resource.plural}"] += 1
        verb = "list" if call.method == "GET" and target.name is None else _VERBS[call.method]
        self._allow(call, verb, target)
        body: Object = orjson.loads(call.data) if call.data else {}
        if target.part == "log":
            self.store.get(target)
            return Answer(200, {}, self.logs.get(f"{target.namespace}/{target.name}", "").encode())
        store = self.store
        acts: dict[tuple[str, str | None], Callable[[Target, Object], Object]] = {
            ("GET", None): lambda at, _: store.page(at, call.query) if at.name is None else store.get(at),
            ("GET", "status"): lambda at, _: store.get(at),
            ("POST", None): store.create, ("POST", "eviction"): store.evict, ("POST", "binding"): store.bind,
            ("PUT", None): store.replace, ("PUT", "status"): store.replace, ("DELETE", None): store.delete,
            ("PATCH", None): self._patch(call), ("PATCH", "status"): self._patch(call),
        }  # fmt: skip
        act = acts.get((call.method, target.part))
        if act is None:
            raise Refusal(405, "MethodNotAllowed", f"{call.method} of {target.part or target.resource.plural}")
        return _json(act(target, body), 201 if call.method == "POST" else 200)

    def _patch(self, call: Call) -> Callable[[Target, Object], Object]:
        content = call.headers.get("Content-Type", "")

        def unknown(target: Target, body: Object) -> Object:
            del target, body
            raise Refusal(415, "UnsupportedMediaType", f"the fake server does not know patches of type {content!r}")

        return {APPLY: self.store.apply, MERGE: self.store.merge}.get(content, unknown)

    def _allow(self, call: Call, verb: str, target: Target) -> None:
        """Refuse what the rules of a token do not allow, in Kubernetes' own words."""
        if self.users is None:
            return
        token = call.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.users:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        resource = target.resource
        name = f"{resource.plural}/{target.part}" if target.part else resource.plural
        for rule in self.users[token]:
            if (
                {verb, "*"} & set(rule["verbs"])
                and {resource.group, "*"} & set(rule["apiGroups"])
                and {name, "*"} & set(rule["resources"])
            ):
                return
        raise Refusal(403, "Forbidden", f'{name} is forbidden: User "{token}" cannot {verb} resource "{name}"')

    async def watch(self, call: Call) -> Answer | AsyncIterator[bytes]:
        """Answer a watch: with its lines, or with a refusal."""
        fault = self._fault(call, "WATCH")
        if fault is not None:
            return _refused(Refusal(fault.status, "Fault", "the fake server was asked to fail", fault.retry_after_s))
        try:
            target = self.store.target(call.path)
            self.requests[f"WATCH {target.resource.plural}"] += 1
            self._allow(call, "watch", target)
            self.store.since(target.resource, int(call.query.get("resourceVersion") or 0))
        except Refusal as why:
            return _refused(why)
        return self._lines(target, call.query)

    async def _lines(self, target: Target, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        version = int(query.get("resourceVersion") or 0)
        end = loop.time() + float(query.get("timeoutSeconds") or 300)
        spoilt = self._spoilt()
        news = asyncio.Event()
        self._changed.add(news)
        try:
            while loop.time() < end:
                news.clear()
                lines: Iterable[bytes] = ()
                if target.resource.plural not in self._muted and spoilt.get("silent") != 0:
                    version, lines = self._news(target, query, version)
                for line in lines:
                    for kind in spoilt:
                        spoilt[kind] -= 1
                    if spoilt.get("closed") == 0:
                        return
                    yield line
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(self.bookmark_s, max(0.0, end - loop.time()))):
                        await news.wait()
                        continue
                if target.resource.plural not in self._muted and spoilt.get("silent", 1) > 0:
                    version = max(version, self.store.version)
                    yield _event("BOOKMARK", {"kind": target.resource.kind,
                                              "metadata": {"resourceVersion": str(version)}})  # fmt: skip
        finally:
            self._changed.discard(news)

    def _spoilt(self) -> dict[str, int]:
        """Return after how many lines a watch is closed or falls silent, where it does."""
        shares = {"closed": self.trouble.closed, "silent": self.trouble.silent}
        return {
            kind: self._random.randrange(1, 20)
            for kind, share in shares.items()
            if share and self._random.random() < share
        }

    def _news(self, target: Target, query: Mapping[str, str], version: int) -> tuple[int, list[bytes]]:
        """Return the events since a version, as a watch with this selector sees them."""
        chosen = selector(target, query)
        try:
            events = list(self.store.since(target.resource, version))
        except Refusal as why:
            return version, [_event("ERROR", {"code": why.status, "reason": why.reason, "message": why.message})]
        lines = [line for one in events if (line := _watch_line(one, chosen)) is not None]
        return max([version, *(one.version for one in events)]), lines

    async def monitor_nodes(self, grace_s: float = 40.0) -> None:
        """Say that a node is not heard when its lease is not renewed, as kube-controller-manager does."""
        loop = asyncio.get_running_loop()
        renewed: dict[str, tuple[str, float]] = {}
        while True:
            await asyncio.sleep(1.0)
            for name, node in list(self.store.objects(NODES).items()):
                lease = self.store.objects(LEASES).get(f"{_LEASES}/{name}")
                stamp = "" if lease is None else lease["spec"].get("renewTime", "")
                if renewed.get(name, ("", 0.0))[0] != stamp or name not in renewed:
                    renewed[name] = (stamp, loop.time())
                conditions = (node.get("status") or {}).get("conditions") or ()
                ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
                if ready and loop.time() - renewed[name][1] > grace_s:
                    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
                    self.store.merge(Target(NODES, None, name, "status"), {"status": {"conditions": [unknown]}})
                    self._wake()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve real HTTP on loopback while the block runs; gives the address."""

        async def answer(request: web.Request) -> web.StreamResponse:
            call = Call(request.method, request.path, request.query, await request.read(), request.headers)
            if "watch" not in request.query:
                got = await self.handle(call)
                return web.Response(status=got.status, headers=got.headers, body=got.raw)
            lines = await self.watch(call)
            if isinstance(lines, Answer):
                return web.Response(status=lines.status, headers=lines.headers, body=lines.raw)
            response = web.StreamResponse()
            await response.prepare(request)
            async for line in lines:
                await response.write(line + b"\n")
            return response

        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


class InProcessClient(ApiClient):
    """An `ApiClient` whose requests reach a fake server by a call."""

    def __init__(self, server: FakeApiServer, access: Access, *, agent: str = "weft", **more: Any) -> None:
        """Speak to `server`."""
        super().__init__(access, agent=agent, **more)
        self._server = server
        self._user_agent = agent

    @override
    async def __aenter__(self) -> Self:
        return self

    @override
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    @override
    async def exchange(self, call: Call) -> Answer:
        # Every answer takes a turn of the loop, as every answer over a network does.
        await asyncio.sleep(0)
        return await self._server.handle(self._named(call))

    @override
    @contextlib.asynccontextmanager
    async def follow(self, call: Call, silence_s: float) -> AsyncIterator[Answer | AsyncIterator[bytes]]:
        found = await self._server.watch(self._named(call))
        yield found if isinstance(found, Answer) else _heard(found, silence_s)

    def _named(self, call: Call) -> Call:
        return call._replace(headers={**call.headers, "User-Agent": self._user_agent})


async def _heard(lines: AsyncIterator[bytes], silence_s: float) -> AsyncIterator[bytes]:
    """Pass lines on; nothing for too long ends with TimeoutError, as a socket's read does."""
    while True:
        async with asyncio.timeout(silence_s):
            try:
                line = await anext(lines)
            except StopAsyncIteration:
                return
        yield line


def _watch_line(event: StoredEvent, chosen: Callable[[Object], bool]) -> bytes | None:
    """Return the line of an event; an object that leaves the selection is sent as deleted."""
    was = event.old is not None and chosen(event.old)
    now = event.new is not None and chosen(event.new)
    some = event.new if event.new is not None else event.old
    if not was and not now:
        return None
    assert some is not None, "an event has an object"
    return _event("MODIFIED" if was and now else "ADDED" if now else "DELETED", some)


def _event(kind: str, item: Object) -> bytes:
    return orjson.dumps({"type": kind, "object": item})


def _json(document: Any, status: int = 200) -> Answer:
    return Answer(status, {"Content-Type": "application/json"}, orjson.dumps(document))


def _refused(why: Refusal) -> Answer:
    document = {"kind": "Status", "status": "Failure", "reason": why.reason, "message": why.message, "code": why.status}
    headers = {} if why.retry_after_s is None else {"Retry-After": str(why.retry_after_s)}
    return Answer(why.status, {"Content-Type": "application/json", **headers}, orjson.dumps(document))
