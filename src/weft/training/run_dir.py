"""The folder of a run: what was asked, what happened step by step, and how it ended.

    runs/tiny-gpt-1/  job.toml  provenance.json  metrics.jsonl  eval.jsonl  sessions.jsonl  result.json  checkpoints/

`Run` writes one (rank 0 only, under a lock) and `Record` reads one, whoever is writing it. Lines are appended whole; a
line that a crash has cut off is not read, and is cut away when the run is resumed; `cut_after` also takes the lines of
steps that will be done again. Free of torch, so that `weft runs` starts quickly. Comparing is `compare`'s.
"""

import contextlib
import difflib
import fcntl
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from weft.core.errors import FailedError, UsageError
from weft.core.input_files import json_of, read_bytes
from weft.core.provenance import digest, provenance
from weft.core.toml import written
from weft.specs import JobSpec
from weft.training.checkpoint.manifest import CheckpointManifest, broken, complete
from weft.training.metrics.step_line import StepLine, finite
from weft.training.resumed_job import begun, gone_on, identity, notes

State = Literal["running", "finished", "interrupted"]

JOB, PROVENANCE, RESULT = "job.toml", "provenance.json", "result.json"
METRICS, EVALUATIONS, SESSIONS = "metrics.jsonl", "eval.jsonl", "sessions.jsonl"
INCIDENTS = "incidents.jsonl"
CHECKPOINTS = "checkpoints"
_LOCK = ".lock"
_TAIL_BYTES = 1 << 20
"""More than the longest line."""
_NUMBERED = re.compile(r"(?P<job>.+)-(?P<number>\d+)")
_MOST_RUNS = 1_000_000


class RunDir:
    """A run folder that this process writes."""

    def __init__(self, folder: Path, job: JobSpec, lock: int) -> None:
        """Hold `folder` of `job` by its open lock; `start` and `resume` make these."""
        self.folder = folder
        self.job = job
        """The job as it goes on: with what the run has kept of the one that it was begun with."""
        self.notes: list[str] = []
        """What people should know of how it differs from the job that was asked for."""
        self._lock = lock
        self._files: dict[str, int] = {}

    @classmethod
    def start(cls, root: Path, job: JobSpec, corpus: str | None = None, model: str | None = None) -> Self:
        """Make the next folder for `job` below `root` and hold it; `corpus` is the digest of what it learns from.

        `model` names what is trained where it is not the built-in model.
        """
        folder = _new_folder(root, job.name)
        run = cls(folder, begun(job), _lock(folder))
        asked = run.job.as_written()
        run.write(JOB, written(asked) + "\n")
        made = {**provenance(asked, job.seed).as_json(), "identity": digest(identity(job)), "corpus": corpus}
        made["model"] = model
        run.write(PROVENANCE, json.dumps(made, indent=2) + "\n")
        return run

    @classmethod
    def resume(cls, folder: Path, job: JobSpec, corpus: str | None = None) -> Self:
        """Hold an existing folder again, after making sure that it belongs to `job` and learns from the same data."""
        record = RunRecord(folder)
        made_by = record.job()
        kept, changed = gone_on(made_by, job, str(folder))
        before = record.provenance().get("corpus")
        if corpus is not None and before is not None and before != corpus:
            raise UsageError(
                f"the corpus {job.data.corpus!r} has changed since {folder} was begun ({corpus}, then {before}),"
                " so the run cannot go on exactly; put the data back, or start a new run without --resume"
            )
        run = cls(folder, kept, _lock(folder))
        run.notes = notes(made_by, kept, changed)
        try:
            (folder / RESULT).unlink(missing_ok=True)
            for path in (folder / METRICS, folder / EVALUATIONS, folder / SESSIONS):
                if path.exists():
                    os.truncate(path, max((end for _, end in _lines(path)), default=0))
        except OSError as error:
            run.close()
            raise FailedError(f"{folder} cannot be written: {error.strerror}") from None
        if changed:
            run.session({"changed": {one.key: [one.there, one.here] for one in changed}})
        run.write(JOB, written(kept.as_written()) + "\n")
        return run

    @property
    def checkpoints(self) -> Path:
        """Return the folder for checkpoints."""
        return self.folder / CHECKPOINTS

    def cut_after(self, step: int) -> dict[str, float]:
        """Forget every line of a later step; notes and returns the seconds by class that were spent on them in vain."""
        lost: dict[str, float] = {}
        joules = 0.0
        for name in (METRICS, EVALUATIONS):
            path = self.folder / name
            if not path.exists():
                continue
            keep = 0
            for line, end in _lines(path):
                if line["step"] <= step:
                    keep = end
                elif name == METRICS:
                    _add(lost, line["seconds"])
                    joules += line.get("energy_j", 0.0)
            os.truncate(path, keep)
        if lost:
            self.session({"cut_after": step, "lost": lost, "energy_j": joules})
        return lost

    def step(self, line: StepLine) -> None:
        """Write down one step."""
        self._append(METRICS, line.as_json())

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Write down an evaluation."""
        line = {"step": step, **{name: finite(value) for name, value in values.items()}}
        self._append(EVALUATIONS, line)

    def session(self, notes: Mapping[str, Any]) -> None:
        """Write down that work on this run began (`begins_at`: steps done) or ended (`ends_at`, `seconds` by class).

        Other keys, such as the number of ranks, are kept as they are.
        """
        self._append(SESSIONS, dict(notes))

    def sync(self) -> None:
        """Put all lines on the disk; call it before a checkpoint is completed, so that no line before it is lost."""
        for handle in self._files.values():
            os.fsync(handle)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write down how it ended; what is written here makes the run a finished one."""
        self.sync()
        self.write(RESULT, json.dumps(dict(result), indent=2, allow_nan=False) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a whole file; it appears complete or not at all."""
        part = self.folder / f".{name}.part"
        try:
            with part.open("w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(self.folder / name)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            raise FailedError(f"{self.folder / name} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Let go of the folder."""
        for handle in self._files.values():
            os.close(handle)
        self._files.clear()
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        encoded = json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            if name not in self._files:
                self._files[name] = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            # One write for one line: a crash can cut the last line off, but never mix two.
            done = os.write(self._files[name], encoded)
            if done != len(encoded):
                raise OSError(None, "the disk is full")  # noqa: TRY301 - a short write is the only sign of it
        except OSError as error:
            raise FailedError(f"{self.folder / name} cannot be written: {error.strerror}") from None


class RunRecord:
    """A run folder as it can be read, also while it is being written."""

    def __init__(self, folder: Path) -> None:
        """Read from `folder`."""
        self.folder = folder
        if not (folder / JOB).is_file():
            raise UsageError(f"{folder} is not a run folder: there is no {JOB} in it")

    @property
    def name(self) -> str:
        """Return the run's name."""
        return self.folder.name

    def job(self) -> JobSpec:
        """Return the job as it was run."""
        from weft.specs import load_job

        return load_job(str((self.folder / JOB).absolute()))

    def steps(self) -> list[dict[str, Any]]:
        """Return the lines of all steps."""
        return self._read(METRICS)

    def evaluations(self) -> list[dict[str, Any]]:
        """Return the lines of all evaluations."""
        return self._read(EVALUATIONS)

    def sessions(self) -> list[dict[str, Any]]:
        """Return the notes of all processes that worked on it."""
        return self._read(SESSIONS)

    def incidents(self) -> list[dict[str, Any]]:
        """Return everything that went wrong, in order, with what was done and what it cost."""
        return self._read(INCIDENTS)

    def result(self) -> dict[str, Any] | None:
        """Return how it ended, where it has."""
        return self._document(RESULT)

    def provenance(self) -> dict[str, Any]:
        """Return where it comes from."""
        return self._document(PROVENANCE) or {}

    def checkpoints(self) -> list[tuple[Path, CheckpointManifest]]:
        """Return its complete checkpoints, newest first."""
        return complete(self.folder / CHECKPOINTS)

    def state(self) -> State:
        """Return whether it is being written now, has ended, or was interrupted."""
        if _is_locked(self.folder):
            return "running"
        result = self.result()
        return "finished" if result is not None and result.get("state", "finished") == "finished" else "interrupted"

    def seconds(self) -> dict[str, float]:
        """Return seconds by class of the average rank over all sessions; they sum to the time worked on the run.

        A session that ended well has said what it spent; of one that was killed only its steps are known, and those
        that had to be done again count as "redo".
        """
        spent: dict[str, float] = {}
        lines, notes = self.steps(), self.sessions()
        has_sessions = any("begins_at" in note for note in notes)
        if not has_sessions and (result := self.result()) is not None and "seconds" in result:
            return dict(result["seconds"])
        begun: int | None = None if has_sessions else 0
        for note in notes:
            if "begins_at" in note:
                _add(spent, _spent_on_steps(lines, begun, note["begins_at"]))
                begun = note["begins_at"]
            elif "seconds" in note:
                _add(spent, note["seconds"])
                begun = None
            elif "lost" in note:
                _add(spent, {"redo": sum(note["lost"].values())})
        _add(spent, _spent_on_steps(lines, begun, None))
        return spent

    def energy_j(self) -> float:
        """Return the energy of all sessions in joules: of those that were killed, what their steps have noted."""
        spent, open_j, begun = 0.0, 0.0, None
        lines = self.steps()

        def of_steps(until: int | None) -> float:
            taken = (line for line in lines if begun is not None and line["step"] > begun)
            return sum(line.get("energy_j", 0.0) for line in taken if until is None or line["step"] <= until)

        for note in self.sessions():
            joules = note.get("energy_j") or 0.0
            if "begins_at" in note:
                spent += open_j + of_steps(note["begins_at"])
                open_j, begun = joules, note["begins_at"]
            elif "ends_at" in note:
                # What the session has measured as a whole has its steps in it.
                spent, open_j, begun = spent + joules, 0.0, None
            else:
                spent += joules
        return spent + open_j + of_steps(None)

    def _read(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        return [line for line, _ in _lines(path)] if path.exists() else []

    def _document(self, name: str) -> dict[str, Any] | None:
        path = self.folder / name
        try:
            return json_of(read_bytes(path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise FailedError(f"{path} cannot be read: {error}") from None


def last_step(path: Path) -> int:
    """Return the step of the last whole line of `path`, 0 where there is none; only the file's end is read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            whole = stream.read().rpartition(b"\n")[0]
        return int(json.loads(whole.rpartition(b"\n")[2])["step"])
    except (OSError, ValueError, KeyError):
        return 0


def records(root: Path) -> list[RunRecord]:
    """Return the runs below `root`, by job and number; raises where there is no such folder."""
    if not root.is_dir():
        raise UsageError(f"there is no folder {root}; name the folder of runs with --folder, or train something first")
    return [RunRecord(path) for path in sorted(root.iterdir(), key=_by_number) if (path / JOB).is_file()]


def stored_before(folder: Path) -> bool:
    """Return whether a run has ever completed a checkpoint, as far as anything of it, or a note about it, is left."""
    checkpoints = folder / CHECKPOINTS
    notes = _lines(folder / SESSIONS) if (folder / SESSIONS).exists() else []
    return bool(complete(checkpoints) or broken(checkpoints)) or any("stored" in note for note, _ in notes)


def find(root: Path, reference: str) -> RunRecord:
    """Return the run called `reference`: a name below `root`, or the path of a run folder."""
    if os.sep in reference or (Path(reference) / JOB).is_file():
        return RunRecord(Path(reference))
    known = [record.name for record in records(root)]
    if reference in known:
        return RunRecord(root / reference)
    near = difflib.get_close_matches(reference, known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known) or 'none'}"
    raise UsageError(f"there is no run called {reference!r} in {root}; {hint}")


def latest(root: Path, job: JobSpec) -> RunRecord | None:
    """Return the newest run of a job called like `job`, or nothing."""
    if not root.is_dir():
        return None
    mine = [one for one in records(root) if (m := _NUMBERED.fullmatch(one.name)) and m["job"] == job.name]
    return mine[-1] if mine else None


def resumed_model(record: RunRecord | None, asked: str | None) -> str | None:
    """Return which model goes on in `record`: the one that it was begun with; raises where another is `asked` for."""
    if record is None or "model" not in (made := record.provenance()):
        return asked
    known = made["model"]
    if asked not in (None, known):
        raise UsageError(
            f"{record.folder} was begun with {known or 'the built-in model'}, not with {asked}; resume it without"
            " --model, or start a new run without --resume"
        )
    return known


def _add(spent: dict[str, float], more: Mapping[str, float]) -> None:
    for kind, seconds in more.items():
        spent[kind] = spent.get(kind, 0.0) + seconds


def _spent_on_steps(lines: Sequence[Mapping[str, Any]], begun: int | None, until: int | None) -> dict[str, float]:
    """Return the seconds of the steps after `begun` and up to `until`; none where no session was open."""
    spent: dict[str, float] = {}
    for line in lines if begun is not None else ():
        if line["step"] > (begun or 0) and (until is None or line["step"] <= until):
            _add(spent, line["seconds"])
    return spent


def _lines(path: Path) -> Sequence[tuple[dict[str, Any], int]]:
    """Return the whole lines of a file, each with the place where it ends; what follows the first bad one is left."""
    found: list[tuple[dict[str, Any], int]] = []
    end = 0
    try:
        for raw in read_bytes(path).splitlines(keepends=True):
            if not raw.endswith(b"\n"):
                break
            line = json_of(raw)
            if not isinstance(line, dict):
                break
            end += len(raw)
            found.append((line, end))
    except ValueError:
        pass
    except OSError as error:
        raise FailedError(f"{path} cannot be read: {error.strerror}") from None
    return found


def check_root(root: Path) -> None:
    """Refuse a folder of runs that cannot be made or written into, before anything is started."""
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"runs cannot be kept in {root}: {error.strerror}; name another folder") from None
    if not os.access(root, os.W_OK):
        raise UsageError(f"runs cannot be kept in {root}: it cannot be written to; name another folder")


def _new_folder(root: Path, job: str) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True)
        taken = [int(m["number"]) for p in root.iterdir() if (m := _NUMBERED.fullmatch(p.name)) and m["job"] == job]
        for number in range(max(taken, default=0) + 1, _MOST_RUNS):
            with contextlib.suppress(FileExistsError):
                folder = root / f"{job}-{number}"
                folder.mkdir()
                return folder
    except OSError as error:
        raise FailedError(f"no run folder can be made in {root}: {error.strerror}") from None
    raise FailedError(f"{root} holds {_MOST_RUNS:,} runs of {job}; name another folder")


def _lock(folder: Path) -> int:
    try:
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise FailedError(f"{folder} cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UsageError(
            f"{folder} is in use: another training is writing there; wait for it or start a new run"
        ) from None
    return handle


def _is_locked(folder: Path) -> bool:
    try:
        handle = os.open(folder / _LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(handle)


def _by_number(path: Path) -> tuple[str, int]:
    match = _NUMBERED.fullmatch(path.name)
    return (match["job"], int(match["number"])) if match else (path.name, 0)
