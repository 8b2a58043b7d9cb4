"""A run that is kept and taken up again ends like one that was never cut off."""

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.netsim.scenarios import fault, scenario, small_site

from weft.core.errors import UsageError
from weft.netsim.kernel.checkpoint import Keep, _columns, load, save
from weft.netsim.run import prepare_engine
from weft.netsim.setup import set_up, transports_of
from weft.specs.scenario import TrafficSpec

# The first one compiles, which takes minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def worlds(seed: int = 1, hosts: int = 16):
    spec = scenario(
        TrafficSpec.model_construct(pattern="permutation", size=300_000),
        faults=(fault("switch-down", "t1-p0-i2", 4, 40), fault("slow", "link0-p0-i5", 6, amount=0.1)),
    )
    setup = set_up(spec, small_site(gpus=hosts), seed)
    (chosen,) = transports_of(setup, ("mrc",))
    return prepare_engine(setup, chosen)[1]


def ends(world):
    world.run()
    world.finish()
    times = [(each.began_ps, each.arrived_ps, each.acknowledged_ps) for each in world.board.progress]
    return times, world.records.trace, world.records.hops, world.slot, world.records.faults, world.records.counts


class EnoughError(Exception):
    """Raised to cut a run off."""


def test_a_run_taken_up_again_ends_the_same(tmp_path: Path):
    whole = ends(worlds())
    cut = worlds()
    calls = 0

    def stop(_world) -> None:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise EnoughError

    with pytest.raises(EnoughError):
        cut.run(stop)
    save(cut, tmp_path / "kept")
    again = worlds()
    load(again, tmp_path / "kept")
    assert 0 < again.slot < whole[3]
    assert ends(again) == whole


def test_room_that_was_never_used_takes_none_on_disk(tmp_path: Path):
    world = worlds()
    for shard in world.shards:
        # Room is taken as it is found: a process that has lived for a while finds what others have left there.
        shard.lost[:] = shard.seen[:] = 7
    save(world, tmp_path / "kept")
    files = [file.stat() for file in (tmp_path / "kept").iterdir()]
    reserved = sum(column.nbytes for column in _columns(world).values())
    assert sum(file.st_blocks * 512 for file in files) < reserved / 20


def test_a_damaged_run_is_named(tmp_path: Path):
    world = worlds()
    for name, content in (("small.json", b"garbage\n"), ("busy.npy", b"")):
        save(world, tmp_path / "kept")
        (tmp_path / "kept" / name).write_bytes(content)
        with pytest.raises(UsageError, match="damaged"):
            load(worlds(), tmp_path / "kept")


def test_a_full_disk_costs_the_copy_and_not_the_run(tmp_path: Path):
    world, keep = worlds(), Keep(tmp_path / "kept", every_s=0)
    keep.now_and_then(world)
    before = {file.name: file.read_bytes() for file in (tmp_path / "kept").iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        keep.now_and_then(world)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "nothing could be kept" in keep.trouble
    assert {file.name: file.read_bytes() for file in (tmp_path / "kept").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    keep.now_and_then(world)
    assert keep.trouble == ""


def test_another_scenario_is_refused(tmp_path: Path):
    save(worlds(), tmp_path / "kept")
    with pytest.raises(UsageError, match="another scenario"):
        load(worlds(hosts=8), tmp_path / "kept")


PERMUTATION = """
name = "kept"
site = "gb200-8x100g-131k"
gpus = 64
[traffic]
pattern = "permutation"
size = "256 MiB"
"""
"""About a second: it must not be over before it is interrupted."""


def simulated(*arguments: str, cut: bool = False) -> tuple[int, str, str]:
    """Run `weft simulate` in a process of its own, and interrupt it once it has begun where `cut` is set."""
    program = "from weft.cli.main import run; run()"
    with subprocess.Popen(
        [sys.executable, "-c", program, "simulate", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        if cut:
            series = Path(arguments[-1])
            while process.poll() is None and not (series.exists() and series.read_text()):
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
        out, errors = process.communicate()
        return process.returncode, out, errors


def test_an_interrupted_command_goes_on_where_it_was(tmp_path: Path):
    file, series = tmp_path / "kept.toml", tmp_path / "bins.jsonl"
    file.write_text(PERMUTATION)
    plain = (str(file), "--engine", "engine", "--json", "--series", str(series))
    kept = (str(file), "--engine", "engine", "--keep", str(tmp_path / "kept"), "--json", "--series", str(series))
    code, out, _ = simulated(*plain)
    assert code == 0
    whole, bins = json.loads(out), series.read_text()
    series.unlink()
    code, out, errors = simulated(*kept, cut=True)
    assert (code, json.loads(out)["interrupted"]) == (130, True)
    assert "the same command resumes from" in errors
    assert bins.startswith(series.read_text())
    code, _, errors = simulated(*kept, "--seed", "9")
    assert (code, "another scenario, seed" in errors) == (2, True)
    code, out, _ = simulated(*kept)
    assert code == 0
    assert json.loads(out)["hash"] == whole["hash"]
    assert series.read_text() == bins
    assert not (tmp_path / "kept").exists(), "what resumes a run is removed once it has ended"
