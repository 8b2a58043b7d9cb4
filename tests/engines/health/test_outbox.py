"""Nothing is lost on the way to a server that fails, and nothing is sent twice that it has taken."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines.health.http_receiver import receiving

from weft.core.errors import UsageError
from weft.engines.health.outbox import WebhookOutbox


@settings(max_examples=25, deadline=None)
@given(
    statuses=st.lists(st.sampled_from([0, 408, 429, 500, 502, 503]), max_size=6),
    count=st.integers(1, 4),
    crash=st.booleans(),
)
def test_whatever_the_server_does_every_document_arrives_once_and_in_order(
    statuses: list[int], count: int, crash: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("outbox")
    with receiving() as server:
        server.statuses = list(statuses)
        outbox = WebhookOutbox(folder, server.url)
        for number in range(count):
            outbox.put({"number": number})
        now_s = 0.0
        for _ in range(len(statuses) + 1):
            outbox.flush(now_s)
            if crash:
                outbox = WebhookOutbox(folder, server.url)
            now_s += 301.0
        assert [each["number"] for each in server.taken] == list(range(count))
        assert outbox.waiting == []
        assert outbox.flush(now_s) == []


def test_pauses_grow_and_a_success_ends_them(tmp_path: Path) -> None:
    with receiving() as server:
        server.statuses = [503, 503, 503]
        outbox = WebhookOutbox(tmp_path, server.url)
        outbox.put({})
        tried = [
            at
            for at in range(20)
            if (before := len(server.seen)) is not None and outbox.flush(at) is not None and len(server.seen) > before
        ]
        assert tried == [0, 1, 3, 7]
        assert outbox.waiting == []


def test_what_the_server_does_not_want_is_kept_and_holds_nobody_up(tmp_path: Path) -> None:
    with receiving() as server:
        server.statuses = [400]
        outbox = WebhookOutbox(tmp_path, server.url)
        outbox.put({"n": 1})
        outbox.put({"n": 2})
        outbox.flush(0)
        assert [each["n"] for each in server.taken] == [2]
        assert len(list((tmp_path / "refused").iterdir())) == 1
        again = WebhookOutbox(tmp_path, server.url)
        again.put({"n": 3})
        assert again.waiting[0].name not in {path.name for path in (tmp_path / "refused").iterdir()}


def test_a_document_that_is_sent_twice_has_the_same_key(tmp_path: Path) -> None:
    with receiving() as server:
        server.statuses = [0]
        outbox = WebhookOutbox(tmp_path, server.url, {"Authorization": "Bearer x"})
        outbox.put({})
        outbox.flush(0)
        outbox.flush(400)
        (_, _, first), (_, _, second) = server.seen
        assert first["idempotency-key"] == second["idempotency-key"]
        assert first["authorization"] == "Bearer x"


def test_a_server_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    outbox = WebhookOutbox(tmp_path, "http://127.0.0.1:1/")
    outbox.put({})
    assert outbox.flush(0) == []
    assert len(outbox.waiting) == 1


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="http://"):
        WebhookOutbox(tmp_path, "file:///etc/passwd")
