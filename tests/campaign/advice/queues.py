"""Drawn queues, and the same queues in the words of Slurm and Kueue, as those projects document them."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

BEGIN_S = 1_760_000_000


@dataclass(frozen=True)
class Wish:
    """A job as a test means it: whole numbers, and where it runs, if it does."""

    number: int
    nodes: int
    gpus: int
    priority: int
    submit_s: int
    limit_min: int | None
    places: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scene:
    """Nodes of one width and the jobs before them."""

    nodes: int
    gpus: int
    out: frozenset[int]
    jobs: tuple[Wish, ...]

    @property
    def now_s(self) -> int:
        """Return a moment after all that happened."""
        return BEGIN_S + 10_000


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    count, gpus = draw(st.integers(1, 6)), draw(st.sampled_from([1, 4, 8]))
    out = frozenset(draw(st.sets(st.integers(0, count - 1), max_size=1))) if count > 1 else frozenset[int]()
    free = [gpus] * count
    found: list[Wish] = []
    for number in range(draw(st.integers(1, 12))):
        wide, each = draw(st.integers(1, count)), draw(st.integers(1, gpus))
        wish = Wish(1000 + number, wide, each, draw(st.integers(0, 5)), BEGIN_S + draw(st.integers(0, 3000)),
                    draw(st.none() | st.integers(1, 10_000)))  # fmt: skip
        there = [at for at in range(count) if at not in out and free[at] >= each]
        if number + 1 < 12 and len(there) >= wide and draw(st.booleans()):
            places = tuple(there[:wide])
            for at in places:
                free[at] -= each
            wish = Wish(wish.number, wide, each, wish.priority, wish.submit_s, wish.limit_min, places)
        found.append(wish)
    return Scene(count, gpus, out, tuple(found))


def _number(value: int | None, *, plain: bool) -> Any:
    if plain:
        return 0xFFFFFFFF if value is None else value
    return {"set": value is not None, "infinite": value is None, "number": value or 0}


def slurm(scene: Scene, *, plain: bool = False, grouped: bool = False) -> list[dict[str, Any]]:
    """Return what `squeue --json` and `sinfo --json` print: of 22.05 (`plain`), or of 23.11, nodes alone or grouped."""
    jobs: list[dict[str, Any]] = []
    for wish in scene.jobs:
        state = "RUNNING" if wish.places else "PENDING"
        names = ",".join(f"gpu{at:03}" for at in wish.places)
        tres = f"cpu=8,mem=64G,node={wish.nodes},billing=8,gres/gpu={wish.nodes * wish.gpus}"
        jobs.append({
            "job_id": wish.number, "job_state": state if plain else [state], "account": "red", "partition": "main",
            "node_count": _number(wish.nodes, plain=plain), "priority": _number(wish.priority, plain=plain),
            "submit_time": _number(wish.submit_s, plain=plain), "time_limit": _number(wish.limit_min, plain=plain),
            "start_time": _number(BEGIN_S + 5000 if wish.places else 0, plain=plain), "nodes": names,
            "tres_req_str": tres, "tres_alloc_str": tres if wish.places else "", "dependency": "",
            "state_reason": "None" if wish.places else "Priority", "gres_detail": [],
            "array_job_id": _number(0, plain=plain), "array_task_id": _number(None, plain=plain),
        })  # fmt: skip
    squeue = {"jobs": jobs, "last_update": _number(scene.now_s, plain=plain)}
    words = {at: "DOWN" if at in scene.out else "MIXED" for at in range(scene.nodes)}
    if grouped:
        groups = [{"nodes": {"nodes": [f"gpu{at:03}" if scene.nodes > 1 else "gpu[000]"]}, "node": {"state": [word]},
                   "gres": {"total": f"gpu:h100:{scene.gpus}(S:0-1)"}, "partition": {"name": "main"}}
                  for at, word in words.items()]  # fmt: skip
        return [squeue, {"sinfo": groups}]
    nodes = [{"name": f"gpu{at:03}", "gres": f"gpu:{scene.gpus}", "partitions": ["main"],
              "state": word.lower() if plain else [word]} for at, word in words.items()]  # fmt: skip
    return [squeue, {"nodes": nodes}]
