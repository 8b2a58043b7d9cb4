"""One checkpoint folder, written and read by every rank through torch's distributed checkpoint (DCP).

DCP's planners and file format do the cutting, the removal of duplicates and the resharding; this module drives them
with three exchanges over a process group of its own, so that a failure on one rank is known to all, with its cause.
When a folder counts as complete, and which one is taken, is `checkpoint`'s business.
"""

import errno
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem, SavePlan, WriteItemType
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.stateful import Stateful
from typing_extensions import override

from weft.core.pickle_opcodes import StrangePickleError
from weft.training.checkpoint import tensor_digests
from weft.training.checkpoint.dcp_metadata import read_metadata
from weft.training.checkpoint.manifest import FileEntry, TensorEntry, file_entry

_METADATA = ".metadata"
_RANKS_NAMED = 5
_OTHERWISE = "reads back otherwise than it was written; the disk is faulty"

Value = TypeVar("Value")

Seal = Callable[[dict[str, FileEntry], dict[str, TensorEntry]], None]
"""Given all files and tensors of a checkpoint, makes it complete; rank 0 calls it."""


class ShardError(Exception):
    """A rank could not do its part; raised on every rank alike, with the reason in words."""


@dataclass(frozen=True)
class RankGroup:
    """Those who write and read together: the ranks of a process group, or one process alone."""

    group: dist.ProcessGroup | None
    """A group with a CPU backend that nothing else uses, or none for one process alone."""

    @property
    def rank(self) -> int:
        """Return this process's number in the group."""
        return 0 if self.group is None else dist.get_rank(self.group)

    @property
    def size(self) -> int:
        """Return how many there are."""
        return 1 if self.group is None else dist.get_world_size(self.group)

    def gather(self, value: Value) -> list[Value]:
        """Return everybody's `value`, in the order of ranks, on every rank."""
        if self.group is None:
            return [value]
        everybody: list[Any] = [None] * self.size
        dist.all_gather_object(everybody, value, group=self.group)
        return everybody

    def gather_first(self, value: Value) -> list[Value] | None:
        """Return everybody's `value` on rank 0, and nothing elsewhere."""
        if self.group is None:
            return [value]
        everybody: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, everybody, group=self.group, group_dst=0)
        return everybody

    def scatter(self, values: list[Value] | None) -> Value:
        """Return this rank's entry of the list that rank 0 gives."""
        if self.group is None:
            assert values is not None
            return values[0]
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, values, group=self.group, group_src=0)
        return mine[0]

    def from_first(self, value: Value | None) -> Value:
        """Return rank 0's `value` on every rank."""
        shared: list[Any] = [value]
        if self.group is not None:
            dist.broadcast_object_list(shared, group=self.group, group_src=0)
        return shared[0]


@dataclass(frozen=True)
class Failure:
    """Why a rank could not do its part, in words, since exceptions do not travel well."""

    reason: str
    """What went wrong."""


def attempt(action: Callable[[], Value]) -> Value | Failure:
    """Return what `action` returns, or why it failed; never raises, so that no rank leaves the others waiting."""
    try:
        return action()
    except ShardError as error:
        return Failure(str(error))
    except Exception as error:  # noqa: BLE001 - whatever it was, the other ranks must hear of it
        return Failure(reason_of(error))


def reason_of(error: BaseException) -> str:
    """Return the cause of `error` in words: the operating system's, where there is one below it."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and link.errno is not None:
            known = {
                errno.ENOSPC: "the disk is full",
                errno.EDQUOT: "the disk quota is used up",
                errno.EROFS: "the disk is read-only",
                errno.EFBIG: "a file would be larger than is allowed here (ulimit -f, or the file system's limit)",
            }
            return known.get(link.errno, f"{link.strerror} ({link.filename})" if link.filename else str(link.strerror))
        link = link.__cause__ or link.__context__
    first_line = (str(error).strip() or repr(error)).splitlines()[0]
    return f"{type(error).__name__}: {first_line}"


class Staging:
    """Copies a state into buffers on the CPU that are used again for the next one."""

    def __init__(self) -> None:
        """Take pinned memory where there is a GPU to copy from."""
        on_gpu = torch.cuda.is_available()
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=on_gpu,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=on_gpu,
            )
        )

    def copy(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of `state` on the CPU; what trains may go on as soon as this returns."""
        staged = self._stager.stage(plain(state))
        assert isinstance(staged, dict)
        return staged

    def close(self) -> None:
        """Give the buffers back."""
        self._stager.close()


def plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return `state` with modules and optimizers replaced by what their `state_dict` says."""
    return {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state.items()}


@dataclass(frozen=True)
class Written:
    """What one rank has added to a checkpoint."""

    results: list[Any]
    """DCP's notes on where each piece lies."""
    files: dict[str, FileEntry]
    """The files that this rank wrote."""
    sums: dict[str, int]
    """This rank's part of every tensor's digest."""


def write(folder: Path, state: dict[str, Any], ranks: RankGroup, seal: Seal) -> None:
    """Write `state` into `folder`, every rank its part, and let rank 0 call `seal` with all files and tensors.

    Collective: every rank of `ranks` calls it with the same folder. Every file is on the disk when `seal` is called.
    Raises `ShardError` on every rank where any of them failed, the sealing included.
    """
    planner, writer = DefaultSavePlanner(), FileSystemWriter(folder, sync_files=True, overwrite=False)
    first = ranks.rank == 0
    plans = ranks.gather_first(attempt(lambda: _local_plan(planner, writer, state, first=first)))
    joint = None if plans is None else attempt(lambda: _joint_plan(planner, writer, all_fine(plans)))
    shared: list[Any] | None = None
    if joint is not None:
        shared = [joint] * ranks.size if isinstance(joint, Failure) else joint[0]
    plan = ranks.scatter(shared)
    part = plan if isinstance(plan, Failure) else attempt(lambda: _write_part(folder, planner, writer, plan))
    parts = ranks.gather_first(part)
    closed: bool | Failure | None = None
    if parts is not None and joint is not None:
        closed = attempt(lambda: _close(folder, writer, fine(joint)[1], all_fine(parts), seal))
    fine(ranks.from_first(closed))


class _DataPlanner(DefaultLoadPlanner):
    """A planner that takes plain values from files, where torch's own would unpickle whatever they hold."""

    @override
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put a value that is no tensor where the state keeps it."""
        name = read_item.dest_index.fqn
        set_element(self.original_state_dict, self.mappings[name], torch.load(value, weights_only=True))


def read(folder: Path, state: dict[str, Any]) -> None:
    """Fill `state` in place from the checkpoint in `folder`; each rank reads what its own shards need, by itself."""
    target = plain(state)
    planner, reader = _DataPlanner(), FileSystemReader(folder)
    # Not `reader.read_metadata`, which unpickles: whoever wrote the folder would run code here.
    try:
        metadata = read_metadata(folder / _METADATA)
    except StrangePickleError as error:
        raise ShardError(f"{folder / _METADATA} is not read: {error}") from None
    planner.set_up_planner(target, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
    reader.read_data(plan, planner).wait()
    for key, value in state.items():
        if isinstance(value, Stateful):
            value.load_state_dict(target[key])
        else:
            state[key] = target[key]


def _local_plan(
    planner: DefaultSavePlanner, writer: FileSystemWriter, state: dict[str, Any], *, first: bool
) -> SavePlan:
    planner.set_up_planner(state, writer.storage_meta(), is_coordinator=first)
    writer.set_up_storage_writer(is_coordinator=first)
    return writer.prepare_local_plan(planner.create_local_plan())


def _joint_plan(
    planner: DefaultSavePlanner, writer: FileSystemWriter, plans: list[SavePlan]
) -> tuple[list[SavePlan], Any]:
    joint, metadata = planner.create_global_plan(plans)
    return writer.prepare_global_plan(joint), metadata


def _write_part(folder: Path, planner: DefaultSavePlanner, writer: FileSystemWriter, plan: SavePlan) -> Written:
    plan = planner.finish_plan(plan)
    results = writer.write_data(plan, planner).value()
    _read_back(folder, planner, plan, results)
    names = sorted({result.storage_data.relative_path for result in results})
    return Written(results, {name: file_entry(folder / name) for name in names}, _sums(planner, plan))


def _read_back(folder: Path, planner: DefaultSavePlanner, plan: SavePlan, results: Sequence[Any]) -> None:
    """Read every tensor from the files and hold it against memory: only what comes back counts as written."""
    places = {result.index: result.storage_data for result in results}
    for item in plan.items:
        place = places.get(item.index)
        if place is None:
            raise ShardError(f"{item.index.fqn} was not written")
        with (folder / place.relative_path).open("rb") as stream:
            stream.seek(place.offset)
            content = stream.read(place.length)
        wanted = planner.resolve_data(item)
        if not isinstance(wanted, torch.Tensor):
            if content != wanted.getvalue():
                raise ShardError(f"{item.index.fqn} {_OTHERWISE}")
            continue
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if found.dtype != wanted.dtype or found.shape != wanted.shape or not _same_bits(found, wanted.cpu()):
            raise ShardError(f"{item.index.fqn} {_OTHERWISE}")


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    flat = (tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(*flat)


def _sums(planner: DefaultSavePlanner, plan: SavePlan) -> dict[str, int]:
    """Return this rank's part of the digests of all tensors that it writes: duplicates are no longer in the plan."""
    sums: list[dict[str, int]] = []
    for item in plan.items:
        if item.type is WriteItemType.BYTE_IO or item.tensor_data is None:
            continue
        data = planner.resolve_data(item)
        assert isinstance(data, torch.Tensor)
        chunk = item.tensor_data.chunk
        sums.append(
            {item.index.fqn: tensor_digests.shard_digest(data, tuple(chunk.offsets), tuple(item.tensor_data.size))}
        )
    return tensor_digests.added(sums)


def _close(folder: Path, writer: FileSystemWriter, metadata: Any, parts: list[Written], seal: Seal) -> bool:
    writer.finish(metadata, [part.results for part in parts])
    files = {name: entry for part in parts for name, entry in part.files.items()}
    files[_METADATA] = file_entry(folder / _METADATA)
    sums = tensor_digests.added(part.sums for part in parts)
    described = metadata.state_dict_metadata
    held = {name for name, entry in described.items() if isinstance(entry, TensorStorageMetadata)}
    if lacking := sorted(held - sums.keys()):
        raise ShardError(f"{lacking[0]} belongs to the state and was not written by any rank")
    tensors = {
        name: TensorEntry(
            tuple(described[name].size),
            str(described[name].properties.dtype).removeprefix("torch."),
            tensor_digests.written(total),
        )
        for name, total in sums.items()
    }
    seal(files, tensors)
    return True


def all_fine(answers: "list[Value | Failure]") -> list[Value]:
    """Return the answers of all ranks, or raise with the reasons of those that failed."""
    reasons: dict[str, list[int]] = {}
    for rank, one in enumerate(answers):
        if isinstance(one, Failure):
            reasons.setdefault(one.reason, []).append(rank)
    if not reasons:
        return [one for one in answers if not isinstance(one, Failure)]
    if len(answers) == 1:
        raise ShardError(*reasons)
    raise ShardError("; ".join(f"{reason} (on {_named(ranks)})" for reason, ranks in reasons.items()))


def _named(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_RANKS_NAMED]))
    more = len(ranks) - _RANKS_NAMED
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}" + (f" and {more} more" if more > 0 else "")


def fine(answer: "Value | Failure") -> Value:
    """Return an answer, or raise where it is a failure."""
    if isinstance(answer, Failure):
        raise ShardError(answer.reason)
    return answer


def sync_folder(folder: Path) -> None:
    """Put the entries of `folder` itself on the disk, so that a rename in it survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
