import sys

import pytest

from weft.core.errors import UsageError
from weft.training.launch.torchrun import LaunchLine, is_torchrun, read_line


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("torchrun --nproc-per-node 3 a.py --lr 1", LaunchLine(3, (sys.executable, "-u", "a.py", "--lr", "1"))),
        ("torchrun --standalone --nproc_per_node=2 --max-restarts 5 -m a.b x",
         LaunchLine(2, (sys.executable, "-u", "-m", "a.b", "x"), 5)),
        ("torchrun --no-python ./a.sh -n 2", LaunchLine(1, ("./a.sh", "-n", "2"))),
        ("/opt/bin/torchrun --nnodes 1 a.py", LaunchLine(1, (sys.executable, "-u", "a.py"))),
        ("python3 -m torch.distributed.run --nproc-per-node=2 a.py", LaunchLine(2, (sys.executable, "-u", "a.py"))),
    ],
)  # fmt: skip
def test_lines_of_torchrun_are_understood(line: str, wanted: LaunchLine):
    assert is_torchrun(line.split())
    assert read_line(line.split()) == wanted


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torchrun --nnodes 2 a.py", "ranks of one machine"),
        ("torchrun --nnodes 1:4 a.py", "ranks of one machine"),
        ("torchrun --nproc-per-node many a.py", "many"),
        ("torchrun --no-such-option 1", "write a torchrun command"),
        ("torchrun", "write a torchrun command"),
    ],
)
def test_lines_that_mean_something_else_are_refused(line: str, said: str):
    with pytest.raises(UsageError, match=said):
        read_line(line.split())


@pytest.mark.parametrize("line", ["python a.py", "python -m a", "python -m", "python", "./torchrunner a.py"])
def test_other_commands_are_not_torchruns(line: str):
    assert not is_torchrun(line.split())
