"""weft: rehearse a 131,072-GPU training run on your laptop, then run it.

`import weft` is light: each public name (the reports of the command line, and the parts for a training loop of one's
own) loads what it needs when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from weft.core.version import VERSION

if TYPE_CHECKING:
    from weft.api import compare, design, plan, simulate
    from weft.engines.supervisor import survive
    from weft.specs import JobSpec, load_job
    from weft.specs.job import PlanSpec
    from weft.training.mesh import Mesh
    from weft.training.optimizer import adamw, learning_rate
    from weft.training.ranks import Ranks
    from weft.training.run import Run, start
    from weft.training.spread import Spread, spread
    from weft.training.step import Step

__version__ = VERSION

_HOMES = {
    "compare": "weft.api",
    "design": "weft.api",
    "JobSpec": "weft.specs",
    "Mesh": "weft.training.mesh",
    "PlanSpec": "weft.specs.job",
    "Ranks": "weft.training.ranks",
    "Run": "weft.training.run",
    "Spread": "weft.training.spread",
    "Step": "weft.training.step",
    "adamw": "weft.training.optimizer",
    "learning_rate": "weft.training.optimizer",
    "load_job": "weft.specs",
    "spread": "weft.training.spread",
    "start": "weft.training.run",
    "plan": "weft.api",
    "simulate": "weft.api",
    "survive": "weft.engines.supervisor",
}

__all__ = [
    "JobSpec",
    "Mesh",
    "PlanSpec",
    "Ranks",
    "Run",
    "Spread",
    "Step",
    "__version__",
    "adamw",
    "compare",
    "design",
    "learning_rate",
    "load_job",
    "plan",
    "simulate",
    "spread",
    "start",
    "survive",
]


def __getattr__(name: str) -> Any:
    """Import a public part when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    part = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = part
    return part


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
