"""How long a job stands still when a rank is killed: weft beside torchrun and torchft, the same model, 4 CPU ranks.

    python benchmarks/recovery.py [--repeats 3]

Each contestant trains the same small model with the same batch on 4 ranks of this machine. After ten steps one rank
gets SIGKILL; what is measured is the time from there to the end of the next step that is taken without it:

- weft: the supervisor fences the generation, forks four ranks and restores them from the memory of peers.
- torchrun: `--max-restarts`, a short monitor interval, and a checkpoint of every step in /dev/shm, which is kinder to
  it than any disk. As shipped it does not come back with gloo (the restarted ranks read the dead ones' addresses), so
  TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 is set.
- torchft: four replica groups and a lighthouse. Its survivors go on with three quarters of the batch, so its weights
  are other weights; the time until all four are back is printed too. It is measured where it can be imported; in an
  environment of its own: `python -m venv --system-site-packages t; t/bin/pip install torchft-nightly`.

Prints seconds and the ratio to torchrun, all from one run of this program.
"""

import argparse
import importlib.util
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

RANKS = 4
VICTIM = 2
WARM = 10
STEPS = 100_000
LENGTH = 32
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Line:
    """One step of one process."""

    at_s: float
    pid: int
    rank: int
    step: int
    ranks: int


def job() -> Any:
    """Return the job that all contestants train."""
    from weft.specs.job import JobSpec

    return JobSpec.model_validate(
        {
            "name": "recovery", "steps": STEPS, "model": {"layers": 2, "width": 64, "heads": 4, "ffn": 128},
            "batch": {"sequences": 2 * RANKS, "micro": 2, "length": LENGTH}, "plan": {"dp": RANKS},
            "checkpoint": {"every": 0}, "recovery": {"policy": "spare", "spares": 1},
        }
    )  # fmt: skip


def note(rank: int, step: int, ranks: int = RANKS) -> None:
    """Write down that this process has finished a step."""
    with Path(os.environ["RECOVERY_LOG"]).open("a", encoding="utf-8") as stream:
        stream.write(f"{time.time()} {os.getpid()} {rank} {step} {ranks}\n")


def parts() -> tuple[Any, Any]:
    """Return the model, a recurrent one with 57,984 parameters, and its optimizer."""
    import torch
    from torch import nn
    from typing_extensions import override

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(256, 64)
            self.cell = nn.GRU(64, 64, batch_first=True)
            self.head = nn.Linear(64, 256)

        @override
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.cell(self.embed(tokens))[0])

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Recurrent()
    return model, torch.optim.AdamW(model.parameters())


def loss_of(model: Any, tokens: Any) -> Any:
    """Return the loss of one micro-batch."""
    from torch.nn import functional

    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def weft_loop(path: str, folder: str) -> None:
    """Train under weft: a loop of one's own around the public API."""
    import weft

    run = weft.start(path, folder=folder)
    model, optimizer = parts()
    run.attach(model, optimizer)
    for step in run.steps():
        for tokens in step.micro_batches():
            loss = loss_of(model, tokens)
            loss.backward()
            step.add(loss)
        step.reduce()
        optimizer.step()
        run.finish(step)
        note(run.rank, run.done, run.ranks)


def weft_worker() -> None:
    """Supervise `weft_loop`."""
    import weft
    from weft.core.toml import written

    log = os.environ["RECOVERY_LOG"]
    Path(f"{log}.toml").write_text(written(job().as_written()), encoding="utf-8")
    weft.survive(weft_loop, f"{log}.toml", f"{log}.runs")


def torchrun_worker() -> None:
    """Be one rank under torchrun: DDP, and a checkpoint of every step in shared memory."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE_S))
    rank = dist.get_rank()
    model, optimizer = parts()
    wrapped = DistributedDataParallel(model)
    path = Path(os.environ["RECOVERY_LOG"] + ".state")
    begin = 0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]
    for step in range(begin, STEPS):
        tokens = torch.randint(256, (2, LENGTH + 1), generator=torch.Generator().manual_seed(step * RANKS + rank))
        optimizer.zero_grad()
        loss_of(wrapped, tokens).backward()
        optimizer.step()
        if rank == 0:
            part = path.with_suffix(".part")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, part)
            part.replace(path)
        dist.barrier()
        note(rank, step + 1)


def torchft_worker() -> None:
    """Be one replica group under torchft."""
    import torch
    import torch.distributed as dist
    import torchft  # pyrefly: ignore [missing-import]

    rank = int(os.environ["REPLICA"])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model, inner = parts()

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        replica_id=f"replica{rank}",
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        timeout=timedelta(seconds=10),
    )
    wrapped = torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, inner)
    for number in range(STEPS):
        tokens = torch.randint(256, (2, LENGTH + 1), generator=torch.Generator().manual_seed(number * RANKS + rank))
        optimizer.zero_grad()
        loss_of(wrapped, tokens).backward()
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            note(rank, manager.current_step(), manager.num_participants())


def lighthouse() -> None:
    """Be torchft's lighthouse, in a process of its own: it talks a lot."""
    from torchft.coordination import LighthouseServer  # pyrefly: ignore [missing-import]

    house = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=1000, heartbeat_timeout_ms=1000)
    part = Path(os.environ["RECOVERY_LOG"]).with_suffix(".address.part")
    # What it binds to is not always what can be reached.
    part.write_text(house.address().replace("0.0.0.0", "127.0.0.1"), encoding="utf-8")  # noqa: S104 - read, not bound
    part.replace(part.with_suffix(""))
    signal.pause()


class Contest:
    """One contestant's processes and what they have written."""

    def __init__(self, folder: Path) -> None:
        """Begin with nothing."""
        self.log = folder / "log"
        self.log.touch()
        self.environment = {**os.environ, "RECOVERY_LOG": str(self.log), "OMP_NUM_THREADS": "1"}
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: list[str], **more: str) -> None:
        """Start a process in a group of its own."""
        out = self.log.with_suffix(".out").open("ab")
        self.processes.append(
            subprocess.Popen(command, env={**self.environment, **more}, stdout=out, stderr=out, start_new_session=True)
        )

    def lines(self) -> list[Line]:
        """Return every step that was taken so far."""
        found: list[Line] = []
        for text in self.log.read_text(encoding="utf-8").splitlines():
            words = text.split()
            if len(words) == len(Line.__dataclass_fields__):
                at_s, pid, rank, step, ranks = words
                found.append(Line(float(at_s), int(pid), int(rank), int(step), int(ranks)))
        return found

    def until(self, what: str, find: Callable[[Line], bool]) -> Line:
        """Return the first line that `find` accepts."""
        deadline = time.time() + PATIENCE_S
        while time.time() < deadline:
            for line in self.lines():
                if find(line):
                    return line
            time.sleep(0.02)
        tail = self.log.with_suffix(".out").read_text(encoding="utf-8", errors="replace")[-2000:]
        raise SystemExit(f"recovery: {what} did not happen within {PATIENCE_S:.0f} s\n{tail}")

    def kill(self) -> tuple[float, set[int]]:
        """Kill the victim once all ranks are warm; returns when, and the processes that were there."""
        for rank in range(RANKS):
            self.until(f"step {WARM} on rank {rank}", partial(_is_warm, rank))
        known = self.lines()
        victim = [line.pid for line in known if line.rank == VICTIM][-1]
        at_s = time.time()
        os.kill(victim, signal.SIGKILL)
        return at_s, {line.pid for line in known}

    def end(self) -> None:
        """Leave nothing running."""
        for process in self.processes:
            with _gone():
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _is_warm(rank: int, line: Line) -> bool:
    return line.rank == rank and line.step >= WARM


class _gone:  # noqa: N801 - reads as a word in a with statement
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return isinstance(error, ProcessLookupError)


def restarted(contest: Contest, command: list[str], **more: str) -> dict[str, float]:
    """Measure a contestant that starts all ranks again: to the first step of new processes."""
    contest.start(command, **more)
    at_s, known = contest.kill()
    first = contest.until("a new step", lambda line: line.pid not in known)
    return {"first new step": first.at_s - at_s, "all ranks back": first.at_s - at_s}


def own_command(worker: str) -> list[str]:
    """Return how this program runs itself as a worker."""
    return [sys.executable, str(Path(__file__).resolve()), "--worker", worker]


def measure_weft(folder: Path) -> dict[str, float]:
    """Measure weft."""
    contest = Contest(folder)
    try:
        return restarted(contest, own_command("weft"))
    finally:
        contest.end()


def measure_torchrun(folder: Path) -> dict[str, float]:
    """Measure torchrun with its work-around."""
    contest = Contest(folder)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--max-restarts", "3",
               "--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]  # fmt: skip
    try:
        return restarted(contest, [*command, *own_command("torchrun")[1:]], TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    finally:
        contest.end()


def measure_torchft(folder: Path) -> dict[str, float]:
    """Measure torchft: its survivors' first step, and the first step with a new fourth replica."""
    contest = Contest(folder)
    contest.start(own_command("lighthouse"))
    place = contest.log.with_suffix(".address")
    while not place.exists():
        time.sleep(0.05)
    address = place.read_text(encoding="utf-8")

    def start(rank: int) -> None:
        contest.start(own_command("torchft"), REPLICA=str(rank), TORCHFT_LIGHTHOUSE=address)

    try:
        for rank in range(RANKS):
            start(rank)
        contest.until("all replicas together", lambda line: line.ranks == RANKS)
        at_s, _ = contest.kill()
        start(VICTIM)
        first = contest.until("a step without it", lambda line: line.at_s > at_s and line.ranks < RANKS)
        back = contest.until("all back", lambda line: line.at_s > first.at_s and line.ranks == RANKS)
        return {"first new step": first.at_s - at_s, "all ranks back": back.at_s - at_s}
    finally:
        contest.end()


def rounds(repeats: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield every measurement, the contestants taking turns."""
    contestants = {"weft": measure_weft, "torchrun": measure_torchrun}
    if importlib.util.find_spec("torchft") is not None:
        contestants["torchft"] = measure_torchft
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - shared memory is meant
    for number in range(repeats):
        for name, measure in contestants.items():
            with tempfile.TemporaryDirectory(prefix="weft-recovery-", dir=shared) as folder:
                print(f"round {number + 1} of {repeats}: {name}", file=sys.stderr, flush=True)
                yield name, measure(Path(folder))


WORKERS = {"weft": weft_worker, "torchrun": torchrun_worker, "torchft": torchft_worker, "lighthouse": lighthouse}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time from SIGKILL of a rank to the next step.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--worker", choices=tuple(WORKERS))
    options = parser.parse_args()
    if options.worker:
        WORKERS[options.worker]()
        return
    found: dict[str, list[dict[str, float]]] = {}
    for name, seconds in rounds(options.repeats):
        found.setdefault(name, []).append(seconds)
    base = statistics.median(one["first new step"] for one in found["torchrun"])
    print(f"{RANKS} CPU ranks, one killed; median of {options.repeats}, seconds from SIGKILL; {os.cpu_count()} cores")
    for name, all_seconds in found.items():
        first = statistics.median(one["first new step"] for one in all_seconds)
        back = statistics.median(one["all ranks back"] for one in all_seconds)
        spread = f"{min(one['first new step'] for one in all_seconds):.2f} to "
        spread += f"{max(one['first new step'] for one in all_seconds):.2f}"
        times = f"first new step {first:6.2f} ({spread}), all ranks back {back:6.2f}"
        print(f"{name:9s} {times}, {first / base:5.2f} x torchrun")


if __name__ == "__main__":
    main()
