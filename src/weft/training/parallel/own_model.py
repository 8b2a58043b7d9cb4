"""Anybody's own model in `weft train`: `--model package:build`, or the name of an entry point of group `weft.models`.

`build(job)` returns an `nn.Module` (see `OwnModule`), made on every rank from the same torch seed. Data parallelism,
sharding (FSDP2), recompute, exact gradient sums, checkpoints and recovery need nothing more. Tensor and pipeline
parallelism are the module's own: it names them in `parallel_axes` and applies them in `parallelize`.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from weft.core import plugins
from weft.core.errors import UsageError
from weft.specs.job import JobSpec, PlanSpec
from weft.training.parallel import pipeline
from weft.training.parallel.mesh import Mesh
from weft.training.parallel.parallel_model import OnMesh, ParallelModel, finish_stage, keep_hooked, low_precision

GROUP = "weft.models"
_OWN_AXES = ("tp", "pp")
_BUILT_IN_AXES = ("cp", "ep")

Build = Callable[[JobSpec], nn.Module]


class OwnStage(NamedTuple):
    """One pipeline stage of an own model, as its `parallelize` returns it."""

    module: nn.Module
    """What it computes; its parameters have the names that they have in the whole model."""
    entering: Tensor
    """What it gets for one micro-batch: a tensor on the device "meta", with gradients except for tokens."""
    leaving: Tensor
    """What it gives for one micro-batch, likewise."""


class OwnModule(Protocol):
    """What a module may offer besides `forward(tokens) -> outputs`; everything here may be left out.

    Tokens are int64 `[micro, length]`. Whatever a module keeps in an `nn.ModuleList` or `nn.ModuleDict` directly below
    itself are its layers: they are sharded and recomputed one by one.
    """

    parallel_axes: Sequence[str]
    """The axes that `parallelize` applies: "tp", "pp", or both. None where it is left out."""
    flops_per_token: float
    """Operations for one token, both passes, for MFU; six for each parameter where it is left out."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss; cross-entropy over logits `[micro, length, vocabulary]` where it is left out."""
        ...

    def parallelize(self, mesh: Mesh) -> Sequence[OwnStage] | None:
        """Split the module over `mesh` (`mesh.devices["tp"]` is torch's mesh of the tensor axis).

        Called once, before the optimizer is made, where the plan has one of `parallel_axes`. Under pipelines it returns
        this rank's stages, one for each of `pipeline.stage_numbers(mesh.plan, mesh.place.pp)`; otherwise it changes the
        module in place. A parameter that stays whole must get the same gradient on every rank of the tensor axis.
        """
        ...


def find_build(reference: str) -> Build:
    """Return the function called `reference`: "package.module:function", or an entry point's name."""
    if ":" not in reference:
        found = plugins.entry_point(GROUP, reference)
        if found is None:
            known = ", ".join(plugins.names(GROUP)) or "none"
            raise UsageError(f"no model is called {reference!r} (installed: {known}); write package:function")
    else:
        module, _, name = reference.partition(":")
        here = str(Path.cwd())
        if here not in sys.path:
            # A program started by its path does not look for modules where it was started; people's models are there.
            sys.path.append(here)
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise UsageError(f"the model {reference!r} cannot be found: {error}; write package:function") from None
    if not callable(found):
        raise UsageError(f"the model {reference!r} is no function; it must take the job and return an nn.Module")
    return cast("Build", found)


def check_axes(reference: str, plan: PlanSpec, offered: Sequence[str]) -> None:
    """Refuse a plan that asks an own model for an axis that it does not have."""
    for axis in (*_OWN_AXES, *_BUILT_IN_AXES):
        size = getattr(plan, axis)
        if size > 1 and axis in _BUILT_IN_AXES:
            raise UsageError(f"the plan has {axis} = {size}, which only the built-in model has; write {axis} = 1")
        if size > 1 and axis not in offered:
            raise UsageError(
                f"the plan has {axis} = {size}, but the model {reference!r} does not offer {axis}; write {axis} = 1, or"
                f" apply it in the model's parallelize and name it in its parallel_axes"
            )


@dataclass
class OwnModel(ParallelModel):
    """Somebody's own module, or this rank's stages of it."""

    whole: nn.Module = field(default_factory=nn.Module)
    """The module as it was built."""
    shapes: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """What enters and leaves each stage; none where there is no pipeline."""

    @classmethod
    def replicated(cls, run: OnMesh, module: nn.Module) -> "OwnModel":
        """Return `module` as it is, the same on every data-parallel rank."""
        return cls(run.job, run.mesh, run.device, [module], (0,), whole=module)

    @override
    def loss_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        own = getattr(self.whole, "loss", None)
        if own is not None:
            return own(outputs, targets)
        return functional.cross_entropy(outputs.float().flatten(0, -2), targets.flatten())

    @override
    def examples(self, order: int) -> tuple[Tensor, Tensor]:
        return self.shapes[order]

    @override
    def buffers(self) -> dict[str, Tensor]:
        return {name: one for stage in self.stages for name, one in stage.named_buffers()}

    @override
    def flops_per_token(self) -> float | None:
        return getattr(self.whole, "flops_per_token", None)


def parallelize_own(run: OnMesh, reference: str) -> OwnModel:
    """Return the model called `reference`, split over the run's mesh; all ranks call it together."""
    build, mesh, plan = find_build(reference), run.mesh, run.mesh.plan
    # Every rank draws the same weights; what is split is cut from equal copies.
    torch.manual_seed(run.job.seed)
    module = build(run.job)
    if not isinstance(module, nn.Module):
        raise UsageError(f"the model {reference!r} gave a {type(module).__name__}; it must return an nn.Module")
    module = module.to(run.device)
    offered: Sequence[str] = getattr(module, "parallel_axes", ())
    check_axes(reference, plan, offered)
    split = getattr(module, "parallelize", None)
    asked = [axis for axis in offered if getattr(plan, axis) > 1]
    if asked and split is None:
        raise UsageError(f"the model {reference!r} names {asked[0]} in parallel_axes but has no parallelize")
    stages: Sequence[OwnStage] | None = split(mesh) if split is not None and asked else None
    numbers = pipeline.stage_numbers(plan, mesh.place.pp)
    if plan.pp > 1 and (stages is None or len(stages) != len(numbers)):
        given = 0 if stages is None else len(stages)
        raise UsageError(
            f"the model {reference!r} gave {given} pipeline stages for rank {mesh.rank}; schedule {plan.schedule!r}"
            f" needs {len(numbers)}"
        )
    modules = [module] if stages is None else [stage.module for stage in stages]
    for stage in modules:
        finish_stage(stage, mesh, partial(_run_stage, mesh, run.device))
    shapes = [] if stages is None else [(stage.entering, stage.leaving) for stage in stages]
    return OwnModel(run.job, mesh, run.device, modules, numbers, whole=module, shapes=shapes)


def _run_stage(mesh: Mesh, device: torch.device, forward: Callable[..., Tensor], inputs: Tensor) -> Tensor:
    """Run a stage in the plan's precision."""
    low = low_precision(mesh)
    with torch.autocast(device.type, dtype=low or torch.bfloat16, enabled=low is not None):
        return keep_hooked(forward(inputs), mesh)
