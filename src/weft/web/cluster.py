"""The cluster's HTTP interface: submit, look, cancel, drain. Thin: every answer is the engine's.

Everything but the document that describes it is closed without the token. Requests are read up to a limit and checked
by the same specs as files; what is wrong is answered with one sentence and status 400, and nothing is done.
"""

import asyncio
import hmac
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from weft.core.errors import UsageError, WeftError
from weft.core.spec import Spec
from weft.core.specfile import validate
from weft.engines.local import archive
from weft.engines.local.engine import LocalEngine, NotThereError
from weft.engines.local.home import Home
from weft.engines.local.supervised_loop import EngineLoop, disk_trouble
from weft.engines.local.views import array_view, job_detail, job_view, node_view, status_view, why_view
from weft.specs.submission import SubmissionSpec
from weft.web.http.bodies import document_of
from weft.web.http.openapi import Operation, Parameter, described

Handler = Callable[["ClusterInterface", Request], Awaitable[Any]]

LARGEST_BODY_BYTES = 4 * 2**20
LOG_BYTES = 2**18
LONGEST_WAIT_S = 20.0
NEWEST = 1000
_MOST_READING_BYTES = 64 * 2**20
_MOST_UPLOADS = 4
_LOOK_S = 0.1
_JSON, _BYTES = "application/json", "application/octet-stream"

_OBJECT: dict[str, Any] = {"type": "object"}
_JOB = {
    "type": "object", "required": ["id", "state", "kind"],
    "properties": {"id": {"type": "string"}, "state": {"type": "string"}, "kind": {"type": "string"}},
}  # fmt: skip
_JOBS = {"type": "object", "required": ["jobs"], "properties": {"jobs": {"type": "array", "items": _JOB}}}
_NODE = {"type": "object", "required": ["name", "state"], "properties": {"name": {"type": "string"}}}
_NAME = {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,79}$"}
_PATH_JOB = Parameter("job", "path", _NAME, "Name of a job, or of an array where a single job is not meant.")
_PATH_NODE = Parameter("node", "path", _NAME, "Name of a node.")


class ReasonSpec(Spec):
    """Why a node is drained or given back."""

    by: Annotated[str, Field(min_length=1, max_length=200)] = "operator"
    """Who asks."""
    reason: Annotated[str, Field(max_length=2000)] = ""


OPERATIONS = (
    Operation("GET", "/openapi.json", "document", "Describe this interface.", _OBJECT, open=True),
    Operation(
        "GET", "/v1/health", "health", "Say whether jobs go on: loop, last error, disk, connections.",
        {"type": "object", "required": ["state", "turned_s_ago"]},
    ),
    Operation("GET", "/v1/status", "status", "Show the cluster: nodes, teams, jobs by state, what happened.", _OBJECT),
    Operation(
        "GET", "/v1/jobs", "jobs", "List jobs, newest first.", _JOBS,
        (Parameter("state", "query", {"type": "string", "enum": ["open", "all"]}, "Not ended, or all."),),
    ),
    Operation("POST", "/v1/jobs", "submit", "Submit a job, or an array of jobs.", _JOBS, body=SubmissionSpec),
    Operation("POST", "/v1/check", "check", "Say whether a submission would be taken; nothing is made.", _OBJECT,
              body=SubmissionSpec),
    Operation("GET", "/v1/jobs/{job}", "job", "Show one job.", _JOB, (_PATH_JOB,), refusals=(404,)),
    Operation("POST", "/v1/jobs/{job}/cancel", "cancel", "Cancel a job or an array.", _JOBS, (_PATH_JOB,),
              refusals=(404,)),
    Operation("GET", "/v1/jobs/{job}/why", "why", "Say why a job waits.", _OBJECT, (_PATH_JOB,), refusals=(404,)),
    Operation("GET", "/v1/arrays/{job}", "array", "Compare the jobs of an array, best first.", _OBJECT, (_PATH_JOB,),
              refusals=(404,)),
    Operation(
        "GET", "/v1/jobs/{job}/log", "log", "Return output of a job.",
        {"type": "object", "required": ["text", "next", "state"]},
        (
            _PATH_JOB,
            Parameter("offset", "query", {"type": "integer", "minimum": 0, "maximum": 2**53}, "From which byte on."),
            Parameter("rank", "query", {"type": "integer", "minimum": 0, "maximum": 10**6}, "Of which rank."),
            Parameter("attempt", "query", {"type": "integer", "minimum": 1, "maximum": 10**6}, "Of which attempt."),
            Parameter("wait", "query", {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT_S},
                      "Seconds to wait for something new."),
        ),
        refusals=(404,),
    ),
    Operation("GET", "/v1/nodes", "nodes", "List the nodes.", {"type": "object", "required": ["nodes"]}),
    Operation("POST", "/v1/nodes/{node}/drain", "drain", "Cordon a node: nothing new starts.", _NODE, (_PATH_NODE,),
              body=ReasonSpec, refusals=(404,)),
    Operation("POST", "/v1/nodes/{node}/undrain", "undrain", "Return a node to service.", _NODE, (_PATH_NODE,),
              body=ReasonSpec, refusals=(404,)),
    Operation("POST", "/v1/snapshots", "keep", "Upload a working folder, as a tar archive.",
              {"type": "object", "required": ["snapshot"]}, archive=True),
)  # fmt: skip
"""Every route, in the order of the document."""


@cache
def _document() -> dict[str, Any]:
    """Return the document, made once: anybody may ask for it, as often as they like."""
    return described(OPERATIONS)


class ClusterInterface:
    """Answers requests about one engine."""

    def __init__(
        self, engine: LocalEngine, loop: EngineLoop, home: Home, nudge: Callable[[], None],
        connections: Callable[[], Mapping[str, int]] = dict,
    ) -> None:  # fmt: skip
        """Answer for `engine`, which `loop` turns; `nudge` is called when there is something new to decide."""
        self._engine, self._loop, self._home, self._nudge = engine, loop, home, nudge
        self._token, self._connections = home.token(), connections
        self._reading, self._uploads = 0, 0

    def application(self, rest: ASGIApp | None = None) -> Starlette:
        """Return the application; `rest` answers what is no route of this interface."""
        routes: list[BaseRoute] = [Route(one.path, self._guarded(one), methods=[one.method]) for one in OPERATIONS]
        routes += [] if rest is None else [Mount("/", app=rest)]
        handlers: dict[Any, Any] = {HTTPException: _refused}
        return Starlette(routes=routes, exception_handlers=handlers)

    def _guarded(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        """Return the route's function behind the token, with errors turned into answers."""
        answer: Callable[[Request], Awaitable[Any]] = getattr(self, operation.name)

        async def guarded(request: Request) -> Response:
            if not operation.open and not self._known(request):
                return _refusal(
                    401, "the token is missing or wrong; it lies in the file `token` of the cluster's folder"
                )
            try:
                _only(request.query_params, {one.name for one in operation.parameters if one.place == "query"})
                return JSONResponse(await answer(request))
            except NotThereError as error:
                return _refusal(404, str(error))
            except UsageError as error:
                return _refusal(400, str(error))
            except WeftError as error:
                return _refusal(400, str(error))
            except (OSError, sqlite3.Error) as error:
                return self._unstored(error)

        return guarded

    def _unstored(self, error: OSError | sqlite3.Error) -> Response:
        """Refuse what could not be written down; the loop goes back to what is."""
        trouble = disk_trouble(error)
        if trouble is None:
            raise error
        self._loop.stumble(error)
        self._nudge()
        status = 507 if "full" in trouble else 503
        return _refusal(status, f"{trouble}: nothing was done; try again when there is room")

    def _known(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode())

    async def document(self, request: Request) -> Any:
        """Describe this interface."""
        del request
        return _document()

    async def health(self, request: Request) -> Any:
        """Say whether jobs go on: when the loop last came round, what went wrong last, the disk, connections."""
        del request
        return {**self._loop.health(), **self._connections()}

    async def status(self, request: Request) -> Any:
        """Show the cluster."""
        return {**status_view(self._engine), "health": await self.health(request)}

    async def jobs(self, request: Request) -> Any:
        """List jobs."""
        wanted = request.query_params.get("state", "all")
        if wanted not in ("open", "all"):
            raise UsageError(f"state = {wanted!r}; write open or all")
        store = self._engine.memory.store
        found = store.newest(NEWEST) if wanted == "all" else list(reversed(store.open()))
        return {"jobs": [job_view(entry, self._engine.cluster.pool.nodes) for entry in found]}

    async def submit(self, request: Request) -> Any:
        """Submit a job or an array."""
        submission = validate(await self._table(request), SubmissionSpec, "the submission")
        found = self._engine.submit(submission)
        self._nudge()
        return {"jobs": [job_view(entry, self._engine.cluster.pool.nodes) for entry in found]}

    async def check(self, request: Request) -> Any:
        """Say whether a submission would be taken."""
        return {
            "jobs": len(self._engine.admitted(validate(await self._table(request), SubmissionSpec, "the submission")))
        }

    async def job(self, request: Request) -> Any:
        """Show one job."""
        return job_detail(self._engine, self._engine.find(request.path_params["job"]))

    async def cancel(self, request: Request) -> Any:
        """Cancel a job or an array."""
        found = self._engine.cancel(request.path_params["job"])
        self._nudge()
        return {"jobs": [job_view(entry, self._engine.cluster.pool.nodes) for entry in found]}

    async def why(self, request: Request) -> Any:
        """Say why a job waits."""
        return why_view(self._engine, self._engine.find(request.path_params["job"]))

    async def array(self, request: Request) -> Any:
        """Compare the jobs of an array."""
        found = self._engine.memory.store.of_array(request.path_params["job"])
        if not found:
            raise NotThereError(f"there is no array {request.path_params['job']!r}; weft jobs lists them")
        return array_view(found, self._engine.cluster.pool.nodes)

    async def log(self, request: Request) -> Any:
        """Return output of a job, waiting a little for something new where that is asked for."""
        name = request.path_params["job"]
        query = request.query_params
        entry = self._engine.find(name)
        offset, rank = _integer(query, "offset", 0, 2**53), _integer(query, "rank", 0, 10**6)
        attempt = _integer(query, "attempt", 0, 10**6, least=1) or entry.attempt
        left = _seconds(query)
        while True:
            text, following = self._engine.attempts.log(name, attempt, rank, offset, LOG_BYTES)
            entry = self._engine.find(name)
            over = entry.ended_ms is not None
            if text or over or left <= 0:
                more = bool(text) or not over
                return {"text": text, "next": max(offset, following), "state": str(entry.job.state),
                        "attempt": attempt, "newest_attempt": entry.attempt, "more": more}  # fmt: skip
            await asyncio.sleep(min(_LOOK_S, left))
            left -= _LOOK_S
            if attempt == 0:
                attempt = entry.attempt

    async def nodes(self, request: Request) -> Any:
        """List the nodes."""
        del request
        cluster = self._engine.cluster
        return {"nodes": [node_view(cluster, node) for node in cluster.pool.nodes]}

    async def drain(self, request: Request) -> Any:
        """Cordon a node: running work goes on, nothing new starts."""
        return await self._drain(request, back=False)

    async def undrain(self, request: Request) -> Any:
        """Return a node to service."""
        return await self._drain(request, back=True)

    async def _drain(self, request: Request, *, back: bool) -> Any:
        given = validate(await self._table(request), ReasonSpec, "the request")
        node = self._engine.drain(request.path_params["node"], back=back, by=given.by, reason=given.reason)
        self._nudge()
        return node_view(self._engine.cluster, node)

    async def keep(self, request: Request) -> Any:
        """Take in a working folder."""
        _typed(request, _BYTES)
        if self._uploads >= _MOST_UPLOADS:
            raise HTTPException(503, f"{_MOST_UPLOADS} working folders are being uploaded; try again in a moment")
        self._uploads += 1
        try:
            # Onto the disk as it comes: a hundred of these are no matter of memory.
            with tempfile.TemporaryFile(dir=self._home.snapshots) as packed:
                async for part in _parts(request, archive.MOST_PACKED_BYTES):
                    packed.write(part)
                return {"snapshot": await asyncio.to_thread(archive.keep, self._home.snapshots, packed)}
        finally:
            self._uploads -= 1

    async def _table(self, request: Request) -> Mapping[str, Any]:
        """Return a request's body as a JSON object."""
        _typed(request, _JSON)
        found = bytearray()
        try:
            async for part in _parts(request, LARGEST_BODY_BYTES):
                found += part
                self._reading += len(part)
                if self._reading > _MOST_READING_BYTES:
                    raise HTTPException(503, "too many large requests at once; try again in a moment")
            return document_of(bytes(found))
        finally:
            self._reading -= len(found)


def _typed(request: Request, content_type: str) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != content_type:
        raise HTTPException(415, f"the body is {given or 'of no type'}; send {content_type}")


async def _parts(request: Request, most: int) -> AsyncIterator[bytes]:
    """Yield a request's body in parts, up to a limit."""
    total = 0
    async for part in request.stream():
        total += len(part)
        if total > most:
            raise HTTPException(413, f"the body is larger than {most:,} bytes")
        yield part


def _only(query: Mapping[str, str], known: set[str]) -> None:
    strange = sorted(set(query) - known)
    if strange:
        raise UsageError(f"there is no parameter {strange[0]!r} here; there are: {', '.join(sorted(known)) or 'none'}")


def _integer(query: Mapping[str, str], name: str, default: int, most: int, *, least: int = 0) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and least <= int(text) <= most):
        raise UsageError(f"{name} = {text!r}; write a whole number from {least} to {most}")
    return int(text)


def _seconds(query: Mapping[str, str]) -> float:
    text = query.get("wait", "0")
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= LONGEST_WAIT_S:
        raise UsageError(f"wait = {text!r}; write seconds from 0 to {LONGEST_WAIT_S:g}")
    return found


def _refusal(status: int, text: str) -> JSONResponse:
    headers = {"www-authenticate": "Bearer"} if status == 401 else None  # noqa: PLR2004 - RFC 9110, 15.5.2
    return JSONResponse({"error": text}, status, headers)


async def _refused(request: Request, error: HTTPException) -> Response:
    del request
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
