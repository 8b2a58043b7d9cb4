"""Reads the `.metadata` file of torch's distributed checkpoints without unpickling it: data in, torch's records out.

torch writes that file as a pickle, and to unpickle is to run whatever the file says. Here its opcodes are read as a
description: a name that the file calls for is looked up in a table of the few records that such a file is made of, and
nothing is imported, called or restored on its word. The rest is refused. Files of tensors are `dcp`'s business.
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

_LARGEST_BYTES = 2**30
_MOST_PARTS = 64
"""Dimensions of a tensor, and keys on the way to a value."""
_METADATA = "torch.distributed.checkpoint.metadata"
_DTYPES = {str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}
_KNOWN = {
    *(f"{_METADATA}.{kind.__name__}" for kind in (
        BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex, StorageMeta, TensorProperties,
        TensorStorageMetadata,
    )),
    f"{_METADATA}._MEM_FORMAT_ENCODING", "torch.distributed.checkpoint.filesystem._StorageInfo", "torch.Size",
    "torch.serialization._get_layout", "pathlib.PosixPath", *_DTYPES,
}  # fmt: skip
"""Every name that a file may call for."""


class StrangeMetadataError(ValueError):
    """A file is not the metadata of a checkpoint, or asks for more than such a file may."""


@dataclass(slots=True)
class _Described:
    """An object as the file describes it: nothing of it exists."""

    name: str
    """The full name of what makes it."""
    given: tuple[Any, ...] = ()
    """What it is made of."""
    state: Any = None
    """What is put into it afterwards."""

    def values(self, name: str) -> dict[str, Any]:
        """Return the fields of a dataclass called `name`."""
        if self.name not in (name, f"{_METADATA}.{name}"):
            raise StrangeMetadataError(f"there is a {self.name} where a {name} belongs")
        return {_text(key): value for key, value in _pairs(self.state or _Pairs())}


@dataclass(slots=True, eq=False)
class _Pairs:
    """A dictionary as the file describes it; its keys may be descriptions."""

    items: list[tuple[Any, Any]] = field(default_factory=list)


def read_metadata(path: Path) -> Metadata:
    """Return what the metadata file at `path` describes; raises `StrangeMetadataError` for anything else in it."""
    if path.stat().st_size > _LARGEST_BYTES:
        raise StrangeMetadataError(f"it is larger than {_LARGEST_BYTES >> 30} GiB")
    try:
        found = _Opcodes().read(path.read_bytes())
        return _metadata(found)
    except StrangeMetadataError:
        raise
    except (ValueError, LookupError, AttributeError, TypeError, OverflowError, MemoryError) as error:
        raise StrangeMetadataError(f"it is damaged ({type(error).__name__})") from None


class _Opcodes:
    """A stack machine for the opcodes that descriptions of plain records are written in."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def read(self, content: bytes) -> Any:
        """Return what `content` describes."""
        for opcode, argument, _ in pickletools.genops(content):
            name = opcode.name
            if name == "STOP":
                return self._stack.pop()
            if name in _LITERALS:
                self._stack.append(_LITERALS[name](argument))
            else:
                action = _ACTIONS.get(name)
                if action is None:
                    raise StrangeMetadataError(f"it holds the pickle instruction {name}, which no such file needs")
                action(self, argument)
        raise StrangeMetadataError("it ends too early")

    def _since_mark(self) -> list[Any]:
        first = self._marks.pop()
        found = self._stack[first:]
        del self._stack[first:]
        return found

    def mark(self, _: Any) -> None:
        """Remember where a group of values begins."""
        self._marks.append(len(self._stack))

    def memoize(self, _: Any) -> None:
        """Give the newest value a number."""
        self._memo[len(self._memo)] = self._stack[-1]

    def recall(self, number: int) -> None:
        """Give a numbered value again."""
        self._stack.append(self._memo[number])

    def group(self, _: Any) -> None:
        """Make a tuple of everything since the mark."""
        self._stack.append(tuple(self._since_mark()))

    def look_up(self, _: Any) -> None:
        """Take a name of the table."""
        name, module = self._stack.pop(), self._stack.pop()
        whole = f"{module}.{name}"
        if whole not in _KNOWN:
            raise StrangeMetadataError(f"it asks for {whole[:80]!r}, which is no part of a checkpoint's metadata")
        self._stack.append(_Described(whole))

    def describe(self, _: Any) -> None:
        """Describe an object: its kind and what it is made of."""
        given, kind = self._stack.pop(), self._stack.pop()
        if not isinstance(given, tuple) or not isinstance(kind, _Described) or kind.given or kind.state is not None:
            raise StrangeMetadataError("it calls something that is no record")
        self._stack.append(_Described(kind.name, given))

    def put_state(self, _: Any) -> None:
        """Note what is put into the newest object."""
        state, made = self._stack.pop(), self._stack[-1]
        if not isinstance(made, _Described):
            raise StrangeMetadataError("it restores something that is no record")
        made.state = state

    def append(self, _: Any) -> None:
        """Append one value to a list."""
        value = self._stack.pop()
        _listed(self._stack[-1]).append(value)

    def extend(self, _: Any) -> None:
        """Append everything since the mark to a list."""
        values = self._since_mark()
        _listed(self._stack[-1]).extend(values)

    def set_one(self, _: Any) -> None:
        """Put one pair into a dictionary."""
        value, key = self._stack.pop(), self._stack.pop()
        _pairs(self._stack[-1]).append((key, value))

    def set_many(self, _: Any) -> None:
        """Put the pairs since the mark into a dictionary."""
        values = self._since_mark()
        _pairs(self._stack[-1]).extend(zip(values[::2], values[1::2], strict=True))

    def last(self, count: int) -> None:
        """Make a tuple of the newest values."""
        if len(self._stack) < count:
            raise StrangeMetadataError("it takes values that are not there")
        found = tuple(self._stack[-count:])
        del self._stack[-count:]
        self._stack.append(found)


def _itself(argument: Any) -> Any:
    return argument


_LITERALS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("SHORT_BINUNICODE", "BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"), _itself),
    "NONE": lambda _: None, "NEWTRUE": lambda _: True, "NEWFALSE": lambda _: False,
    "EMPTY_TUPLE": lambda _: (), "EMPTY_LIST": lambda _: [], "EMPTY_DICT": lambda _: _Pairs(),
}  # fmt: skip
_ACTIONS: dict[str, Callable[[_Opcodes, Any], None]] = {
    "PROTO": lambda *_: None, "FRAME": lambda *_: None, "MARK": _Opcodes.mark, "MEMOIZE": _Opcodes.memoize,
    "BINGET": _Opcodes.recall, "LONG_BINGET": _Opcodes.recall, "TUPLE": _Opcodes.group,
    "TUPLE1": lambda reader, _: reader.last(1), "TUPLE2": lambda reader, _: reader.last(2),
    "TUPLE3": lambda reader, _: reader.last(3), "STACK_GLOBAL": _Opcodes.look_up, "NEWOBJ": _Opcodes.describe,
    "REDUCE": _Opcodes.describe, "BUILD": _Opcodes.put_state, "APPEND": _Opcodes.append, "APPENDS": _Opcodes.extend,
    "SETITEM": _Opcodes.set_one, "SETITEMS": _Opcodes.set_many,
}  # fmt: skip


# From descriptions to torch's records: every field is looked at, so that nothing but data comes through.


def _metadata(found: Any) -> Metadata:
    values = _described(found).values("Metadata")
    chunks: dict[int, list[ChunkStorageMetadata]] = {}
    tensors = {_text(key): _storage(value, chunks) for key, value in _pairs(values["state_dict_metadata"])}
    paths = {_text(key): tuple(map(_step, _tuple(value))) for key, value in _pairs(values["planner_data"])}
    stored = {_index(key): _place(value) for key, value in _pairs(values["storage_data"])}
    version = values.get("version")
    return Metadata(tensors, paths, stored, StorageMeta(), None if version is None else _text(version))


def _storage(found: Any, chunks: dict[int, list[ChunkStorageMetadata]]) -> TensorStorageMetadata | BytesStorageMetadata:
    made = _described(found)
    if made.name == f"{_METADATA}.BytesStorageMetadata":
        return BytesStorageMetadata()
    values = made.values("TensorStorageMetadata")
    listed = _listed(values["chunks"])
    if id(listed) not in chunks:
        chunks[id(listed)] = [_chunk(each) for each in listed]
    return TensorStorageMetadata(_properties(values["properties"]), _size(values["size"]), chunks[id(listed)])


def _chunk(found: Any) -> ChunkStorageMetadata:
    values = _described(found).values("ChunkStorageMetadata")
    return ChunkStorageMetadata(_size(values["offsets"]), _size(values["sizes"]))


def _properties(found: Any) -> TensorProperties:
    made = _described(found)
    if made.name != f"{_METADATA}.TensorProperties":
        raise StrangeMetadataError(f"there is a {made.name} where a TensorProperties belongs")
    dtype, _layout, needs_gradient, _format, pinned = _tuple(made.state)
    # Layout and memory format are deprecated in torch; every tensor that DCP writes is dense and contiguous.
    return TensorProperties(
        dtype=_DTYPES[_described(dtype).name], requires_grad=bool(needs_gradient), pin_memory=bool(pinned)
    )


def _index(found: Any) -> MetadataIndex:
    values = _described(found).values("MetadataIndex")
    offset, index = values.get("offset"), values.get("index")
    return MetadataIndex(
        _text(values["fqn"]), None if offset is None else _size(offset), None if index is None else _whole(index)
    )


def _place(found: Any) -> _StorageInfo:
    values = _described(found).values("torch.distributed.checkpoint.filesystem._StorageInfo")
    name = _text(values["relative_path"])
    if name in ("", "..") or Path(name).name != name:
        raise StrangeMetadataError(f"it points to the file {name[:80]!r} outside the checkpoint")
    if values.get("transform_descriptors"):
        raise StrangeMetadataError("its files are compressed, which weft does not write")
    return _StorageInfo(name, _whole(values["offset"]), _whole(values["length"]))


def _size(found: Any) -> torch.Size:
    made = _described(found)
    if made.name != "torch.Size" or len(made.given) != 1:
        raise StrangeMetadataError(f"there is a {made.name} where a size belongs")
    return torch.Size([_whole(each) for each in _tuple(made.given[0])])


def _described(found: Any) -> _Described:
    if not isinstance(found, _Described):
        raise StrangeMetadataError(f"there is a {type(found).__name__} where a record belongs")
    return found


def _pairs(found: Any) -> list[tuple[Any, Any]]:
    if not isinstance(found, _Pairs):
        raise StrangeMetadataError(f"there is a {type(found).__name__} where a dictionary belongs")
    return found.items


def _listed(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise StrangeMetadataError(f"there is a {type(found).__name__} where a list belongs")
    return found


def _tuple(found: Any) -> tuple[Any, ...]:
    if not isinstance(found, tuple) or len(found) > _MOST_PARTS:
        raise StrangeMetadataError(f"there is a {type(found).__name__} where a short tuple belongs")
    return found


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise StrangeMetadataError(f"there is a {type(found).__name__} where a text belongs")
    return found


def _whole(found: Any) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 2**63:
        raise StrangeMetadataError("there is something else where a whole number belongs")
    return found


def _step(found: Any) -> str | int:
    return found if isinstance(found, str) else _whole(found)
