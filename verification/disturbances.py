"""`python -m verification.disturbances --count N --seed S`: drawn disturbances of small trainings, with their outcomes.

Each draw is a plan, something that goes wrong at a drawn step, and the width with which the run is taken up again. The
claim: the weights and everything else that is stored have the bits of the undisturbed run, or the run is refused with
a sentence, and only where its state is really lost; and no second passes that the ledger calls idle for long. Anything
else is a finding, with its draw to repeat it by. A coordinator dies in a training on two hosts (`pods`).
"""

import argparse
import contextlib
import json
import multiprocessing.forkserver
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from verification.pods import gang, until
from weft.cluster.recovery.limits import LimitRule
from weft.core.errors import WeftError
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds
from weft.engines.supervisor import Supervisor
from weft.engines.supervisor.rank_layout import RankMain
from weft.specs.faults import FaultsSpec
from weft.specs.job import JobSpec
from weft.training.checkpoint.manifest import MANIFEST, complete
from weft.training.launch.child_process import ChildProcess
from weft.training.launch.ranks import fork_server
from weft.training.run_dir import records

STEPS, EVERY = 12, 4
LIMIT_S = 240.0
IDLE_S = 10.0
"""Longer than this no run may stand still without a class of its ledger that says what for."""
EXPERTS = {"count": 4, "top_k": 2, "ffn": 16}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "looped-bfs", "zero-bubble", "zbv", "dualpipev")
PLANS: dict[str, dict[str, Any]] = {
    "dp": {"dp": 2},
    "sharded": {"dp": 2, "shard": 2},
    "tp": {"tp": 2},
    **{f"pp {name}": {"pp": 2, "schedule": name} for name in SCHEDULES},
    "ep": {"dp": 2, "ep": 2},
    "MoE": {"dp": 2},
    "dp4 shard2": {"dp": 4, "shard": 2},
    "dp tp": {"dp": 2, "tp": 2},
    "dp pp": {"dp": 2, "pp": 2, "schedule": "1f1b"},
    "cp": {"cp": 2},
}
WIDTHS: dict[str, list[dict[str, Any]]] = {
    "dp": [{"dp": 1}, {"dp": 2}, {"dp": 3}],
    "sharded": [{"dp": 1, "shard": 1}, {"dp": 2, "shard": 1}, {"dp": 2, "shard": 2}, {"dp": 3, "shard": 3}],
    "MoE": [{"dp": 1}, {"dp": 2}, {"dp": 3}],
    "tp": [{"dp": 1}, {"dp": 2}],
    "dp4 shard2": [{"dp": 1, "shard": 1}, {"dp": 2, "shard": 2}, {"dp": 3, "shard": 1}, {"dp": 4, "shard": 2}],
    "dp tp": [{"dp": 1}, {"dp": 2}, {"dp": 3}],
    "dp pp": [{"dp": 1}, {"dp": 2}, {"dp": 3}],
    "cp": [{"dp": 1}, {"dp": 2}],
    # Another schedule is another job: a resume with it is refused by name.
    **{f"pp {name}": [{"dp": 1}, {"dp": 2}] for name in SCHEDULES},
}
KINDS = (
    "kill", "stop", "flip", "full-disk", "damaged-newest", "damaged-only", "dead-keeper", "dead-fork-server",
    "dead-supervisor", "dead-coordinator",
)  # fmt: skip
REPLICATED = ("dp", "MoE", "dp tp", "dp pp")
"""Plans in which a second replica holds every weight."""
WHOLE = ("dp", "dp pp", "cp", *(f"pp {name}" for name in SCHEDULES))
"""Plans under which Muon has whole matrices."""
OPTIMIZERS: dict[str, dict[str, str]] = {"adamw": {}, "bf16": {"state": "bf16"}, "muon": {"kind": "muon"}}
TEXT = "the quick brown fox jumps over the lazy dog, again and again and again; " * 40


@dataclass(frozen=True)
class Draw:
    """One disturbance."""

    kind: str
    plan: str
    step: int
    """The step after which, or in which, it happens."""
    rank: int
    place: str
    """What a flip hits; how a checkpoint is damaged."""
    snapshots: int
    disk: int
    width: dict[str, Any]
    """With which the run is taken up again, where somebody has to."""
    optimizer: str = "adamw"
    policy: str = "shrink"
    in_step: bool | None = None
    again: bool = False
    """Whether the other rank is killed too, a step later."""
    seed: int = 3
    """Of the training."""

    def __str__(self) -> str:
        return f"{self.kind} {self.plan} {json.dumps(asdict(self))}"


def drawn(seed: int, number: int) -> Draw:
    """Return draw `number` of `seed`: kinds and plans in turn, so that every pair comes up, the rest at random."""
    dice = random.Random(f"{seed} {number}")  # noqa: S311 - a drawn case, no secret
    kind, plan = KINDS[(number + seed) % len(KINDS)], dice.choice(sorted(PLANS))
    if kind == "flip":
        # Without a replica nobody can tell a flipped weight from another one.
        plan = dice.choice(REPLICATED)
    places = {
        "flip": ("weights", "optimizer", "reduced", "snapshot"),
        "damaged-newest": ("bytes", "cut", "manifest"),
        "damaged-only": ("bytes", "cut", "manifest", "gone"),
    }
    # Where the newest checkpoint is damaged there is an older one; where all are, it is the other kind.
    stored = 2 if kind == "damaged-newest" else 1
    return Draw(
        kind, plan, dice.randrange(stored * EVERY + 2, STEPS), dice.randrange(2), dice.choice(places.get(kind, ("",))),
        dice.choice((0, 1, 3)) if kind != "flip" else 1, dice.choice((0, 1)), dice.choice(WIDTHS.get(plan, [{}])),
        dice.choice(sorted(OPTIMIZERS) if plan in WHOLE else ("adamw", "bf16")),
        dice.choice(("shrink", "spare")), dice.choice((None, False)), kind in ("kill", "stop") and dice.random() < 0.3,
        seed % 1000,
    )  # fmt: skip


def job_of(folder: Path, draw: Draw, width: Mapping[str, Any], *, every: int = EVERY) -> JobSpec:
    """Return the draw's job on a `width`."""
    corpus = folder / "corpus.txt"
    if not corpus.exists():
        corpus.write_text(TEXT, encoding="utf-8")
    plan = {**PLANS[draw.plan], **width}
    experts = {"experts": EXPERTS} if draw.plan in ("ep", "MoE") else {}
    return JobSpec.model_validate(
        {
            "name": "drawn", "seed": draw.seed, "steps": STEPS,
            "model": {"layers": 4 if "pp" in draw.plan else 1, "width": 16, "heads": 2, "ffn": 32, **experts},
            "data": {"corpus": str(corpus), "held_out": 0.2},
            "batch": {"sequences": 12, "micro": 1, "length": 8}, "plan": plan,
            "optimizer": {"learning_rate": 1e-2, "warmup": 2, **OPTIMIZERS[draw.optimizer]},
            "checkpoint": {"every": every, "patience": "2 s"}, "evaluation": {"every": EVERY, "sequences": 2},
            "guard": {"digest_every": 1 if draw.kind == "flip" else 0},
            "recovery": {
                "snapshots": draw.snapshots, "disk": draw.disk, "policy": draw.policy, "in_step": draw.in_step,
                "spares": int(draw.policy == "spare"),
            },
        }
    )  # fmt: skip


@dataclass
class Life:
    """One supervisor's part of a run; it is carried out in a process of its own, which may be killed."""

    job: JobSpec
    folder: Path
    resume: bool = False
    start_over: bool = False
    faults: tuple[dict[str, Any], ...] = ()
    act: str = ""
    """What is done by this process itself, after `step`."""
    step: int = 0


def live(life: Life, pipe: Any) -> None:
    """Be a supervisor, and say how it went."""
    faults = FaultsSpec.model_validate({"seed": 1, "faults": list(life.faults)})
    acted: list[bool] = []

    def follow(line: Mapping[str, Any]) -> None:
        if life.act and "loss" in line and line["step"] >= life.step and not acted:
            acted.append(True)
            _ACTS[life.act](supervisor)

    # Higher than the product's floor of 3 s: on a machine that does much else, a pause is no hang.
    main = RankMain(rule=LimitRule(least_ps=Picoseconds(10 * PICOSECONDS_PER_SECOND)))
    try:
        runs = life.folder / "runs"
        supervisor = Supervisor(life.job, runs, main=main, faults=faults, resume=life.resume, on_line=follow)
        supervisor.start_over = life.start_over
        result = supervisor.run()
        pipe.send(("done", {key: result[key] for key in ("state", "weights_digest", "incidents", "goodput", "run")}))
    except WeftError as error:
        pipe.send(("refused", f"{type(error).__name__}: {error}"))
    except BaseException as error:  # noqa: BLE001 - it is a finding, whatever it is
        pipe.send(("broke", f"{type(error).__name__}: {error}"))


def _kill_keepers(supervisor: Supervisor) -> None:
    for process, _, _ in list(vars(supervisor.host.memory)["_keepers"].values()):
        process.kill()


def _kill_fork_server(supervisor: Supervisor) -> None:
    del supervisor
    pid = vars(multiprocessing.forkserver)["_forkserver"]._forkserver_pid  # noqa: SLF001 - it has no public name
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


def _kill_supervisor(supervisor: Supervisor) -> None:
    del supervisor
    os.kill(os.getpid(), signal.SIGKILL)


_ACTS: dict[str, Callable[[Supervisor], None]] = {
    "keepers": _kill_keepers,
    "fork server": _kill_fork_server,
    "supervisor": _kill_supervisor,
}


def lived(life: Life) -> tuple[str, Any]:
    """Carry out a life; returns how it went: done, refused, broke, killed, or too long."""
    context = fork_server()
    ours, theirs = context.Pipe()
    # Not a daemon: it has processes of its own.
    process = context.Process(target=live, args=(life, theirs))
    process.start()
    theirs.close()
    child = ChildProcess(process)
    try:
        if not ours.poll(LIMIT_S):
            child.kill()
            return "too long", f"no end after {LIMIT_S:.0f} s"
        return ours.recv()
    except EOFError:
        return "killed", ""
    finally:
        child.join(10)
        child.kill()
        ours.close()


def stored(folder: Path, run: str) -> dict[str, str]:
    """Return the digest of every tensor in the newest checkpoint of a run, optimizer and all."""
    for _, manifest in complete(folder / "runs" / run / "checkpoints"):
        return {name: entry.digest for name, entry in manifest.tensors.items()}
    return {}


def damage(folder: Path, draw: Draw) -> bool:
    """Damage the newest checkpoint of the draw's run, or all of them, as the draw says; return whether none is left."""
    dice = random.Random(str(draw))  # noqa: S311 - the same
    found = [path for path, _ in complete(folder / "runs" / "drawn-1" / "checkpoints")]
    for path in found[:1] if draw.kind == "damaged-newest" else found:
        if draw.place == "gone":
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
            continue
        data = [file for file in path.iterdir() if file.name != MANIFEST]
        file = path / MANIFEST if draw.place == "manifest" else max(data, key=lambda one: one.stat().st_size)
        content = bytearray(file.read_bytes())
        if draw.place == "cut":
            content = content[: dice.randrange(len(content))]
        else:
            place = dice.randrange(len(content) - 3)
            content[place : place + 3] = bytes(byte ^ 0x5A for byte in content[place : place + 3])
        file.write_bytes(content)
    # A run may be killed while it stores its second one.
    return draw.kind == "damaged-only" or len(found[1:]) == 0


class Undisturbed:
    """What undisturbed runs have stored, by plan."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._known: dict[str, dict[str, str]] = {}

    def of(self, draw: Draw) -> dict[str, str]:
        """Return the digests of everything that the draw's training stores if nothing happens."""
        key = f"{draw.plan} {draw.optimizer} {draw.seed}"
        if key not in self._known:
            with tempfile.TemporaryDirectory() as place:
                calm = replace(draw, kind="none", snapshots=0, disk=0)
                how, result = lived(Life(job_of(Path(place), calm, {}), Path(place)))
                if how != "done":
                    raise RuntimeError(f"the undisturbed run of {draw.plan} {how}: {result}")
                self._known[key] = stored(Path(place), result["run"])
        return self._known[key]


def outcome(draw: Draw, undisturbed: Undisturbed) -> tuple[str, str]:
    """Carry out a draw; returns "same", "refused", or what is wrong, with what was said."""
    try:
        wanted = undisturbed.of(draw)
    except RuntimeError as error:
        return "no undisturbed run", str(error)
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack():
        folder = Path(place)
        job = job_of(folder, draw, {})
        how, said = (
            _on_two_hosts(draw, job, folder)
            if draw.kind == "dead-coordinator"
            else lived(_first_life(draw, job, folder))
        )
        lost = False
        if draw.kind.startswith("damaged"):
            # What is on local disks serves too, and a run that had not stored anything begins at step 0.
            lost = damage(folder, draw)
        if how in ("killed", "refused") or (how == "done" and lost):
            if how == "refused" and not (draw.kind == "full-disk" and "not finished" in said):
                return "refused without need", said
            how, said = lived(Life(job_of(folder, draw, draw.width), folder, resume=True))
        if how == "refused" and lost:
            if "start-over" not in said:
                return "refused without a way out", said
            first = said
            how, said = lived(Life(job_of(folder, draw, draw.width), folder, resume=True, start_over=True))
            return ("refused", first) if how == "done" and stored(folder, said["run"]) == wanted else (how, said)
        if how != "done":
            return f"{how} without need", said
        return _judged(draw, folder, said, wanted)


_SEEN = {"kill": "killed", "stop": "stopped", "dead-keeper": "helper", "dead-coordinator": "coordinator"}
"""What must stand among the incidents."""


def _on_two_hosts(draw: Draw, job: JobSpec, folder: Path) -> tuple[str, Any]:
    """Train on two hosts, kill the coordinator when the drawn step is done, and say how it went."""
    # Steps of such a model take milliseconds: one slow rank leaves the time to kill in the midst of them.
    # Too slow a step would pass the limit that it has learned, 3 s at least, and count as a hang.
    factor = 200.0 if draw.plan in REPLICATED and "tp" not in draw.plan and "pp" not in draw.plan else 15.0
    slow = {"kind": "slow", "rank": draw.rank, "step": draw.step, "factor": factor}
    job = job.model_copy(update={"faults": FaultsSpec.model_validate({"faults": [slow]}).faults})
    with gang(folder, job) as pods:
        until(lambda: pods.steps() >= draw.step or any(pod.poll() is not None for pod in pods.pods.values()))
        if pods.steps() < draw.step:
            return "broke", pods.log(0).read_text()[-2000:]
        os.kill(pods.coordinator().pid, signal.SIGKILL)
        statuses = pods.statuses()
        if set(statuses.values()) != {0}:
            return "broke", f"{statuses} {pods.log(0).read_text()[-2000:]}"
        # Where `stored` looks for it.
        pods.runs.rename(folder / "runs")
        (record,) = records(folder / "runs")
        result = record.result() or {}
        return "done", {key: result[key] for key in ("state", "weights_digest", "incidents", "goodput", "run")}


def _judged(draw: Draw, folder: Path, said: dict[str, Any], wanted: dict[str, str]) -> tuple[str, str]:
    found = stored(folder, said["run"])
    if said["state"] != "finished" or not found:
        return "not finished", str(said["state"])
    differing = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if differing:
        return "DIFFERENT", f"{len(differing)} tensors, the first is {differing[0]}"
    if said["goodput"]["seconds"].get("idle", 0.0) > IDLE_S:
        return "waited", str(said["goodput"]["seconds"])
    kinds = {line["kind"] for line in said["incidents"]}
    seen = _SEEN.get(draw.kind)
    if seen is not None and seen not in kinds and draw.step < STEPS - 1:
        return "not told", f"incidents {sorted(kinds)}"
    return "same", ""


def _first_life(draw: Draw, job: JobSpec, folder: Path) -> Life:
    rank = draw.rank % job.plan.ranks if not isinstance(job.plan, str) else 0
    fault: dict[str, Any] = {"rank": rank, "step": draw.step}
    match draw.kind:
        case "kill" | "stop":
            more = {"kind": "kill", "rank": 1 - rank, "step": min(STEPS, draw.step + 1)}
            return Life(job, folder, faults=({"kind": draw.kind, **fault}, *([more] if draw.again else ())))
        case "flip" if draw.place == "snapshot":
            flip = {"kind": "flip", "place": "snapshot", "node": rank, "step": draw.step}
            return Life(job, folder, faults=(flip, {"kind": "kill", "rank": 1 - rank, "step": draw.step + 1}))
        case "flip":
            return Life(job, folder, faults=({"kind": "flip", "place": draw.place, **fault},))
        case "full-disk":
            return Life(job, folder, faults=({"kind": "full-disk", "rank": 0, "step": draw.step, "sticky": True},))
        case "dead-keeper" | "dead-fork-server":
            # Somebody must be started after it, for it to matter.
            later = {"kind": "kill", "rank": rank, "step": min(STEPS, draw.step + 2)}
            act = "keepers" if draw.kind == "dead-keeper" else "fork server"
            return Life(job, folder, faults=(later,), act=act, step=draw.step)
        case _:
            if draw.kind == "damaged-only":
                job = job_of(folder, draw, {}, every=EVERY)
            return Life(job, folder, act="supervisor", step=draw.step)


def run(count: int, seed: int, first: int = 0, limit_s: float = float("inf")) -> list[dict[str, Any]]:
    """Carry out `count` draws and return what came of each; none is begun after `limit_s`."""
    undisturbed, found = Undisturbed(), []
    begun = time.monotonic()
    for number in range(first, first + count):
        if time.monotonic() - begun > limit_s:
            break
        draw, start = drawn(seed, number), time.monotonic()
        kind, said = outcome(draw, undisturbed)
        seconds = time.monotonic() - start
        found.append({"number": number, "outcome": kind, "said": said, "seconds": seconds, "draw": asdict(draw)})
        sys.stderr.write(f"{number:4} {kind:24} {seconds:6.1f} s  {draw}\n")
        if kind not in ("same", "refused"):
            sys.stderr.write(f"     {said}\n")
    return found


def main() -> int:
    """Run draws from the command line."""
    parser = argparse.ArgumentParser(prog="python -m verification.disturbances", description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first draw")
    parser.add_argument("--limit", type=float, default=float("inf"), help="begin no draw after so many seconds")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = run(given.count, given.seed, given.first, given.limit)
    counts = Counter(one["outcome"] for one in found)
    if given.json:
        print(json.dumps({"seed": given.seed, "outcomes": counts, "draws": found}, indent=1))
    else:
        print(f"{len(found)} draws: " + ", ".join(f"{count} {name}" for name, count in counts.most_common()))
    return 0 if counts.keys() <= {"same", "refused"} else 1


if __name__ == "__main__":
    sys.exit(main())
