import json
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
    from weft.training import digests
    from weft.training.checkpoint import Store

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
        store = Store(root / f"by-{mesh.size()}")
        store.save(4, {"model": cut(mesh, 1.0), f"stage {rank}": {"w": torch.full((3,), float(rank))}}, {"a": 1}).wait()
        return store.steps()

    def load(source):
        def loading(rank, mesh):
            state = {"model": cut(mesh, 0.0)}
            loaded = Store(root / source).load(state)
            return [loaded.step, dict(loaded.extra), same(state["model"], cut(mesh, 1.0))]
        return loading

    def alone(source, stages):
        state = {"model": whole(0.0), **{f"stage {rank}": {"w": torch.zeros(3)} for rank in range(stages)}}
        loaded = Store(root / source).load(state)
        right = all(bool((state[f"stage {rank}"]["w"] == rank).all()) for rank in range(stages))
        return [loaded.step, same(state["model"], whole(1.0)), right]

    def fail_on_one(rank, mesh):
        store = Store(root / "by-2")
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
            Store(root / "by-3").load({"model": cut(mesh, 0.0)})
        except FailedError as error:
            return str(error)

    def tensors(source):
        ((_, manifest),) = Store(root / source).entries()
        return {name: entry.digest for name, entry in manifest.tensors.items() if name.startswith("model.")}

    alone_store = Store(root / "by-none")
    alone_store.save(4, {"model": whole(1.0)}, {"a": 1}).wait()
    found = {
        "save 2": world(2, save), "save 3": world(3, save),
        "2 to 2": world(2, load("by-2")), "2 to 3": world(3, load("by-2")),
        "3 to 2": world(2, load("by-3")), "none to 2": world(2, load("by-none")),
        "2 to none": alone("by-2", 2), "3 to none": alone("by-3", 3), "none to none": alone("by-none", 0),
        "digests": [tensors(source) for source in ("by-none", "by-2", "by-3")],
        "of wide": digests.tensor_digest(WIDE),
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
