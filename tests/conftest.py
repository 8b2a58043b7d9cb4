"""Settings that all tests share."""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# One deterministic set of examples in CI; no deadline, because machines are shared and noisy.
settings.register_profile("weft", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("weft"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "weft")

# Ranks import by name what they run, from processes of their own.
sys.path.insert(0, str(Path(__file__).parents[1]))
