"""The client of the API server: what is tried again, what is not, and what is said about a failure."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from weft.core.errors import FailedError, UsageError
from weft.engines.kubernetes.api.access import Access, Plugin
from weft.engines.kubernetes.api.api_client import Answer, ApiClient, ApiError, Call, _lines, explained
from weft.engines.kubernetes.api.resources import CONFIG_MAPS, PODS
from weft.testing.api_server import FakeApiServer
from weft.testing.virtual_time import run


class _Scripted(ApiClient):
    """A client whose answers are given: exceptions are raised, numbers are statuses."""

    def __init__(self, *answers: Any, access: Access | None = None, **more: Any) -> None:
        super().__init__(access or Access("http://server", "here"), **more)
        self.answers = list(answers)
        self.headers: list[dict[str, str]] = []

    @override
    async def exchange(self, call: Call) -> Answer:
        self.headers.append(dict(call.headers))
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, int):
            return Answer(answer, {}, b'{"reason": "R", "message": "M"}')
        return answer


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(status: int) -> None:
    async def life() -> None:
        client = _Scripted(status, status, Answer(200, {}, b'{"ok": 1}'))
        assert await client.request("GET", "/x") == {"ok": 1}
        assert client.sent == {"GET": 3}
        assert asyncio.get_running_loop().time() > 0.5

    run(life())


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422])
def test_what_will_not_pass_is_not_tried_again(status: int) -> None:
    async def life() -> None:
        client = _Scripted(status, 200)
        with pytest.raises(ApiError) as caught:
            await client.request("GET", "/x")
        error = caught.value
        assert (error.status, error.reason, error.message) == (status, "R", "M")
        assert (error.missing, error.conflict, error.gone, error.forbidden) == (
            status == 404, status == 409, status == 410, status == 403,
        )  # fmt: skip
        assert client.refused == (["GET /x"] if status == 403 else [])
        assert len(client.answers) == 1

    run(life())


@given(st.integers(1, 30))
def test_the_server_says_how_long_to_wait(after_s: int) -> None:
    async def life() -> None:
        client = _Scripted(Answer(429, {"Retry-After": str(after_s)}, b""), Answer(200, {}, b""))
        assert await client.request("GET", "/x") == {}
        waited = asyncio.get_running_loop().time()
        assert min(after_s, 20) <= waited <= 1.5 * min(after_s, 20) + 0.01

    run(life())


def test_an_answer_of_429_is_an_answer_for_who_is_not_patient() -> None:
    async def life() -> None:
        client = _Scripted(Answer(429, {"Retry-After": "7"}, b"not json"), 200)
        with pytest.raises(ApiError) as caught:
            await client.request("POST", "/x", patient=False)
        assert caught.value.retry_after_s == 7.0
        assert caught.value.message == "not json"

    run(life())


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"\xff"])
def test_a_refusal_that_is_no_document_is_still_one(body: bytes) -> None:
    async def life() -> None:
        with pytest.raises(ApiError, match="answered 404"):
            await _Scripted(Answer(404, {"Retry-After": "soon"}, body)).request("GET", "/x")

    run(life())


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "it does not answer in time"),
        (ConnectionResetError(), "it cannot be reached"),
        (aiohttp.ClientPayloadError(), "it cannot be reached"),
    ],
)
def test_a_server_that_does_not_answer_is_tried_again_and_then_named(error: Exception, words: str) -> None:
    async def life() -> None:
        with pytest.raises(FailedError, match=words) as caught:
            await _Scripted(error, error, error, tries=3).request("GET", "/x")
        assert "http://server of context 'here'" in str(caught.value)
        again = _Scripted(error, Answer(200, {}, b"{}"), tries=2)
        assert await again.request("GET", "/x") == {}

    run(life())


def test_a_certificate_that_is_not_trusted_is_the_users_to_mend() -> None:
    key: Any = type("Key", (), {"ssl": True, "host": "h", "port": 1, "is_ssl": True})()
    error = aiohttp.ClientConnectorCertificateError(key, ValueError("x"))

    async def life() -> None:
        with pytest.raises(UsageError, match="the certificate of http://server is not trusted"):
            await _Scripted(error, tries=1).request("GET", "/x")

    run(life())


def test_hooks_see_what_is_sent_and_what_was_done() -> None:
    seen: list[tuple[str, str, str]] = []

    def hook(name: str) -> Any:
        async def work(method: str, path: str) -> None:
            seen.append((name, method, path))

        return work

    async def life() -> None:
        server = FakeApiServer()
        async with server.client(before=hook("before"), after=hook("after")) as client:
            await client.create(CONFIG_MAPS, {"metadata": {"name": "c"}}, "default")
            async with client.stream(CONFIG_MAPS.path(), {"watch": "1"}, 5.0):
                pass

    run(life())
    path = "/api/v1/namespaces/default/configmaps"
    assert seen == [("before", "POST", path), ("after", "POST", path), ("before", "WATCH", "/api/v1/configmaps")]


def test_a_token_from_a_file_is_read_again_when_it_is_old(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")

    async def life() -> None:
        client = _Scripted(*[Answer(200, {}, b"")] * 3, 401, access=Access("http://s", "c", token_file=path))
        await client.request("GET", "/x")
        path.write_text("second")
        await client.request("GET", "/x")
        client._credential = None
        await client.request("GET", "/x")
        with pytest.raises(ApiError):
            await client.request("GET", "/x")
        assert [one["Authorization"] for one in client.headers[:3]] == ["Bearer first"] * 2 + ["Bearer second"]
        assert client._credential is None, "a token that is refused is asked for again"

    asyncio.run(life())


def test_a_plugin_that_fails_is_told_in_one_sentence() -> None:
    async def life() -> None:
        access = Access("http://s", "c", plugin=Plugin(("no-such-plugin",), (), "v1"))
        with pytest.raises(UsageError, match="the credential plugin 'no-such-plugin'"):
            await _Scripted(200, access=access).request("GET", "/x")

    asyncio.run(life())


def test_a_client_of_a_server_with_a_password_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def life() -> None:
        server = FakeApiServer()
        seen: list[str] = []

        async def handle(call: Call) -> Answer:
            seen.append(call.headers["Authorization"])
            return await FakeApiServer.handle(server, call)

        monkeypatch.setattr(server, "handle", handle)
        async with server.listening() as address, ApiClient(Access(address, "c", basic=("ada", "key"))) as client:
            assert await client.list(CONFIG_MAPS) == []
        assert seen == ["Basic YWRhOmtleQ=="]

    asyncio.run(life())


@pytest.mark.parametrize(
    ("status", "message", "words"),
    [
        (404, "the server could not find the requested resource", "weft cluster install"),
        (404, 'weftjobs "x" not found', "weft cluster install"),
        (404, 'pods "x" not found', "answered 404"),
        (403, "no", "a permission is missing: no"),
        (401, "no", "does not accept the credentials"),
        (500, "no", "answered 500"),
    ],
)
def test_a_refusal_means_something_for_the_user(status: int, message: str, words: str) -> None:
    assert words in str(explained(ApiError(status, "", message)))


@pytest.mark.parametrize("status", [404, 409, 403])
def test_a_deletion_of_what_has_gone_is_done(status: int) -> None:
    async def life() -> None:
        client = _Scripted(status)
        if status == 403:
            with pytest.raises(ApiError):
                await client.delete(PODS, "p", "default")
        else:
            assert not await client.delete(PODS, "p", "default", uid="u", grace_s=3)

    run(life())


@pytest.mark.parametrize("status", [403, 500])
def test_an_eviction_that_is_refused_otherwise_is_an_error(status: int) -> None:
    async def life() -> None:
        client = _Scripted(Answer(200, {}, b"{}"), status, tries=1)
        with pytest.raises(ApiError):
            await client.evict("default", "p", "")
        client.answers = [429]
        assert await client.evict("default", "p", "") == 10.0

    run(life())


@given(
    st.lists(st.binary(min_size=0, max_size=12).map(lambda raw: raw.replace(b"\n", b"x")), max_size=8),
    st.integers(1, 9),
)
def test_lines_come_whole_however_they_are_cut(lines: list[bytes], size: int) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    chunks = [whole[at : at + size] for at in range(0, len(whole), size)]

    class _Content:
        async def iter_any(self) -> Any:
            for chunk in chunks:
                yield chunk

    async def life() -> list[bytes]:
        content: Any = _Content()
        return [line async for line in _lines(content)]

    assert run(life()) == [line for line in lines if line]
