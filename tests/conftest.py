"""Settings that all tests share."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# One deterministic set of examples in CI; no deadline, because machines are shared and noisy.
settings.register_profile("weft", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("weft"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "weft")

# Ranks import by name what they run, from processes of their own.
sys.path.insert(0, str(Path(__file__).parents[1]))

LONG = (
    "cli/test_hostile_files.py", "engines/kubernetes/test_crash_schedules.py", "engines/supervisor/hosts/test_gang.py",
    "engines/supervisor/test_in_step.py",
)  # fmt: skip
"""Files whose slow tests take many minutes together: `make test-long` runs them, CI has no time for them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests of `LONG` as long."""
    for item in items:
        if item.path.as_posix().endswith(LONG) and item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True)
def no_group_stays() -> Iterator[None]:
    """Fail the test that leaves a default process group behind, not whichever comes after it."""
    yield
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()
        pytest.fail("a default process group was left behind")
