"""A message that repeats is written a few times and then counted, and the log has a largest size."""

import logging
from pathlib import Path

import pytest

from weft.engines.local import daemon_log
from weft.engines.local.daemon_log import RepeatFilter


def record(text: str, name: str = "a") -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "f", 1, text, (), None)


def test_a_message_that_repeats_is_counted():
    now = [0.0]
    sieve = RepeatFilter(clock=lambda: now[0])
    assert sum(sieve.filter(record("full")) for _ in range(1000)) == 3
    assert sieve.filter(record("other"))
    assert sieve.filter(record("full", name="b"))
    now[0] = 61.0
    again = record("full")
    assert sieve.filter(again)
    assert again.getMessage() == "full (997 more like it since)"


def test_who_makes_up_messages_gets_no_memory_for_it():
    sieve = RepeatFilter()
    for number in range(5000):
        sieve.filter(record(f"message {number}"))
    assert len(sieve._seen) <= 256


def test_the_log_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(daemon_log, "_LARGEST_BYTES", 10_000)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    root = logging.getLogger("root of the test")
    root.propagate = False
    monkeypatch.setattr(logging, "basicConfig", lambda level, handlers: [root.addHandler(each) for each in handlers])
    daemon_log.write_to(tmp_path / "engine.log")
    for number in range(5000):
        root.warning(f"message {number} %s", "x" * 80)
    root.handlers[0].close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 30_000
    assert len(list(tmp_path.iterdir())) == 3
