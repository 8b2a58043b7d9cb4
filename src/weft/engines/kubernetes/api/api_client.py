"""A thin asynchronous client of the API server: what controllers need, and nothing that hides what was sent.

Every write of ours can be sent twice without harm: objects have names made from what they are for, deletions name the
uid they mean, changes name the version they saw. So a request whose answer got lost is simply sent again; 429 and 5xx
are waited out as the server asks, up to a limit. `reflector` builds on this; decisions live elsewhere.
"""

import asyncio
import base64
import contextlib
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohttp
import orjson

from weft.core.errors import FailedError, UsageError
from weft.engines.kubernetes.api.access import Access, Credential
from weft.engines.kubernetes.api.connector import Connector
from weft.engines.kubernetes.api.resources import BUDGETS, OLD_BUDGETS, OURS, PODS, Resource

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
JSON = "application/json"
_TRIES = 8
_LONGEST_WAIT_S = 20.0
_WAIT_S = 0.2
_AGAIN = frozenset({429, 500, 502, 503, 504})
_MANY = 429
_GONE = 410
_CONFLICT = 409
_MISSING = 404
_FORBIDDEN = 403
_UNAUTHORISED = 401
_FAILED = 400
_PAGE = 500
_TIMEOUT_S = 60.0

Hook = Callable[[str, str], Awaitable[None]]


class Call(NamedTuple):
    """One request as it is sent."""

    method: str
    path: str
    query: Mapping[str, str]
    data: bytes | None
    headers: Mapping[str, str]


class Answer(NamedTuple):
    """What a server answers."""

    status: int
    headers: Mapping[str, str]
    raw: bytes


class ApiError(FailedError):
    """The server said no; carries its status, its reason and how long it wants us to wait."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        """Describe one refusal."""
        super().__init__(f"the API server answered {status} ({reason or 'no reason'}): {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def conflict(self) -> bool:
        """Return whether the object was changed, made or bound by somebody else."""
        return self.status == _CONFLICT

    @property
    def missing(self) -> bool:
        """Return whether there is no such object."""
        return self.status == _MISSING

    @property
    def gone(self) -> bool:
        """Return whether the version asked for is too old."""
        return self.status == _GONE

    @property
    def forbidden(self) -> bool:
        """Return whether a permission is missing."""
        return self.status == _FORBIDDEN


def explained(error: ApiError) -> Exception:
    """Return what a refusal means for the user, where it means that something has to be put right first."""
    unknown = ("page not found", "could not find the requested resource", *(one.plural for one in OURS))
    if error.missing and any(words in error.message for words in unknown):
        return UsageError("the cluster does not know weft's kinds; an administrator runs: weft cluster install")
    if error.forbidden:
        return UsageError(f"a permission is missing: {error.message}")
    if error.status == _UNAUTHORISED:
        return UsageError("the API server does not accept the credentials of this context")
    return error


@contextlib.asynccontextmanager
async def explaining() -> AsyncIterator[None]:
    """Turn refusals into sentences for the user."""
    try:
        yield
    except ApiError as error:
        raise explained(error) from None


class ApiClient:
    """Requests to one API server, at most `limit` at once."""

    def __init__(
        self, access: Access, *, agent: str = "weft", limit: int = 64, tries: int = _TRIES,
        before: Hook | None = None, after: Hook | None = None,
    ) -> None:  # fmt: skip
        """Prepare; `before` and `after` see the method and path of every request that is sent."""
        self.access = access
        self.sent: dict[str, int] = {}
        self.refused: list[str] = []
        self.timeout_s = _TIMEOUT_S
        self._agent = agent
        self._tries = tries
        self._limit = limit
        self._before, self._after = before, after
        self._session: aiohttp.ClientSession | None = None
        self._credential: Credential | None = None
        self._budgets: Resource | None = None

    async def __aenter__(self) -> Self:
        """Open the connections."""
        # Watches stay open for minutes; they must not use up the places of ordinary requests.
        connector = Connector(limit=self._limit + 16, ssl=self.access.tls or True)
        headers = {"User-Agent": self._agent}
        if self.access.basic is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(":".join(self.access.basic).encode()).decode()
        self._session = aiohttp.ClientSession(connector=connector, headers=headers, auto_decompress=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close them."""
        assert self._session is not None
        await self._session.close()

    async def _headers(self) -> dict[str, str]:
        now = datetime.now(UTC)
        if self._credential is None or not self._credential.fresh(now):
            # A plugin is a program that may take seconds; requests in flight go on meanwhile.
            slow = self.access.plugin is not None or self.access.token_file is not None
            arguments = (now, dict(os.environ))
            self._credential = (
                await asyncio.to_thread(self.access.credential, *arguments)
                if slow
                else self.access.credential(*arguments)
            )
        token = self._credential.token
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None,
        content: str = JSON, patient: bool = True,
    ) -> dict[str, Any]:  # fmt: skip
        """Send one request and return the answer; not `patient`: an answer of 429 is an answer."""
        data = None if body is None else orjson.dumps(body)
        wait_s = _WAIT_S
        for last in (*([False] * (self._tries - 1)), True):
            try:
                return await self._once(method, path, query or {}, data, content)
            except ApiError as error:
                if last or error.status not in _AGAIN or (error.status == _MANY and not patient):
                    raise
                pause = wait_s if error.retry_after_s is None else error.retry_after_s
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                if last:
                    raise self._unreachable(error) from None
                pause = wait_s
            # Some more at random, so that those who were refused together do not come back together.
            await asyncio.sleep(min(_LONGEST_WAIT_S, pause) * (1 + 0.5 * random.random()))  # noqa: S311
            wait_s = min(_LONGEST_WAIT_S, wait_s * 2)
        raise AssertionError("the last try returns or raises")

    def _unreachable(self, error: BaseException) -> Exception:
        server = self.access.server
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
            return UsageError(f"context {self.access.context!r}: the certificate of {server} is not trusted")
        why = "it does not answer in time" if isinstance(error, TimeoutError) else "it cannot be reached"
        return FailedError(f"the API server {server} of context {self.access.context!r} failed: {why}")

    async def _once(
        self, method: str, path: str, query: Mapping[str, str], data: bytes | None, content: str
    ) -> dict[str, Any]:
        if self._before is not None:
            await self._before(method, path)
        self.sent[method] = self.sent.get(method, 0) + 1
        headers = await self._headers()
        if data is not None:
            headers["Content-Type"] = content
        call = Call(method, path, query, data, headers)
        answer = await self.exchange(call)
        if answer.status >= _FAILED:
            raise self._refusal(call, answer)
        if self._after is not None:
            await self._after(method, path)
        return orjson.loads(answer.raw) if answer.raw else {}

    async def exchange(self, call: Call) -> Answer:
        """Send a request over the network and return what came back; a fake server overrides this and `follow`."""
        assert self._session is not None, "a client is used inside `async with`"
        async with self._session.request(
            call.method, self.access.server + call.path, params=call.query, data=call.data, headers=call.headers,
            timeout=aiohttp.ClientTimeout(total=self.timeout_s), server_hostname=self.access.server_name,
        ) as response:  # fmt: skip
            return Answer(response.status, response.headers, await response.read())

    @contextlib.asynccontextmanager
    async def follow(self, call: Call, silence_s: float) -> AsyncGenerator[Answer | AsyncIterator[bytes], None]:
        """Open a watch: gives its lines, or the answer of a server that refuses it."""
        assert self._session is not None, "a client is used inside `async with`"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30.0, sock_read=silence_s)
        async with self._session.get(
            self.access.server + call.path, params=call.query, headers=call.headers, timeout=timeout,
            server_hostname=self.access.server_name,
        ) as response:  # fmt: skip
            if response.status >= _FAILED:
                yield Answer(response.status, response.headers, await response.read())
            else:
                yield _lines(response.content)

    def _refusal(self, call: Call, answer: Answer) -> ApiError:
        if answer.status == _UNAUTHORISED:
            self._credential = None
        if answer.status == _FORBIDDEN:
            self.refused.append(f"{call.method} {call.path}")
        try:
            document = orjson.loads(answer.raw)
            reason, message = document.get("reason") or "", document.get("message") or ""
        except (orjson.JSONDecodeError, AttributeError):
            reason, message = "", answer.raw[:200].decode(errors="replace")
        after = answer.headers.get("Retry-After", "")
        return ApiError(answer.status, reason, message, float(after) if after.isdigit() else None)

    async def text(self, path: str) -> str:
        """Return what the server says as text, such as its metrics or the log of a pod."""
        call = Call("GET", path, {}, None, await self._headers())
        answer = await self.exchange(call)
        if answer.status >= _FAILED:
            raise self._refusal(call, answer)
        return answer.raw.decode(errors="replace")

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        """Return one object."""
        return await self.request("GET", resource.path(namespace, name))

    async def find(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """Return one object, or nothing where there is none."""
        try:
            return await self.get(resource, name, namespace)
        except ApiError as error:
            if error.missing:
                return None
            raise

    async def pages(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> AsyncGenerator[tuple[list[dict[str, Any]], str], None]:
        """Yield what exists, some hundred objects at a time, each time with the version of the whole list."""
        query = {"limit": str(_PAGE)}
        if labels:
            query["labelSelector"] = labels
        if fields:
            query["fieldSelector"] = fields
        while True:
            answer = await self.request("GET", resource.path(namespace), query=query)
            yield answer.get("items") or [], answer["metadata"]["resourceVersion"]
            more = answer["metadata"].get("continue")
            if not more:
                return
            query["continue"] = more

    async def list(self, resource: Resource, namespace: str | None = None, *, labels: str = "") -> list[dict[str, Any]]:
        """Return everything that exists."""
        return [item async for page, _ in self.pages(resource, namespace, labels=labels) for item in page]

    async def create(self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None) -> dict[str, Any]:
        """Make an object."""
        return await self.request("POST", resource.path(namespace), body=body)

    async def apply(
        self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None, *, owner: str = "weft",
        part: str | None = None, force: bool = True,
    ) -> dict[str, Any]:  # fmt: skip
        """Make an object be as `body` says, in the fields that it names (server-side apply)."""
        query = {"fieldManager": owner, "force": "true" if force else "false"}
        path = resource.path(namespace, body["metadata"]["name"], part)
        return await self.request("PATCH", path, query=query, body=body, content=APPLY)

    async def patch(
        self, resource: Resource, name: str, body: Mapping[str, Any], namespace: str | None = None, *,
        part: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Change some fields; with metadata.resourceVersion in `body` only if nobody else has."""
        return await self.request("PATCH", resource.path(namespace, name, part), body=body, content=MERGE)

    async def replace(
        self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None, *, part: str | None = None
    ) -> dict[str, Any]:
        """Replace an object, if it still has the version that `body` names."""
        return await self.request("PUT", resource.path(namespace, body["metadata"]["name"], part), body=body)

    async def delete(
        self, resource: Resource, name: str, namespace: str | None = None, *, uid: str | None = None,
        grace_s: int | None = None,
    ) -> bool:  # fmt: skip
        """Remove an object, the one with `uid` and no other; returns whether it was there."""
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self.request("DELETE", resource.path(namespace, name), body=options)
        except ApiError as error:
            if error.missing or error.conflict:
                return False
            raise
        return True

    async def evict(self, namespace: str, pod: str, uid: str, grace_s: int | None = None) -> float | None:
        """Ask to evict a pod; returns nothing when it goes, else the seconds after which to ask again (a budget)."""
        version = (await self.budgets()).api_version
        options: dict[str, Any] = {"preconditions": {"uid": uid}} if uid else {}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        body = {"apiVersion": version, "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace},
                "deleteOptions": options}  # fmt: skip
        try:
            await self.request("POST", PODS.path(namespace, pod, "eviction"), body=body, patient=False)
        except ApiError as error:
            if error.missing or error.conflict:
                return None
            if error.status == _MANY:
                return error.retry_after_s or 10.0
            raise
        return None

    async def budgets(self) -> Resource:
        """Return the kind of disruption budgets that this server offers."""
        if self._budgets is None:
            offered = await self.request("GET", "/apis/policy")
            versions = {one["version"] for one in offered.get("versions") or []}
            self._budgets = BUDGETS if "v1" in versions else OLD_BUDGETS
        return self._budgets

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch and give its lines; a stream that says nothing for `silence_s` ends with TimeoutError."""
        if self._before is not None:
            await self._before("WATCH", path)
        self.sent["WATCH"] = self.sent.get("WATCH", 0) + 1
        call = Call("GET", path, query, None, await self._headers())
        async with self.follow(call, silence_s) as answer:
            if isinstance(answer, Answer):
                raise self._refusal(call, answer)
            yield answer


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield whole lines of any length: an object of ours may be larger than any reader's buffer."""
    rest = b""
    async for chunk in content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else (rest + chunk,)
        for line in whole:
            if line:
                yield line
