"""Every command that reads a file, given every file that is made to harm it: one message, status 2, and no hang."""

import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.cli.main import main

Maker = Callable[[Path], object]


def text(content: str | bytes) -> Maker:
    encoded = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return lambda path: path.write_bytes(encoded)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def listening(path: Path) -> None:
    # The kernel takes no long names.
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


FILES: dict[str, Maker] = {
    "a folder": lambda path: path.mkdir(),
    "a named pipe": os.mkfifo,
    "a socket": listening,
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "itself": lambda path: path.symlink_to(path),
    "a tebibyte": sparse,
    "zeros": text(b"\0" * 1000),
    "chance": text(random.Random(1).randbytes(10_000)),
    "not UTF-8": text(b"name = '\xff\xfe'\n"),
    "5,000 digits in TOML": text(f"gpus = {'9' * 5000}\n"),
    "4,000 digits in TOML": text(f"gpus = {'9' * 4000}\nname = {'9' * 4000}\n"),
    "5,000 digits in JSON": text(f'{{"hidden_size": {"9" * 5000}}}'),
    "4,000 digits in JSON": text(f'{{"format": {"9" * 4000}, "hidden_size": {"9" * 4000}}}'),
    "an exponent": text('{"hidden_size": 1e999, "process": 1e400}'),
    "deep TOML": text(f"a = {'[' * 100_000}\n"),
    "not so deep TOML": text(f"a = {'[' * 400}{']' * 400}\n"),
    "deep keys": text(f"{'.'.join('a' * 20_000)} = 1\n"),
    "deep JSON": text("[" * 1_000_000),
    "not so deep JSON": text(f'{{"a": {"[" * 900}{"]" * 900}}}'),
    "deep objects": text('{"a":' * 200_000),
    "200,000 tables": text("".join(f"[t{number:x}]\n" for number in range(200_000))),
    "100,000 keys": text("".join(f"k{number:x}=1\n" for number in range(100_000))),
    "20,000 tables": text("".join(f"[t{number:x}]\n" for number in range(20_000))),
    "half a pair": text('{"name": "\\ud800", "a": "\\udfff"}'),
    "a long line": text("x" * 3_000_000),
    "many commas": text(("," * 1_000_000) + "\n"),
    "another's database": text(b"SQLite format 3\0" + bytes(84) + random.Random(2).randbytes(4000)),
    "an alias bomb": text(
        "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{'*a' + str(n - 1) + ', '}*a{n - 1}]\n" for n in range(1, 40))
    ),
}
"""Files by what they are."""


def config(folder: Path) -> list[str]:
    (folder / "job.toml").write_text('extends = "tiny-gpt"\n[model]\nconfig = "file"\n')
    return ["check", str(folder / "job.toml")]


def chakra(folder: Path) -> list[str]:
    (folder / "file").rename(folder / "trace.0.et")
    return ["simulate", "--chakra", str(folder / "trace"), "--site", "laptop"]


def kept(folder: Path) -> list[str]:
    (folder / "kept").mkdir()
    (folder / "file").rename(folder / "kept" / "small.json")
    return ["simulate", "allreduce-512k", "--keep", str(folder / "kept")]


def moved_to(name: str, *arguments: str) -> Callable[[Path], list[str]]:
    def command(folder: Path) -> list[str]:
        (folder / "home").mkdir()
        (folder / "home" / "token").write_text("t")
        (folder / "home" / "engine.json").write_text('{"host": "127.0.0.1", "port": 1}')
        (folder / "home" / name).unlink(missing_ok=True)
        if name == "state.sqlite":
            (folder / "home" / "engine.json").unlink()
        (folder / "file").rename(folder / "home" / name)
        return [*arguments, "--home", str(folder / "home")]

    return command


def given(*arguments: str) -> Callable[[Path], list[str]]:
    return lambda folder: [word.format(file=folder / "file", folder=folder) for word in arguments]


def renamed(name: str, *arguments: str) -> Callable[[Path], list[str]]:
    def command(folder: Path) -> list[str]:
        (folder / "file").rename(folder / name)
        return [word.format(file=folder / name, folder=folder) for word in arguments]

    return command


READERS: dict[str, Callable[[Path], list[str]]] = {
    "site": given("design", "{file}"),
    "job": given("plan", "{file}", "--site", "laptop"),
    "training": given("train", "{file}", "--folder", "{folder}/runs"),
    "scenario": given("simulate", "{file}"),
    "sweep": given("simulate", "sweep", "{file}", "--out", "{folder}/rows.parquet"),
    "faults": given("train", "tiny-gpt", "--faults", "{file}", "--folder", "{folder}/runs"),
    "any": given("check", "{file}"),
    "submission": renamed("job.toml", "submit", "{file}", "--no-snapshot", "--home", "{folder}/home"),
    "points": given("scale", "fit", "{file}"),
    "trace": given("cluster", "replay", "{file}"),
    "edges": given("fabric", "import", "{file}"),
    "matrix": given("simulate", "--matrix", "{file}", "--topology", "{file}"),
    "survey": given("nodes", "test", "prober", "--survey", "{file}"),
    "chakra": chakra,
    "config": config,
    "state": moved_to("state.sqlite", "cluster", "up"),
    "token": moved_to("token", "jobs"),
    "address": moved_to("engine.json", "jobs"),
    "kubeconfig": given("jobs", "--on", "."),
}
"""Commands by what they take the file for."""
FAILS = {"token", "address"}
"""Where the file is no mistake of the command line, and the status is 1."""


def cases() -> list[Any]:
    """Return every reader with every file; most are slow together, and each of both is among the others."""
    return [
        pytest.param(reader, file, marks=[] if (at - place) % 14 == 0 else pytest.mark.slow, id=f"{reader}-{file}")
        for at, reader in enumerate(READERS)
        for place, file in enumerate(FILES)
    ]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("reader", "file"), cases())
def test_a_hostile_file_is_named_in_one_message(
    reader: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "file"))
    FILES[file](tmp_path / "file")
    arguments = READERS[reader](tmp_path)
    status = main(arguments)
    out, errors = capfd.readouterr()
    assert status in ((1, 2) if reader in FAILS else (2,)), errors
    assert "Traceback" not in out + errors
    assert errors.startswith("error: ")
    assert len(errors) < 10_000
