"""A process that is held to some processors counts those alone."""

import os

import pytest

from weft.core.processors import processors


def test_a_process_held_to_one_processor_has_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert processors() == 1


def test_elsewhere_all_processors_count(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert processors() == 6
