"""weft: rehearse a 131,072-GPU training run on your laptop, then run it.

`import weft` is light: each public name (the reports of the command line, and the parts for a training loop of one's
own) loads what it needs when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from weft.core.version import VERSION

if TYPE_CHECKING:
    from weft.api import compare, design, diagnose, explain, plan, rehearse, replay, scale, simulate, submit
    from weft.engines.supervisor import survive
    from weft.specs import JobSpec, load_job
    from weft.specs.job import PlanSpec
    from weft.training.launch.ranks import Ranks
    from weft.training.model.optimizer import adamw, learning_rate
    from weft.training.parallel.apply import ParallelDecoder as Spread
    from weft.training.parallel.apply import parallelize as spread
    from weft.training.parallel.mesh import Mesh
    from weft.training.session import Session as Run
    from weft.training.session import start
    from weft.training.step import Step

__version__ = VERSION

# Where a public name lives; after a colon its name there, where it differs.
_HOMES = {
    "compare": "weft.api",
    "design": "weft.api",
    "diagnose": "weft.api",
    "explain": "weft.api",
    "JobSpec": "weft.specs",
    "Mesh": "weft.training.parallel.mesh",
    "PlanSpec": "weft.specs.job",
    "Ranks": "weft.training.launch.ranks",
    "Run": "weft.training.session:Session",
    "Spread": "weft.training.parallel.apply:ParallelDecoder",
    "Step": "weft.training.step",
    "adamw": "weft.training.model.optimizer",
    "learning_rate": "weft.training.model.optimizer",
    "load_job": "weft.specs",
    "spread": "weft.training.parallel.apply:parallelize",
    "start": "weft.training.session",
    "plan": "weft.api",
    "rehearse": "weft.api",
    "replay": "weft.api",
    "scale": "weft.api",
    "simulate": "weft.api",
    "submit": "weft.api",
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
    "diagnose",
    "explain",
    "learning_rate",
    "load_job",
    "plan",
    "rehearse",
    "replay",
    "scale",
    "simulate",
    "spread",
    "start",
    "submit",
    "survive",
]


def __getattr__(name: str) -> Any:
    """Import a public part when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    module, _, inside = _HOMES[name].partition(":")
    part = getattr(importlib.import_module(module), inside or name)
    globals()[name] = part
    return part


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
