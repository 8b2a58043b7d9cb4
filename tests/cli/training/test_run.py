"""`weft run` around scripts that know nothing of weft."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, folder, victim = dist.get_rank(), sys.argv[1], sys.argv[2]
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer, start, path = torch.optim.AdamW(model.parameters(), lr=0.1), 0, f"{folder}/latest.pt"
if os.path.exists(path):
    saved = torch.load(path)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["step"]
for step in range(start, 12):
    torch.manual_seed(step * 10 + rank)
    optimizer.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    if rank == 0 and step % 3 == 2:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, path)
    if str(rank) == victim and step == 7 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        while not os.path.exists(f"{folder}/../weft-run/guard/copies/latest.pt"):
            time.sleep(0.1)
        open(path, "r+b").truncate(100)
        os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
if rank == 0:
    print("ended", start, float(sum(one.detach().double().sum() for one in model.parameters())))
dist.destroy_process_group()
"""


def ran(folder: Path, victim: str) -> tuple[str, str]:
    """Run the script in a folder of its own, and return where it began at last and what it ended with."""
    (folder / "ckpt").mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "weft", "run", "--health", "none", "--checkpoints", "ckpt", "--"]
    launch = ["torchrun", "--nproc-per-node", "2", "train.py", "ckpt", victim]
    done = subprocess.run([*command, *launch], cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = re.search(r"ended (\d+) (\S+)", done.stdout)
    assert found is not None, done.stdout
    assert victim == "nobody" or ("put back" in done.stderr and "killed" in done.stdout)
    return found[1], found[2]


@pytest.mark.slow
def test_an_unmodified_script_survives_a_kill_and_a_torn_checkpoint(tmp_path: Path):
    calm, broken = ran(tmp_path / "calm", "nobody"), ran(tmp_path / "broken", "1")
    assert calm[0] == "0"
    assert broken[0] in ("3", "6")
    assert calm[1] == broken[1]
