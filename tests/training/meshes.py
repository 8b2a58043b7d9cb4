"""Meshes without process groups, for tests that need the arithmetic of a plan and no other rank."""

from typing import Any

from weft.specs.job import PlanSpec
from weft.training.parallel.mesh import Layout, Mesh

GROUPS = ("ends", "pp", "cp", "tp", "replicas", "ep", "expert_replicas")


def mesh_of(rank: int = 0, **plan: Any) -> Mesh:
    """Return the mesh of `rank` under `plan`, as if it were alone in every group."""
    return Mesh(Layout(PlanSpec(**plan)), rank, dict.fromkeys(GROUPS))
