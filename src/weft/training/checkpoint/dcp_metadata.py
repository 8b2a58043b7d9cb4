"""Reads the `.metadata` file of torch's distributed checkpoints without unpickling it: data in, torch's records out.

torch writes that file as a pickle, and to unpickle is to run whatever the file says. Here its opcodes are read as a
description: a name that the file calls for is looked up in a table of the few records that such a file is made of, and
nothing is imported, called or restored on its word. The rest is refused. Files of tensors are `dcp`'s business.
"""

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

from weft.core.pickle_opcodes import Described, Pairs, StrangePickleError, described

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
    "torch.serialization._get_layout", "pathlib.PosixPath", "pathlib._local.PosixPath", *_DTYPES,
}  # fmt: skip
"""Every name that a file may call for."""


def read_metadata(path: Path) -> Metadata:
    """Return what the metadata file at `path` describes; raises `StrangePickleError` for anything else in it."""
    if path.stat().st_size > _LARGEST_BYTES:
        raise StrangePickleError(f"it is larger than {_LARGEST_BYTES >> 30} GiB")
    try:
        found = described(path.read_bytes(), _KNOWN, "a checkpoint's metadata")
        return _metadata(found)
    except StrangePickleError:
        raise
    except (ValueError, LookupError, AttributeError, TypeError, OverflowError, MemoryError) as error:
        raise StrangePickleError(f"it is damaged ({type(error).__name__})") from None


# From descriptions to torch's records: every field is looked at, so that nothing but data comes through.


def _metadata(found: Any) -> Metadata:
    values = _values(found, "Metadata")
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
    values = _values(made, "TensorStorageMetadata")
    listed = _listed(values["chunks"])
    if id(listed) not in chunks:
        chunks[id(listed)] = [_chunk(each) for each in listed]
    return TensorStorageMetadata(_properties(values["properties"]), _size(values["size"]), chunks[id(listed)])


def _chunk(found: Any) -> ChunkStorageMetadata:
    values = _values(found, "ChunkStorageMetadata")
    return ChunkStorageMetadata(_size(values["offsets"]), _size(values["sizes"]))


def _properties(found: Any) -> TensorProperties:
    made = _described(found)
    if made.name != f"{_METADATA}.TensorProperties":
        raise StrangePickleError(f"there is a {made.name} where a TensorProperties belongs")
    dtype, _layout, needs_gradient, _format, pinned = _tuple(made.state)
    # Layout and memory format are deprecated in torch; every tensor that DCP writes is dense and contiguous.
    return TensorProperties(
        dtype=_DTYPES[_described(dtype).name], requires_grad=bool(needs_gradient), pin_memory=bool(pinned)
    )


def _index(found: Any) -> MetadataIndex:
    values = _values(found, "MetadataIndex")
    offset, index = values.get("offset"), values.get("index")
    return MetadataIndex(
        _text(values["fqn"]), None if offset is None else _size(offset), None if index is None else _whole(index)
    )


def _place(found: Any) -> _StorageInfo:
    values = _values(found, "torch.distributed.checkpoint.filesystem._StorageInfo")
    name = _text(values["relative_path"])
    if name in ("", "..") or Path(name).name != name:
        raise StrangePickleError(f"it points to the file {name[:80]!r} outside the checkpoint")
    if values.get("transform_descriptors"):
        raise StrangePickleError("its files are compressed, which weft does not write")
    return _StorageInfo(name, _whole(values["offset"]), _whole(values["length"]))


def _size(found: Any) -> torch.Size:
    made = _described(found)
    if made.name != "torch.Size" or len(made.given) != 1:
        raise StrangePickleError(f"there is a {made.name} where a size belongs")
    return torch.Size([_whole(each) for each in _tuple(made.given[0])])


def _values(found: Any, name: str) -> dict[str, Any]:
    """Return the fields of a dataclass called `name`."""
    made = _described(found)
    if made.name not in (name, f"{_METADATA}.{name}"):
        raise StrangePickleError(f"there is a {made.name} where a {name} belongs")
    return {_text(key): value for key, value in _pairs(made.state or Pairs())}


def _described(found: Any) -> Described:
    if not isinstance(found, Described):
        raise StrangePickleError(f"there is a {type(found).__name__} where a record belongs")
    return found


def _pairs(found: Any) -> list[tuple[Any, Any]]:
    if not isinstance(found, Pairs):
        raise StrangePickleError(f"there is a {type(found).__name__} where a dictionary belongs")
    return found.items


def _listed(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise StrangePickleError(f"there is a {type(found).__name__} where a list belongs")
    return found


def _tuple(found: Any) -> tuple[Any, ...]:
    if not isinstance(found, tuple) or len(found) > _MOST_PARTS:
        raise StrangePickleError(f"there is a {type(found).__name__} where a short tuple belongs")
    return found


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise StrangePickleError(f"there is a {type(found).__name__} where a text belongs")
    return found


def _whole(found: Any) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 2**63:
        raise StrangePickleError("there is something else where a whole number belongs")
    return found


def _step(found: Any) -> str | int:
    return found if isinstance(found, str) else _whole(found)
