"""How long a job stands still when a rank is killed: weft beside torchrun and torchft, the same model, 4 CPU ranks.

    python benchmarks/recovery.py [--repeats 3] [--sizes 0.03 19 100]

Each contestant trains the same model (feed-forward blocks of 0.03, 19 or 100 M parameters, AdamW) with the same batch
on 4 ranks of this machine. After 15 steps or more one rank gets SIGKILL. Measured from there are the end of the first
step that any rank takes afterwards, the moment when all ranks are as far as the furthest was before (lost work
regained), and the first step of all ranks that nobody had taken before (new step):

- weft: the lost rank is replaced inside the step by a spare; `weft restart` is the same with recovery.in_step = false,
  where the ranks start again from the memory of peers, as of the last tenth step.
- torchrun: `--max-restarts`, a short monitor interval, and a checkpoint of every step in /dev/shm, which is kinder to
  it than any disk. As shipped it does not come back with gloo (the restarted ranks read the dead ones' addresses), so
  TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 is set.
- torchft: four replica groups and a lighthouse. Its survivors go on with three quarters of the batch, so its weights
  are other weights; a step counts as new when all four have taken it. It is measured where it can be imported; in an
  environment of its own: `python -m venv --system-site-packages t; t/bin/pip install torchft-nightly`.

Then what in-step recovery costs where nothing fails: processor seconds of a step with it and without. Prints seconds
and ratios to torchrun, all from one run of this program. At 100 M parameters no snapshots are taken: four ranks, their
snapshots and the keepers would need 22 GiB.
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
WARM = 15
COUNTED = 12
STEPS = 100_000
LENGTH = 32
PATIENCE_S = 300.0
SIZES = {"0.03": (32, 2), "19": (512, 9), "100": (1024, 12)}
"""Width and blocks by millions of parameters."""


@dataclass(frozen=True)
class Line:
    """One step of one process."""

    at_s: float
    pid: int
    rank: int
    step: int
    ranks: int
    cpu_s: float


def job() -> Any:
    """Return the job that all contestants train."""
    from weft.specs.job import JobSpec

    return JobSpec.model_validate(
        {
            "name": "recovery", "steps": STEPS, "model": {"layers": 2, "width": 64, "heads": 4, "ffn": 128},
            "batch": {"sequences": RANKS, "micro": 1, "length": LENGTH}, "plan": {"dp": RANKS},
            "checkpoint": {"every": 0},
            "recovery": {
                "policy": "spare", "spares": 1, "in_step": os.environ["IN_STEP"] == "yes", "disk": 0,
                "snapshots": 0 if os.environ["SIZE"] == "100" else 10,
            },
        }
    )  # fmt: skip


def note(rank: int, step: int, ranks: int = RANKS) -> None:
    """Write down that this process has finished a step."""
    with Path(os.environ["RECOVERY_LOG"]).open("a", encoding="utf-8") as stream:
        stream.write(f"{time.time()} {os.getpid()} {rank} {step} {ranks} {time.process_time()}\n")


def parts() -> tuple[Any, Any]:
    """Return the model and its optimizer."""
    import torch
    from torch import nn
    from typing_extensions import override

    width, blocks = SIZES[os.environ["SIZE"]]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        @override
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden + self.down(torch.relu(self.up(self.norm(hidden))))

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(256, width), *(Block() for _ in range(blocks)), nn.Linear(width, 256))
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
        tokens = torch.randint(256, (1, LENGTH + 1), generator=torch.Generator().manual_seed(step * RANKS + rank))
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
        tokens = torch.randint(256, (1, LENGTH + 1), generator=torch.Generator().manual_seed(number * RANKS + rank))
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
                at_s, pid, rank, step, ranks, cpu_s = words
                found.append(Line(float(at_s), int(pid), int(rank), int(step), int(ranks), float(cpu_s)))
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

    def kill(self) -> tuple[float, int]:
        """Kill the victim once all ranks are warm; returns when, and the furthest step of anybody by then."""
        for rank in range(RANKS):
            self.until(f"step {WARM} on rank {rank}", partial(_has_taken, rank, WARM))
        victim = [line.pid for line in self.lines() if line.rank == VICTIM][-1]
        at_s = time.time()
        os.kill(victim, signal.SIGKILL)
        # Whoever was about to write a step down has done so by now.
        time.sleep(0.01)
        return at_s, max(line.step for line in self.lines() if line.at_s <= at_s)

    def recovered(self, at_s: float, reached: int) -> dict[str, float]:
        """Return the seconds from `at_s` to each of what is measured."""
        first = self.until("a step", lambda line: line.at_s > at_s + 0.05)
        regained = [self.until("work regained", partial(_is_back, rank, reached, at_s)) for rank in range(RANKS)]
        new = [self.until("a new step", partial(_is_back, rank, reached + 1, at_s)) for rank in range(RANKS)]
        return {
            "first step": first.at_s - at_s,
            "regained": max(line.at_s for line in regained) - at_s,
            "new step": max(line.at_s for line in new) - at_s,
        }

    def cpu_per_step(self) -> float:
        """Return the processor seconds that all ranks together spend on a step."""
        for rank in range(RANKS):
            self.until(f"step {WARM + COUNTED} on rank {rank}", partial(_has_taken, rank, WARM + COUNTED))
        spent = {(line.rank, line.step): line.cpu_s for line in self.lines()}
        return sum(spent[rank, WARM + COUNTED] - spent[rank, WARM] for rank in range(RANKS)) / COUNTED

    def end(self) -> None:
        """Leave nothing running."""
        for process in self.processes:
            with _gone():
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _has_taken(rank: int, step: int, line: Line) -> bool:
    return line.rank == rank and line.step >= step


def _is_back(rank: int, step: int, after_s: float, line: Line) -> bool:
    return line.rank == rank and line.step >= step and line.at_s > after_s and line.ranks == RANKS


class _gone:  # noqa: N801 - reads as a word in a with statement
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return isinstance(error, ProcessLookupError)


def own_command(worker: str) -> list[str]:
    """Return how this program runs itself as a worker."""
    return [sys.executable, str(Path(__file__).resolve()), "--worker", worker]


def measure_weft(in_step: str, folder: Path) -> dict[str, float]:
    """Measure weft: in one go what a step costs, and then a kill."""
    contest = Contest(folder)
    try:
        contest.start(own_command("weft"), IN_STEP=in_step)
        cpu_s = contest.cpu_per_step()
        return {**contest.recovered(*contest.kill()), "cpu": cpu_s}
    finally:
        contest.end()


def measure_torchrun(folder: Path) -> dict[str, float]:
    """Measure torchrun with its work-around."""
    contest = Contest(folder)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--max-restarts", "3",
               "--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]  # fmt: skip
    try:
        contest.start([*command, *own_command("torchrun")[1:]], TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        return contest.recovered(*contest.kill())
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
        at_s, reached = contest.kill()
        start(VICTIM)
        return contest.recovered(at_s, reached)
    finally:
        contest.end()


def rounds(repeats: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield every measurement, the contestants taking turns."""
    contestants: dict[str, Callable[[Path], dict[str, float]]] = {
        "weft": partial(measure_weft, "yes"),
        "weft restart": partial(measure_weft, "no"),
        "torchrun": measure_torchrun,
    }
    if os.environ["SIZE"] == "100":
        # Without snapshots it would begin anew.
        del contestants["weft restart"]
    if importlib.util.find_spec("torchft") is not None:
        contestants["torchft"] = measure_torchft
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - shared memory is meant
    for number in range(repeats):
        for name, measure in contestants.items():
            with tempfile.TemporaryDirectory(prefix="weft-recovery-", dir=shared) as folder:
                print(f"round {number + 1} of {repeats}: {name}", file=sys.stderr, flush=True)
                yield name, measure(Path(folder))


WORKERS = {"weft": weft_worker, "torchrun": torchrun_worker, "torchft": torchft_worker, "lighthouse": lighthouse}


def report(size: str, repeats: int) -> None:
    """Measure one size and print it."""
    os.environ["SIZE"] = size
    found: dict[str, list[dict[str, float]]] = {}
    for name, seconds in rounds(repeats):
        found.setdefault(name, []).append(seconds)

    def middle(name: str, what: str) -> float:
        return statistics.median(one[what] for one in found[name])

    print(f"{size} M parameters, {RANKS} CPU ranks on {os.cpu_count()} cores, one killed; median of {repeats}")
    for name, all_seconds in found.items():
        news = [one["new step"] for one in all_seconds]
        times = ", ".join(f"{what} {middle(name, what):6.2f}" for what in ("first step", "regained", "new step"))
        ratio = middle(name, "regained") / middle("torchrun", "regained")
        print(f"  {name:12s} {times} ({min(news):.2f} to {max(news):.2f}) s, regained {ratio:5.2f} x torchrun")
    if "weft restart" in found:
        share = middle("weft", "cpu") / middle("weft restart", "cpu") - 1
        print(f"  in-step recovery adds {share:+.1%} to {middle('weft restart', 'cpu'):.3f} CPU s of a step")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time from SIGKILL of a rank to the next step.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=list(SIZES))
    parser.add_argument("--worker", choices=tuple(WORKERS))
    options = parser.parse_args()
    if options.worker:
        WORKERS[options.worker]()
        return
    for size in options.sizes:
        report(size, options.repeats)


if __name__ == "__main__":
    main()
