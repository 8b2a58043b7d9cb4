"""What is wrong is said in whole words: folded at the edge of a terminal of any width, one line in a pipe."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from weft.cli.main import main
from weft.engines.health.fault_data import shipped_catalogue


def said(words: list[str], columns: int, folder: Path) -> str:
    """Return what a command writes to standard error on a terminal of `columns` columns; nothing else is there."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", "HOME": str(folder)}
    code = "import sys; from weft.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *words]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=theirs) as running:
        os.close(theirs)
        heard = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:
                break
            heard += part
            if not part:
                break
    os.close(ours)
    assert running.returncode == 2
    return heard.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [40, 80])
def test_a_message_is_folded_at_the_edge_of_a_terminal(columns: int, tmp_path: Path):
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|.*\r(?!\n)", "", said(["design", "nope"], columns, tmp_path))
    lines = [line for line in shown.split("\n") if line]
    assert len(lines) > 1
    assert all(len(line) <= columns for line in lines)
    assert {"gb200-8x100g-131k,", "leaf-spine-400g"} <= set(shown.split())


def test_a_message_in_a_pipe_is_one_line(capsys: pytest.CaptureFixture[str]):
    assert main(["design", "nope[bold]"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "'nope[bold]'" in lines[0]


def test_faults_that_are_alike_are_told_together(capsys: pytest.CaptureFixture[str]):
    assert main(["health", "catalogue"]) == 0
    shown = capsys.readouterr().out
    entries = shipped_catalogue().entries
    words = set(shown.replace(",", " ").replace(":", " ").split())
    assert all(entry.name.rpartition(" ")[2] in words for entry in entries)
    rows = [line for line in shown.splitlines()[3:] if line]
    assert len(rows) == len({line.partition(": ")[0] for line in rows}) < len(entries) / 2
