"""The console as one application: pages, what they ask for, and streams of what happens.

Pages are files of this package; what they show comes as JSON from the tables below. Every route is behind the guard.
What takes time is done in threads, so that a stream never waits for a plan.
"""

import asyncio
import json
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from weft.core.errors import FailedError, UsageError, WeftError
from weft.core.specfile import validate
from weft.engines.local.home import Home
from weft.specs import SiteSpec
from weft.training.run_tail import RunTail
from weft.web.console.access import ConsoleGuard
from weft.web.console.cluster_window import ClusterWindow
from weft.web.console.exposition import CONTENT_TYPE, exposed
from weft.web.console.fabric_maps import affected, path_shown, scenarios_of, shape_shown
from weft.web.console.interface import OPERATIONS, TITLE
from weft.web.console.run_files import NoSuchRunError, RunLibrary, event
from weft.web.console.what_if_answers import SpecFiles, WhatIfSpec, answered, choices
from weft.web.http.bodies import document_of
from weft.web.http.openapi import Operation, described

PAGES = ("/", "/run", "/what-if", "/fabric", "/cluster")
_LARGEST_BODY_BYTES = 1 << 16
_LONGEST_NUMBER = 10
_LOOK_S, _BEAT_S = 0.2, 10.0
_SENT = ("step", "loss", "grad_norm", "tokens", "seconds", "rank_seconds", "planes_out")
"""What a page draws of a step's line; digests of tensors stay where they are."""
_STATIC = files("weft.web.console") / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}

Answer = Callable[[Request], Awaitable[Any]]


class ConsoleApplication:
    """Answers the console's requests about the runs and files below some folders, and about a cluster."""

    def __init__(self, folders: Sequence[Path], home: Home | None = None) -> None:
        """Show what is below `folders`, and the cluster in `home`."""
        self._folders = tuple(folders)
        self._runs, self._files = RunLibrary(folders), SpecFiles(folders)
        self._cluster_window = None if home is None else ClusterWindow(home)

    def application(self, token: str, names: Sequence[str] = ()) -> ConsoleGuard:
        """Return the application behind its guard; `names` are host names besides localhost."""
        routes = [Route(page, _page, methods=["GET"]) for page in PAGES]
        routes += [Route("/static/{name:path}", _static, methods=["GET"])]
        routes += [Route(one.path, self._answering(one), methods=[one.method]) for one in OPERATIONS]
        handlers: dict[Any, Any] = {HTTPException: _refused}
        return ConsoleGuard(Starlette(routes=routes, exception_handlers=handlers), token, names)

    def _answering(self, operation: Operation) -> Answer:
        answer: Answer = getattr(self, f"_{operation.name}")

        async def answering(request: Request) -> Response:
            try:
                found = await answer(request)
            except NoSuchRunError as error:
                return _refusal(404, str(error))
            except FailedError as error:
                return _refusal(503, str(error))
            except WeftError as error:
                return _refusal(400, str(error))
            return found if isinstance(found, Response) else _json(found)

        return answering

    async def _document(self, request: Request) -> Any:
        del request
        return described(OPERATIONS, TITLE)

    async def _runs_listed(self, request: Request) -> Any:
        del request
        return {"runs": await run_in_threadpool(self._runs.listed)}

    async def _run(self, request: Request) -> Any:
        return await run_in_threadpool(self._runs.shown, request.path_params["run"])

    async def _run_predicted(self, request: Request) -> Any:
        def predicted() -> Any:
            site = self._files.site(request.query_params.get("site", ""))
            return self._runs.predicted(request.path_params["run"], site)

        return await run_in_threadpool(predicted)

    async def _run_live(self, request: Request) -> Any:
        record = await run_in_threadpool(self._runs.find, request.path_params["run"])
        return _stream(_followed(RunTail(record.folder), record.state))

    async def _choices(self, request: Request) -> Any:
        del request
        return await run_in_threadpool(choices, self._files)

    async def _what_if(self, request: Request) -> Any:
        asked = validate(await _table(request), WhatIfSpec, "the request")

        def answer() -> Any:
            try:
                return {"problem": None, **answered(self._files, asked)}
            except WeftError as error:
                # The request was right: that this job does not go on this site is the answer.
                return {"problem": str(error)}

        return await run_in_threadpool(answer)

    async def _fabric(self, request: Request) -> Any:
        name = request.query_params.get("site", "")

        def shown() -> Any:
            return {**shape_shown(self._site(name)), **scenarios_of(name, self._folders)}

        return await run_in_threadpool(shown)

    async def _fabric_affected(self, request: Request) -> Any:
        query = request.query_params
        return await run_in_threadpool(lambda: affected(self._site(query.get("site", "")), _parts(query)))

    async def _fabric_path(self, request: Request) -> Any:
        query = request.query_params

        def path() -> Any:
            site = self._site(query.get("site", ""))
            ends = _number(query, "src"), _number(query, "dst")
            return path_shown(site, *ends, query.get("ev") or "0", _parts(query))

        return await run_in_threadpool(path)

    def _site(self, name: str) -> SiteSpec:
        return self._files.site(name)

    async def _cluster(self, request: Request) -> Any:
        del request
        window = self._cluster_window
        return (
            {"up": False, "problem": "this console shows no cluster"}
            if window is None
            else (await run_in_threadpool(window.shown))
        )

    async def _job_cancel(self, request: Request) -> Any:
        return await self._change("v1", "jobs", request.path_params["job"], "cancel")

    async def _node_drain(self, request: Request) -> Any:
        return await self._change("v1", "nodes", request.path_params["node"], "drain", body={"by": "console"})

    async def _node_undrain(self, request: Request) -> Any:
        return await self._change("v1", "nodes", request.path_params["node"], "undrain", body={"by": "console"})

    async def _change(self, *path: str, body: Mapping[str, Any] | None = None) -> Any:
        window = self._cluster_window
        if window is None:
            raise UsageError("this console shows no cluster; start one with weft cluster up, then weft ui")
        return await run_in_threadpool(lambda: window.post(*path, body=body))

    async def _metrics(self, request: Request) -> Any:
        del request
        text = await run_in_threadpool(lambda: exposed(self._runs, self._cluster_window))
        return Response(text, media_type=CONTENT_TYPE)


def _parts(query: Mapping[str, str]) -> list[str]:
    """Return names of failed parts, written with commas between them."""
    return [part.strip() for part in query.get("down", "").split(",") if part.strip()]


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < _LONGEST_NUMBER):
        raise UsageError(f"{name} = {text[:40]!r}; write the number of a NIC")
    return int(text)


async def _followed(tail: RunTail, state: Callable[[], str]) -> AsyncIterator[bytes]:
    """Yield what is new in a run, for as long as somebody listens: all there is, then each line as it is written."""
    quiet_s, before = 0.0, ""
    yield b"retry: 1000\n\n"
    first = True
    while await asyncio.to_thread(tail.read):
        # The page asks for all that is there already as columns.
        pass
    while True:
        news = await asyncio.to_thread(tail.read)
        now = await asyncio.to_thread(state)
        if news.reset or first:
            yield event("reset", {"state": now})
        elif news:
            steps = [{key: line.get(key) for key in _SENT} for line in news.steps]
            yield event("lines", {"steps": steps, "evaluations": news.evaluations, "incidents": news.incidents})
        if now != before and not first:
            yield event("state", {"state": now})
        if not news and now == before:
            quiet_s += _LOOK_S
            if quiet_s >= _BEAT_S:
                yield b": still here\n\n"
                quiet_s = 0.0
        before, first = now, False
        await asyncio.sleep(_LOOK_S)


def _stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


async def _page(request: Request) -> Response:
    del request
    return Response((_STATIC / "index.html").read_bytes(), media_type="text/html")


async def _static(request: Request) -> Response:
    """Return a file of this package, found among those that are there."""
    name = request.path_params["name"]
    if name not in _assets():
        return _refusal(404, "there is no such file")
    content = (_STATIC / name).read_bytes()
    kind = _TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(content, media_type=kind)


def _assets() -> set[str]:
    own = {each.name for each in _STATIC.iterdir() if each.is_file()}
    return own | {f"vendor/{each.name}" for each in (_STATIC / "vendor").iterdir()}


async def _table(request: Request) -> Mapping[str, Any]:
    """Return a request's body as a JSON object of bounded size."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != "application/json":
        raise HTTPException(415, f"the body is {given or 'of no type'}; send application/json")
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > _LARGEST_BODY_BYTES:
            raise HTTPException(413, f"the body is larger than {_LARGEST_BODY_BYTES:,} bytes")
    return document_of(bytes(found))


def _json(document: Any) -> Response:
    return Response(json.dumps(document, allow_nan=False, separators=(",", ":")), media_type="application/json")


def _refusal(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status)


async def _refused(request: Request, error: HTTPException) -> Response:
    del request
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
