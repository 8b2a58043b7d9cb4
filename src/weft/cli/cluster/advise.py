"""`weft why JOB --from-slurm F`, `--from-kueue F`: advice on another scheduler's queue."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from weft.campaign.advice.foreign_queue import Advice, ForeignQueue, UnreadableQueueError, advise
from weft.campaign.advice.kueue_queue import kueue_queue
from weft.campaign.advice.slurm_queue import slurm_queue
from weft.campaign.advice.what_if import changed
from weft.cli.cluster.local import ago
from weft.cli.output import console, print_json, say
from weft.core.errors import UsageError
from weft.core.input_files import json_of, read_text

Read = Callable[[Iterable[Any]], ForeignQueue]
_LARGEST_BYTES = 2**30
_READERS: Mapping[str, Read] = {"slurm": slurm_queue, "kueue": kueue_queue}


def advise_from(scheduler: str, paths: tuple[Path, ...], job: str, what_if: tuple[str, ...], *, json: bool) -> None:
    """Print why a job of another scheduler's snapshot waits, when it starts, and what each change would do."""
    queue = _queue(scheduler, paths)
    found = advise(queue, job)
    others = [(change, _after(queue, job, change)) for change in what_if]
    if json:
        changes = [{"change": change, **_plain(other, queue)} for change, other in others if other is not None]
        left_out = dict(queue.left_out)
        print_json({"source": queue.source, **_plain(found, queue), "what_if": changes, "left_out": left_out})
        return
    console()
    why = found.why
    say(f"{why.job} is {why.state}: {why.text}")
    if why.state == "waiting":
        _say_waiting(found, queue)
    for change, other in others:
        # A colon after the change would make an emoji of what stands between two of them.
        say(f"with {change} " + ("it would be gone" if other is None else f"it starts {_start(other, queue)}"))
    say(f"by weft's rules on {found.nodes:,} nodes that it could use ({found.gpus:,} GPUs, {found.free_gpus:,} free)")
    if queue.left_out:
        say("left out: " + ", ".join(f"{count:,} {what}" for what, count in queue.left_out.most_common()))


def _say_waiting(found: Advice, queue: ForeignQueue) -> None:
    why = found.why
    if found.said:
        say(f"{queue.source} says: {found.said}")
    if why.before:
        more = why.position - len(why.before)
        say(f"before it: {', '.join(why.before)}" + (f" and {more:,} more" if more > 0 else ""))
    if why.holds:
        say(f"GPUs are held by: {', '.join(why.holds)}")
    say(f"it starts: {_start(found, queue)}")
    for hint in why.sooner:
        say(f"sooner if: {hint}")


def _after(queue: ForeignQueue, job: str, change: str) -> Advice | None:
    after = changed(queue, change)
    return None if all(each.name != queue.job(job).name for each in after.jobs) else advise(after, job)


def _start(found: Advice, queue: ForeignQueue) -> str:
    why, now = found.why, queue.now_ms
    if why.state != "waiting":
        return "not anew: it runs"
    if why.expected_ms is None:
        return f"unknown ({why.text})"
    if why.expected_ms <= now:
        return "at once"
    if why.early_ms is None or why.late_ms is None:
        return f"in {ago(why.expected_ms - now)}"
    return f"in about {ago(why.expected_ms - now)}; 80 % interval {ago(why.early_ms - now)} to {ago(why.late_ms - now)}"


def _plain(found: Advice, queue: ForeignQueue) -> dict[str, Any]:
    pool = {"nodes": found.nodes, "gpus": found.gpus, "free_gpus": found.free_gpus}
    return {**asdict(found.why), "now_ms": queue.now_ms, "said": found.said, "pool": pool}


def _queue(scheduler: str, paths: tuple[Path, ...]) -> ForeignQueue:
    files = list(_files(paths))
    names = ", ".join(str(path) for path in files)
    documents = [_document(path) for path in files]
    try:
        return _READERS[scheduler](documents)
    except UnreadableQueueError as error:
        raise UsageError(f"{names} is no snapshot of {scheduler.capitalize()}: {error}") from None


def _files(paths: tuple[Path, ...]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted(path.glob("*.json"))
        if not found:
            raise UsageError(f"{path} has no .json file")
        yield from found


def _document(path: Path) -> Any:
    try:
        return json_of(read_text(path, _LARGEST_BYTES))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"{path} is no JSON document: {reason}") from None
