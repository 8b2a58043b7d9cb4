"""Ranks find the functions that they run by their module's name."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _rank_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
