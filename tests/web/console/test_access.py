"""The console is closed without its token, to other sites' pages and under other names; nothing sent breaks it."""

import contextlib
from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance
from starlette.testclient import TestClient
from tests.web.console.conftest import TOKEN, incident, write_run

from weft.web.console.access import ConsoleGuard, cookie_name, host_of
from weft.web.console.application import PAGES, ConsoleApplication
from weft.web.console.interface import OPERATIONS, TITLE
from weft.web.http.openapi import described

EXAMPLES = 12
MARKUP = "<img src=x onerror=alert(1)>"
CHANGING = [one for one in OPERATIONS if one.method != "GET"]


def path_of(path: str) -> str:
    return path.replace("{run}", "tiny-gpt-1").replace("{job}", "job-1").replace("{node}", "slot-0")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
@pytest.mark.parametrize(
    "headers",
    [{}, {"cookie": f"{cookie_name(TOKEN)}=wrong"}, {"authorization": "Bearer wrong"}, {"cookie": "a=\x7f;;=,"}],
    ids=["nothing", "a wrong cookie", "a wrong bearer", "a broken cookie"],
)
def test_every_route_refuses_without_the_token(stranger: TestClient, operation: Any, headers: dict[str, str]):
    answer = stranger.request(operation.method, path_of(operation.path), headers=headers, json={})
    assert answer.status_code == 403
    assert "token" in answer.text


@pytest.mark.parametrize("path", [*PAGES, "/static/console.js", "/nowhere", "/api/nowhere", "/?token=wrong"])
def test_pages_files_and_what_is_not_there_are_closed_too(stranger: TestClient, path: str):
    assert stranger.get(path, follow_redirects=False).status_code == 403


@pytest.mark.parametrize("operation", CHANGING, ids=lambda one: one.name)
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9", "https://localhost:8000"])
def test_a_page_of_another_site_changes_nothing_though_the_browser_sends_the_cookie(
    client: TestClient, operation: Any, origin: str
):
    answer = client.request(operation.method, path_of(operation.path), headers={"origin": origin}, json={})
    assert answer.status_code == 403
    assert "another site" in answer.json()["error"]


def test_the_url_leaves_a_strict_cookie_and_takes_the_token_out_of_the_address(stranger: TestClient):
    answer = stranger.get("/what-if", params={"token": TOKEN, "job": "gpt-1t"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/what-if?job=gpt-1t")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert stranger.get("/what-if").status_code == 200


@pytest.mark.parametrize("path", ["//evil.example/a", "/\\evil.example", "///evil.example"])
def test_the_url_never_leads_to_another_site(path: str):
    scope = {"type": "http", "method": "GET", "path": path, "query_string": f"token={TOKEN}".encode(),
             "headers": [(b"host", b"127.0.0.1")]}  # fmt: skip
    answer = ConsoleGuard(_nothing, TOKEN)._refused(scope)
    assert answer is not None
    location = answer.headers["location"]
    assert location.startswith("/")
    assert not location.startswith(("//", "/\\"))


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody came so far")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200), ("localhost:1", 200), ("LOCALHOST", 200), ("[::1]:8000", 200), ("10.0.0.7", 200),
        ("evil.example", 403), ("127.0.0.1.evil.example:8000", 403), ("localhost.evil.example", 403), ("", 403),
    ],
)  # fmt: skip
def test_a_name_that_somebody_else_may_own_is_refused(client: TestClient, host: str, status: int):
    assert client.get("/api/runs", headers={"host": host}).status_code == status


@given(st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=40))
def test_any_host_header_is_read(header: str):
    assert isinstance(host_of(header), str)


@pytest.mark.parametrize("path", [*PAGES, "/static/console.js", "/api/runs", "/nowhere"])
def test_browsers_are_told_to_be_strict(client: TestClient, path: str):
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "name", ["../access.py", "..%2faccess.py", "vendor/../../__init__.py", "/etc/passwd", "vendor"]
)
def test_no_other_files_are_given_out(client: TestClient, name: str):
    assert client.get(f"/static/{name}").status_code in (404, 405)


def test_names_come_as_text_in_json_whatever_they_hold(runs: Any, client: TestClient):
    run = write_run(runs, MARKUP.replace("/", "_"), 3)
    run.append("incidents.jsonl", incident(1, 2, kind=MARKUP, seen=MARKUP))
    answer = client.get("/api/runs")
    assert answer.headers["content-type"] == "application/json"
    assert MARKUP in {each["run"] for each in answer.json()["runs"]}
    # Pages are files that hold nothing of what a run says.
    assert MARKUP not in client.get("/run", params={"run": MARKUP}).text


def test_no_script_makes_markup_of_text():
    from importlib.resources import files

    static = files("weft.web.console") / "static"
    for each in static.iterdir():
        if each.name.endswith(".js"):
            text = each.read_text()
            for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
                assert word not in text, (each.name, word)
        if each.name.endswith(".html"):
            assert "onclick" not in each.read_text()


def test_the_document_is_what_the_routes_are(client: TestClient):
    document = client.get("/api/openapi.json").json()
    assert document == described(OPERATIONS, TITLE)
    assert set(document["paths"]) == {one.path for one in OPERATIONS}


@pytest.mark.slow
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
def test_nothing_that_is_sent_makes_it_fail(runs: Any, mode: GenerationMode):
    """Requests made up from the document: no route fails; the token is put over whatever was made up for it."""
    app = ConsoleApplication([runs]).application(TOKEN)
    headers = {"authorization": f"Bearer {TOKEN}", "host": "127.0.0.1"}
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", app, headers=headers)
    seen: Counter[int] = Counter()
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()
        if operation.path.endswith("/live"):
            # A stream has no end to wait for.
            continue

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
        @given(operation.as_strategy(generation_mode=mode))
        def attack(case: Any) -> None:
            response = case.call(headers=headers)
            seen[response.status_code] += 1
            case.validate_response(response, excluded_checks=[ignored_auth, positive_data_acceptance])

        with contextlib.suppress(Unsatisfiable):
            attack()
    assert max(seen) < 500, seen
    assert sum(seen.values()) > 5 * len(OPERATIONS), seen
