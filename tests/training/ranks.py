"""Jobs for tests, and functions that ranks run by name."""

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from weft.core.errors import UsageError
from weft.specs import JobSpec
from weft.specs.job import PlanSpec
from weft.training.launch.rank_place import Reporter
from weft.training.launch.ranks import Ranks
from weft.training.parallel.mesh import Layout, Mesh
from weft.training.parallel.tensor_parallel import cut_loss, own_words
from weft.training.session import Session
from weft.training.step import Step
from weft.training.train import train

MIXTURE = {"experts": {"count": 4, "top_k": 2, "ffn": 32}}


def corpus_in(folder: Path) -> Path:
    """Write a small text and return where it is."""
    path = folder / "text"
    path.mkdir(exist_ok=True)
    words = ["warp", "weft", "thread", "loom", "shuttle", "cloth", "yarn", "heddle"]
    lines = [" ".join(words[(row * row + column * 3) % 8] for column in range(9)) for row in range(1500)]
    (path / "text.txt").write_text("\n".join(lines))
    return path


def job_of(folder: Path, plan: dict[str, Any] | None = None, **changes: Any) -> JobSpec:
    """Return a tiny job; `changes` replace whole tables."""
    table: dict[str, Any] = {
        "name": "toy",
        "steps": 5,
        "model": {"layers": 4, "width": 32, "heads": 4, "kv_heads": 2, "ffn": 64, **changes.pop("model", {})},
        "data": {"corpus": str(corpus_in(folder))},
        "batch": {"sequences": 8, "micro": 1, "length": 32},
        "optimizer": {"learning_rate": 1e-2, "warmup": 2},
        "checkpoint": {"every": 0},
        "plan": plan or {},
        **changes,
    }
    return JobSpec.model_validate(table)


def trained(
    job: JobSpec, folder: Path, *, resume: bool = False, target: str = "weft.training.train:train", **more: Any
) -> tuple[dict[str, Any], list[str]]:
    """Train `job` on ranks of their own; return the result and the bits of every step's loss."""
    assert job.plan != "auto"
    lines: list[dict[str, Any]] = []
    arguments = {"job": job, "folder": str(folder), "resume": resume, **more}
    ranks = Ranks(target, job.plan.ranks, arguments, on_message=lambda _, __, line: lines.append(line))
    result = ranks.run()[0]
    return result, [line["loss_bits"] for line in lines if "loss_bits" in line]


def total(reporter: Reporter, add: int) -> int:
    """Sum the ranks' numbers."""
    tensor = torch.tensor([dist.get_rank() + add])
    dist.all_reduce(tensor)
    reporter.send("note", dist.get_rank())
    return int(tensor)


def stumble(reporter: Reporter, how: str) -> None:
    """Fail on rank 1 while the others wait for it."""
    del reporter
    if dist.get_rank() == 1:
        if how == "usage":
            raise UsageError("rank 1 was asked wrongly; ask rightly")
        if how == "bug":
            raise ZeroDivisionError("a bug")
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def cut_losses(reporter: Reporter, cases: list[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return how far loss and gradient over a vocabulary that is cut are from those over the whole one."""
    del reporter
    group = dist.group.WORLD
    assert group is not None
    found: list[tuple[float, float]] = []
    for vocabulary, scale in cases:
        torch.manual_seed(vocabulary)
        logits = (scale * torch.randn(2, 6, vocabulary)).requires_grad_()
        targets = torch.randint(vocabulary, (2, 6))
        whole = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        whole.backward()
        words = own_words(vocabulary, dist.get_world_size(), dist.get_rank())
        part = logits.detach()[..., words.start : words.stop].clone().requires_grad_()
        loss = cut_loss(part, targets, words, group)
        (3 * loss).backward()
        assert part.grad is not None
        assert logits.grad is not None
        off = 3 * logits.grad[..., words.start : words.stop] - part.grad
        found.append((abs(float((loss - whole).detach())), float(off.abs().sum())))
    return found


def compile_tags(reporter: Reporter, plans: list[PlanSpec]) -> list[str]:
    """Return what tells this rank's compiled code from others', under each plan and with each making of its groups."""
    del reporter
    found: list[str] = []
    for plan in plans:
        mesh = Mesh(Layout(plan), dist.get_rank())
        for _ in range(2):
            mesh.regroup(dist.get_rank(), "cpu")
            found.append(str(torch.compiler.config.cache_key_tag))
    return found


def faults_of_large_blocks(reporter: Reporter) -> int:
    """Return how many pages the kernel hands out while 16 blocks of 4 MiB are made and freed, once things settled."""
    del reporter

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        assert all(block[0] for block in [torch.ones(1 << 20) for _ in range(16)])
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    return [faults() for _ in range(10)][-1]


def crash(reporter: Reporter, said: str) -> None:
    """End as native code does that finds its memory damaged; what is said of it goes to a file."""
    del reporter
    with Path(said).open("w") as words:
        os.dup2(words.fileno(), 2)
    os.abort()


def linger(reporter: Reporter) -> None:
    """Say that this rank is there and wait."""
    reporter.send("note", dist.get_rank())
    time.sleep(600)


def train_and_die(job: JobSpec, folder: str, *, resume: bool, reporter: Reporter, after: int) -> dict[str, Any]:
    """Train, and die silently on every rank after step `after`."""
    finish = Session.finish

    def finish_or_die(run: Session, step: Step) -> None:
        finish(run, step)
        if run.done == after:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(Session, "finish", finish_or_die)  # noqa: B010 - a method may not be assigned to otherwise
    return train(job, folder, resume=resume, reporter=reporter)


def train_slowly(job: JobSpec, folder: str, *, resume: bool, reporter: Reporter) -> dict[str, Any]:
    """Train with a replica that is slow; say whether work moved away from it."""
    runs: list[int] = []
    open_leaf = Step.open_leaf

    def open_slowly(step: Step, order: int) -> None:
        runs.append(len(step.split.runs[1]))
        if step.indices[0] > 0:
            time.sleep(0.05)
        open_leaf(step, order)

    setattr(Step, "open_leaf", open_slowly)  # noqa: B010 - a method may not be assigned to otherwise
    result = train(job, folder, resume=resume, reporter=reporter)
    return result | {"moved": runs[-1] < runs[0]}


def processors(reporter: Reporter) -> set[int]:
    """Return where this rank may run."""
    del reporter
    return os.sched_getaffinity(0)


def pid(reporter: Reporter) -> None:
    """Say which process this is."""
    reporter.send("pid", os.getpid())
