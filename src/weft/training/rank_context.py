"""One rank of a run: the job, its place in the mesh, its device, its data, and the links that a step needs."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from weft.core.clock import SystemClock
from weft.core.seeds import Seed
from weft.specs import JobSpec
from weft.training.data import BatchStream, open_corpus
from weft.training.launch.process_group import connecting, shared
from weft.training.metrics.exposed import record_waits_in
from weft.training.metrics.ledger import Ledger, TimeClass
from weft.training.parallel import mesh as meshes
from weft.training.parallel.auto_plan import automatic
from weft.training.recovery import supervisor_link
from weft.training.recovery.supervisor_link import SupervisorLink
from weft.training.sdc.guard import Guard
from weft.training.sdc.hooks import guard_of


@dataclass
class RankContext:
    """What stays the same on one rank from the start of a run to its end."""

    job: JobSpec
    """What is trained."""
    rank: int
    """This rank's number."""
    ranks: int
    """How many there are."""
    device: torch.device
    """Where this rank computes."""
    mesh: meshes.Mesh
    """Process groups of the plan."""
    stream: BatchStream
    """Where batches come from."""
    ledger: Ledger
    """Where the time goes."""
    life: SupervisorLink
    """The supervisor, where there is one."""
    guard: Guard | None
    """What checks every step, where the job asks for it."""

    @classmethod
    def join(cls, job: JobSpec, folder: Path) -> "RankContext":
        """Set this rank up for `job`, with corpora kept below `folder`; all ranks call it together."""
        ledger, life = Ledger(SystemClock()), supervisor_link.current()
        # Left when the session begins its first step.
        ledger.enter(TimeClass.START_UP)
        record_waits_in(ledger)
        place = life.place
        if place is not None and not place.joined:
            if torch.cuda.is_available():
                # Which device is this rank's depends on its place.
                place.find()
            rank, ranks = 0, place.setting.ranks
        else:
            rank, ranks = dist.get_rank(), dist.get_world_size()
        plan = life.plan or (automatic(job, ranks) if job.plan == "auto" else job.plan)
        meshes.check(job, plan, ranks)
        device = _device(exact=plan.exact)
        cache = folder / ".corpora"
        # Rank 0 builds the corpus; the others then open what is there.
        shared(lambda: open_corpus(job.data, cache) and None)
        corpus = open_corpus(job.data, cache)
        corpus.check_vocabulary(job.model.vocabulary)
        stream = BatchStream(corpus, job.batch, Seed(job.seed), held_out=job.data.held_out)
        mesh = meshes.Mesh(meshes.Layout(plan), rank, dict.fromkeys(meshes.GROUPS))
        if place is None or place.joined:
            with connecting():
                mesh.regroup(rank, device.type)
        return cls(job, rank, ranks, device, mesh, stream, ledger, life, guard_of(job, mesh))

    def move(self, rank: int) -> None:
        """Stand at another place, or at the same one among others; all ranks call it together."""
        self.rank = rank
        with connecting():
            self.mesh.regroup(rank, self.device.type)


def _device(*, exact: bool) -> torch.device:
    """Choose the device and, in exact mode, everything that could change bits."""
    if exact:
        # cuBLAS keeps its sums in order only with a workspace of fixed size; without a GPU it is not read.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True)
        torch.set_num_threads(1)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    number = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(number)
    return torch.device("cuda", number)
