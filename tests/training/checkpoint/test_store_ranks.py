import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

# One interpreter forks every world, so that torch is imported once; each world is a list of outcomes, rank by rank.
WORLDS = """
    import json, os, resource, sys
    from datetime import timedelta
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from weft.core.errors import FailedError
    from weft.training.checkpoint import tensor_digests
    from weft.training.checkpoint.store import CheckpointStore

    # DTensor and its friends import much at their first use: once here instead of once in every child.
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    distribute_tensor(torch.ones(2), init_device_mesh("cpu", (1,)), [Shard(0)])
    dist.destroy_process_group()

    root = Path(sys.argv[1])
    WIDE = torch.arange(77.0).reshape(7, 11)
    DEEP = torch.arange(60, dtype=torch.int32).reshape(3, 5, 4)
    SHARED = torch.arange(5.0).to(torch.bfloat16)

    def world(size, action):
        name = f"{action.__name__}-{size}-{len(list(root.glob('*.store')))}"
        pids = []
        for rank in range(size):
            pids.append(os.fork())
            if pids[-1] == 0:
                code = 1
                try:
                    dist.init_process_group(
                        "gloo", rank=rank, world_size=size, timeout=timedelta(seconds=60),
                        store=dist.FileStore(str(root / f"{name}.store"), size))
                    (root / f"{name}.{rank}").write_text(json.dumps(action(rank, init_device_mesh("cpu", (size,)))))
                    dist.barrier()
                    dist.destroy_process_group()
                    code = 0
                finally:
                    os._exit(code)
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * size, name
        return [json.loads((root / f"{name}.{rank}").read_text()) for rank in range(size)]

    def cut(mesh, scale):
        return {
            "rows": distribute_tensor(WIDE * scale, mesh, [Shard(0)]),
            "columns": distribute_tensor(WIDE * scale, mesh, [Shard(1)]),
            "middle": distribute_tensor(DEEP * int(scale), mesh, [Shard(1)]),
            "copies": distribute_tensor(WIDE * scale, mesh, [Replicate()]),
            "plain": SHARED * scale,
        }

    def whole(scale):
        return {"rows": WIDE * scale, "columns": WIDE * scale, "middle": DEEP * int(scale), "copies": WIDE * scale,
                "plain": SHARED * scale}

    def local(value):
        return value.to_local() if isinstance(value, DTensor) else value

    def same(state, wanted):
        return all(torch.equal(local(state[name]), local(wanted[name])) for name in wanted)

    def save(rank, mesh):
        store = CheckpointStore(root / f"by-{mesh.size()}")
        store.save(4, {"model": cut(mesh, 1.0), f"stage {rank}": {"w": torch.full((3,), float(rank))}}, {"a": 1}).wait()
        return store.steps()

    def load(source):
        def loading(rank, mesh):
            state = {"model": cut(mesh, 0.0)}
            loaded = CheckpointStore(root / source).load(state)
            return [loaded.step, dict(loaded.extra), same(state["model"], cut(mesh, 1.0))]
        return loading

    def alone(source, stages):
        state = {"model": whole(0.0), **{f"stage {rank}": {"w": torch.zeros(3)} for rank in range(stages)}}
        loaded = CheckpointStore(root / source).load(state)
        right = all(bool((state[f"stage {rank}"]["w"] == rank).all()) for rank in range(stages))
        return [loaded.step, same(state["model"], whole(1.0)), right]

    def fail_on_one(rank, mesh):
        store = CheckpointStore(root / "by-2")
        if rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        state = {"model": distribute_tensor(torch.ones(20_000), mesh, [Shard(0)])}
        try:
            store.save(5, state, {}).wait()
        except FailedError as error:
            return [str(error), store.steps()]

    def damaged(rank, mesh):
        dist.barrier()
        if rank == 0:
            victim = next((root / "by-3").glob("step-*/__2_0.distcp"))
            content = bytearray(victim.read_bytes())
            content[len(content) // 2] ^= 1
            victim.write_bytes(content)
        dist.barrier()
        try:
            CheckpointStore(root / "by-3").load({"model": cut(mesh, 0.0)})
        except FailedError as error:
            return str(error)

    def tensors(source):
        ((_, manifest),) = CheckpointStore(root / source).entries()
        return {name: entry.digest for name, entry in manifest.tensors.items() if name.startswith("model.")}

    alone_store = CheckpointStore(root / "by-none")
    alone_store.save(4, {"model": whole(1.0)}, {"a": 1}).wait()
    found = {
        "save 2": world(2, save), "save 3": world(3, save),
        "2 to 2": world(2, load("by-2")), "2 to 3": world(3, load("by-2")),
        "3 to 2": world(2, load("by-3")), "none to 2": world(2, load("by-none")),
        "2 to none": alone("by-2", 2), "3 to none": alone("by-3", 3), "none to none": alone("by-none", 0),
        "digests": [tensors(source) for source in ("by-none", "by-2", "by-3")],
        "of wide": tensor_digests.tensor_digest(WIDE),
        "fail": world(2, fail_on_one), "damaged": world(2, damaged),
        "left": [path.name for path in (root / "by-2").glob(".*.part")],
    }
    print(json.dumps(found))
"""


def worlds(folder: Path) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WORLDS), str(folder)], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.slow
def test_ranks_write_together_and_any_number_of_them_reads(tmp_path: Path):
    found = worlds(tmp_path)
    assert found["save 2"] == [[4]] * 2
    assert found["save 3"] == [[4]] * 3
    for name, ranks in (("2 to 2", 2), ("2 to 3", 3), ("3 to 2", 2), ("none to 2", 2)):
        assert found[name] == [[4, {"a": 1}, True]] * ranks, name
    for name in ("2 to none", "3 to none", "none to none"):
        assert found[name] == [4, True, True], name

    first, *others = found["digests"]
    assert len(first) == 5
    assert all(other == first for other in others), "digests must not depend on the sharding"
    assert first["model.rows"] == first["model.columns"] == first["model.copies"] == found["of wide"]

    for message, steps in found["fail"]:
        assert "by-2: the checkpoint of step 5 was not written: a file would be larger" in message
        assert message.endswith("(on rank 1)")
        assert steps == [4]
    assert found["left"] == []

    for message in found["damaged"]:
        assert "holds no complete checkpoint" in message
        assert "__2_0.distcp is damaged" in message


# As in the test of one process: audit events count file operations, and one rank kills all of them at a seeded one.
POWER_CUTS = """
    import json, os, random, signal, sys
    from datetime import timedelta
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from weft.training.checkpoint.store import CheckpointStore

    # DTensor and its friends import much at their first use: once here instead of once in every child.
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    distribute_tensor(torch.ones(2), init_device_mesh("cpu", (1,)), [Shard(0)])
    dist.destroy_process_group()

    WATCHED = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree")
    root, cuts = Path(sys.argv[1]), int(sys.argv[2])

    def rank_of_two(rank, folder, cutter, cut_at):
        dist.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=60),
                                store=dist.FileStore(str(folder) + ".store", 2))
        mesh = init_device_mesh("cpu", (2,))
        store, seen = CheckpointStore(folder, keep=2), 0

        def save(step):
            state = {"w": distribute_tensor(torch.full((9,), float(step)), mesh, [Shard(0)])}
            store.save(step, state, {"step": step}).wait()

        save(1)
        save(2)
        dist.barrier()

        def watch(event, arguments):
            nonlocal seen
            if event in WATCHED and rank == cutter:
                seen += 1
                if seen == cut_at:
                    os.killpg(0, signal.SIGKILL)

        sys.addaudithook(watch)
        save(3)
        save(4)
        Path(f"{folder}.{rank}").write_text(str(seen))
        dist.barrier()
        os._exit(0)

    def world(folder, cutter, cut_at):
        leader = os.fork()
        if leader == 0:
            os.setpgid(0, 0)
            child = os.fork()
            rank_of_two(0 if child else 1, folder, cutter, cut_at)
        return os.waitpid(leader, 0)[1]

    found = []
    events = []
    for cutter in (0, 1):
        whole = root / f"whole-{cutter}"
        assert world(whole, cutter, 0) == 0
        events.append(int(Path(f"{whole}.{cutter}").read_text()))
    for seed in range(cuts):
        chance = random.Random(seed)
        cutter = chance.randrange(2)
        folder = root / str(seed)
        status = world(folder, cutter, chance.randrange(1, events[cutter] + 1))
        state = {"w": torch.zeros(9)}
        loaded = CheckpointStore(folder).load(state)
        found.append([status, loaded.step, len(loaded.skipped), bool((state["w"] == float(loaded.step)).all())])
    print(json.dumps([events, found]))
"""


@pytest.mark.slow
def test_a_power_cut_of_all_ranks_leaves_a_whole_newest_checkpoint(tmp_path: Path):
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(POWER_CUTS), str(tmp_path), "20"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    events, found = json.loads(ended.stdout)
    assert min(events) > 4
    for status, step, skipped, right in found:
        assert status == signal.SIGKILL
        assert step in (2, 3, 4)
        assert skipped == 0
        assert right
    assert {step for _, step, *_ in found} >= {2, 3}, "the cuts were not spread over both saves"
