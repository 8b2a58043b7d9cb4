import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from weft.core.errors import FailedError, UsageError
from weft.training.checkpoint.manifest import MANIFEST
from weft.training.checkpoint.store import CheckpointStore


def state_of(value: float) -> dict[str, Any]:
    return {
        "model": {"weight": torch.full((4, 3), value), "bias": torch.full((3,), value, dtype=torch.bfloat16)},
        "moments": [torch.full((2,), value)],
        "count": int(value),
    }


def saved(folder: Path, *steps: int, keep: int = 2) -> CheckpointStore:
    store = CheckpointStore(folder, keep)
    for step in steps:
        store.save(step, state_of(float(step)), {"step": step}).wait()
    return store


def assert_loads(store: CheckpointStore, step: int) -> None:
    state = state_of(-1.0)
    loaded = store.load(state)
    assert loaded.step == step
    assert loaded.extra == {"step": step}
    assert_is(state, float(step))


def assert_is(state: dict[str, Any], value: float) -> None:
    wanted = state_of(value)
    assert torch.equal(state["model"]["weight"], wanted["model"]["weight"])
    assert torch.equal(state["model"]["bias"], wanted["model"]["bias"])
    assert torch.equal(state["moments"][0], wanted["moments"][0])
    assert state["count"] == wanted["count"]


def files_of(store: CheckpointStore, step: int) -> list[Path]:
    (path,) = (path for path, manifest in store.entries() if manifest.step == step)
    files = sorted(path.iterdir())
    assert {file.name for file in files} == {"__0_0.distcp", ".metadata", MANIFEST}
    return files


def test_what_was_saved_comes_back_bit_for_bit(tmp_path: Path):
    assert_loads(saved(tmp_path, 3), 3)


def test_a_save_keeps_the_state_as_it_was_when_it_began(tmp_path: Path):
    store, state = CheckpointStore(tmp_path), state_of(5.0)
    handle = store.save(5, state, {"step": 5})
    state["model"]["weight"].zero_()
    handle.wait()
    assert handle.done
    assert_loads(store, 5)


def test_modules_and_optimizers_are_saved_by_their_own_words(tmp_path: Path):
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    store = CheckpointStore(tmp_path)
    store.save(1, {"model": model, "optimizer": optimizer}, {}).wait()
    before, moment = model.weight.detach().clone(), optimizer.state[model.weight]["exp_avg"].clone()
    optimizer.step()
    assert not torch.equal(model.weight, before)
    store.load({"model": model, "optimizer": optimizer})
    assert torch.equal(model.weight, before)
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], moment)


def test_only_the_newest_complete_ones_are_kept(tmp_path: Path):
    assert saved(tmp_path, 1, 2, 3, keep=2).steps() == [3, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".writer", "step-00000002", "step-00000003"]


def test_saving_a_step_again_supersedes_the_first_one(tmp_path: Path):
    store = saved(tmp_path, 1, 2)
    store.save(2, state_of(7.0), {"step": 2}).wait()
    state = state_of(0.0)
    store.load(state)
    assert_is(state, 7.0)


def test_the_newest_is_the_last_written_not_the_highest_step(tmp_path: Path):
    store = saved(tmp_path, 10, 20)
    store.load(state_of(0.0), step=10)
    store.save(15, state_of(15.0), {"step": 15}).wait()
    assert store.steps() == [15, 20]
    assert_loads(store, 15)


def test_a_step_can_be_asked_for(tmp_path: Path):
    store, state = saved(tmp_path, 1, 2), state_of(0.0)
    assert store.load(state, step=1).step == 1
    assert_is(state, 1.0)
    with pytest.raises(FailedError, match="no complete checkpoint of step 9; there are steps 2, 1"):
        store.load(state, step=9)


def test_an_empty_store_says_so(tmp_path: Path):
    store = CheckpointStore(tmp_path / "none")
    assert store.steps() == []
    with pytest.raises(FailedError, match="none holds no complete checkpoint"):
        store.load(state_of(0.0))


def test_keeping_none_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="at least one"):
        CheckpointStore(tmp_path, keep=0)


def test_values_that_json_cannot_hold_are_refused_at_once(tmp_path: Path):
    with pytest.raises(TypeError):
        CheckpointStore(tmp_path).save(1, state_of(1.0), {"bad": object()})


def truncated(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def emptied(file: Path) -> None:
    os.truncate(file, 0)


def lengthened(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) * 2 // 3] ^= 0x10
    file.write_bytes(content)


def removed(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("damage", [truncated, emptied, lengthened, flipped, removed])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_damage_to_any_file_falls_back_to_the_one_before_and_is_named(
    tmp_path: Path, damage: Callable[[Path], None], which: int
):
    store = saved(tmp_path, 1, 2)
    file = files_of(store, 2)[which]
    damage(file)
    state = state_of(-1.0)
    loaded = store.load(state)
    assert loaded.step == 1
    assert_is(state, 1.0)
    (skipped,) = loaded.skipped
    assert skipped.path.name == "step-00000002"
    wanted = "manifest" if file.name == MANIFEST else file.name
    assert wanted in str(skipped)


def test_every_byte_of_the_manifest_counts(tmp_path: Path):
    store = saved(tmp_path, 1)
    manifest = files_of(store, 1)[1]
    assert manifest.name == MANIFEST
    whole = manifest.read_bytes()
    for place in range(len(whole)):
        manifest.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert store.steps() == []
        manifest.write_bytes(whole[:place])
        assert store.steps() == []


def test_a_damaged_one_does_not_count_as_kept(tmp_path: Path):
    store = saved(tmp_path, 1, 2, keep=2)
    flipped(files_of(store, 2)[2])
    assert store.load(state_of(0.0)).step == 1
    store.save(2, state_of(2.0), {"step": 2}).wait()
    assert store.steps() == [2, 1]
    assert store.load(state_of(0.0)).skipped == ()


def test_when_all_are_damaged_every_one_is_named(tmp_path: Path):
    store = saved(tmp_path, 1, 2)
    removed(files_of(store, 1)[2])
    flipped(files_of(store, 2)[1])
    with pytest.raises(FailedError) as caught:
        store.load(state_of(0.0))
    assert "step-00000001 is not used: __0_0.distcp is missing" in str(caught.value)
    assert "step-00000002 is not used: the manifest" in str(caught.value)


def test_another_shape_is_refused_in_words(tmp_path: Path):
    store = saved(tmp_path, 1)
    with pytest.raises(FailedError, match="whole but does not fit"):
        store.load({"model": {"weight": torch.zeros(5, 5)}})
    with pytest.raises(FailedError, match=r"whole but does not fit.*other"):
        store.load({"model": {"other": torch.zeros(4, 3)}})


def test_what_dead_writers_left_is_removed(tmp_path: Path):
    store = saved(tmp_path, 1)
    stale = tmp_path / ".step-00000002.0badcafe.part"
    shutil.copytree(tmp_path / "step-00000001", stale)
    assert store.steps() == [1]
    store.save(2, state_of(2.0), {"step": 2}).wait()
    assert not stale.exists()
    assert store.steps() == [2, 1]


def run_python(
    text: str, *arguments: object, preexec: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=preexec,
    )


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))


FULL_DISK = """
    import sys, torch
    from weft.core.errors import FailedError
    from weft.training.checkpoint.store import CheckpointStore
    store = CheckpointStore(sys.argv[1], keep=1)
    store.save(1, {"w": torch.ones(10)}, {}).wait()
    handle = store.save(2, {"w": torch.ones(int(sys.argv[2]))}, {})
    try:
        handle.wait()
    except FailedError as error:
        print(error)
    state = {"w": torch.zeros(10)}
    print(store.load(state).step, state["w"].sum().item(), store.steps())
    store.save(3, {"w": torch.ones(10)}, {}).wait()
    print(store.steps())
"""


@pytest.mark.slow
def test_a_file_that_may_not_grow_is_a_clear_failure_and_the_old_one_stays(tmp_path: Path):
    ended = run_python(FULL_DISK, tmp_path, 100_000, preexec=limit_files)
    assert ended.returncode == 0, ended.stderr
    message, loaded, after = ended.stdout.splitlines()
    assert message.startswith(f"{tmp_path}: the checkpoint of step 2 was not written: a file would be larger")
    assert loaded == "1 10.0 [1]"
    assert after == "[3]"
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.root
def test_a_full_disk_is_a_clear_failure_and_the_old_one_stays(tmp_path: Path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path], check=True)
    try:
        ended = run_python(FULL_DISK, tmp_path, 1_000_000)
        assert ended.returncode == 0, ended.stderr
        message, loaded, after = ended.stdout.splitlines()
        assert message == f"{tmp_path}: the checkpoint of step 2 was not written: the disk is full"
        assert loaded == "1 10.0 [1]"
        assert after == "[3]"
        assert not list(tmp_path.glob(".*.part"))
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.root
def test_a_read_only_disk_is_a_clear_failure_and_can_still_be_loaded(tmp_path: Path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=True)
    try:
        store = saved(tmp_path, 1)
        subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
        with pytest.raises(FailedError, match="step 2 was not written: the disk is read-only"):
            store.save(2, state_of(2.0), {"step": 2}).wait()
        assert_loads(store, 1)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_folder_that_cannot_be_made_is_a_clear_failure(tmp_path: Path):
    (tmp_path / "file").write_text("")
    handle = CheckpointStore(tmp_path / "file" / "store").save(1, state_of(1.0), {})
    with pytest.raises(FailedError, match="step 1 was not written: Not a directory"):
        handle.wait()
    assert handle.error is not None


def test_failures_are_told_once_to_those_who_keep_no_handles(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with CheckpointStore(tmp_path / "file" / "store") as store:
        store.save(1, state_of(1.0), {})
        store.save(2, state_of(1.0), {})
        store.drain()
        assert [str(error).partition(" was not")[0][-6:] for error in store.failures()] == ["step 1", "step 2"]
        assert store.failures() == []


# Every file operation of the writer raises an audit event; the child kills itself at the n-th one, n from the seed.
POWER_CUTS = """
    import json, os, random, signal, sys
    from pathlib import Path
    import torch
    from weft.training.checkpoint.store import CheckpointStore

    WATCHED = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree")
    root, cuts = Path(sys.argv[1]), int(sys.argv[2])

    def child(folder, cut_at):
        store, seen = CheckpointStore(folder, keep=2), 0
        for step in (1, 2):
            store.save(step, {"w": torch.full((8,), float(step))}, {"step": step}).wait()

        def watch(event, arguments):
            nonlocal seen
            if event in WATCHED:
                seen += 1
                if seen == cut_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        for step in (3, 4):
            store.save(step, {"w": torch.full((8,), float(step))}, {"step": step}).wait()
        (folder / "events").write_text(str(seen))
        os._exit(0)

    def outcome(folder, cut_at):
        pid = os.fork()
        if pid == 0:
            child(folder, cut_at)
        return os.waitpid(pid, 0)[1]

    assert outcome(root / "whole", 0) == 0
    events = int((root / "whole" / "events").read_text())
    found = []
    for seed in range(cuts):
        cut_at = random.Random(seed).randrange(1, events + 1)
        folder = root / str(seed)
        status = outcome(folder, cut_at)
        state = {"w": torch.zeros(8)}
        store = CheckpointStore(folder)
        left = len(list(folder.glob(".*.part")))
        loaded = store.load(state)
        right = bool((state["w"] == float(loaded.step)).all()) and loaded.extra == {"step": loaded.step}
        store.save(9, {"w": torch.full((8,), 9.0)}, {"step": 9}).wait()
        clean = not list(folder.glob(".*.part"))
        found.append([status, loaded.step, len(loaded.skipped), right, store.steps()[0], clean, left])
    print(json.dumps([events, found]))
"""


@pytest.mark.slow
def test_a_power_cut_at_any_point_leaves_a_whole_newest_checkpoint(tmp_path: Path):
    ended = run_python(POWER_CUTS, tmp_path, 20)
    assert ended.returncode == 0, ended.stderr
    events, found = json.loads(ended.stdout)
    assert events > 20
    for status, step, skipped, right, after, clean, _ in found:
        assert status == signal.SIGKILL
        assert step in (2, 3, 4)
        assert skipped == 0
        assert right
        assert after == 9
        assert clean
    assert {step for _, step, *_ in found} >= {2, 3}, "the cuts were not spread over both saves"
    assert any(left for *_, left in found), "no cut fell into a write"


def test_everything_is_on_the_disk_before_a_checkpoint_can_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    happened: list[str] = []
    sync, rename = os.fsync, Path.rename

    def synced(handle: int) -> None:
        happened.append(f"sync {Path(f'/proc/self/fd/{handle}').readlink().name}")
        sync(handle)

    def renamed(path: Path, target: Path) -> Path:
        happened.append(f"rename {Path(target).name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    saved(tmp_path / "store", 3)
    seen = happened.index("rename step-00000003")
    (part,) = {word for word in happened if word.startswith("sync .step-00000003")}
    for wanted in (f"sync {MANIFEST}", "sync __0_0.distcp", part):
        assert wanted in happened[:seen], happened
    # The folder's own entries come after the last file in it, and the store's after the rename.
    assert happened.index(part) > happened.index(f"sync {MANIFEST}")
    assert "sync store" in happened[seen:]
