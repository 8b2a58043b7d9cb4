"""A corpus on disk, memory-mapped: text is turned into tokens once and kept; token files are mapped where they lie.

The kept form lies in a cache folder of the caller's choice, under a key made of the files' names, sizes and times, with
a manifest beside it that names the content. It appears by one rename: of several processes that want it, one builds
and the others wait; a builder that dies leaves no half corpus behind.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import FailedError, LimitReachedError, UsageError
from weft.core.input_files import json_of, read_bytes
from weft.specs.job import DataSpec
from weft.training.data.corpus_files import Listing, list_corpus
from weft.training.data.corpus_manifest import FORMAT, CorpusManifest, Source, load_manifest
from weft.training.data.documents import ROW_SUFFIXES, digest_of, documents_of
from weft.training.data.tokenizer import Tokenizer, Tokens, open_tokenizer

_BLOCK_BYTES = 2**22
_PAUSE_S = 0.05
LONGEST_WAIT_S = 3600.0
"""Longest wait for another process that builds the same corpus."""


@dataclass(frozen=True)
class Corpus:
    """A long row of tokens, read by place."""

    manifest: CorpusManifest
    """What it is made of."""
    folder: Path
    """Where the manifest is kept."""
    segments: tuple[Tokens, ...]
    """The tokens, in one or several mapped pieces."""
    starts: NDArray[np.int64]
    """Place of each segment's first token."""

    def __len__(self) -> int:
        """Return the number of tokens."""
        return self.manifest.tokens

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """Return the tokens at `start` to `start + count - 1`."""
        assert 0 <= start <= len(self) - count, f"tokens {start} to {start + count} of {len(self)}"
        out = np.empty(count, dtype=np.int64)
        done = 0
        number = int(np.searchsorted(self.starts, start, side="right")) - 1
        while done < count:
            offset = start + done - int(self.starts[number])
            part = self.segments[number][offset : offset + count - done]
            out[done : done + len(part)] = part
            done += len(part)
            number += 1
        return out

    def check_vocabulary(self, vocabulary: int) -> None:
        """Raise where a token does not exist in a model of `vocabulary` tokens."""
        largest = self.manifest.largest
        if largest >= vocabulary:
            raise UsageError(
                f"the corpus {self.manifest.name} has the token {largest}, but the model's vocabulary is {vocabulary}; "
                f"write vocabulary = {largest + 1} or more, or use the tokenizer that the model was made for"
            )


def open_corpus(data: DataSpec, cache: Path, *, longest_wait_s: float = LONGEST_WAIT_S) -> Corpus:
    """Return the corpus that `data` names, built in `cache` first where that has not been done."""
    try:
        listing = list_corpus(data.corpus, cache)
        tokenizer = None if listing.tokens else open_tokenizer(data.tokenizer, listing.root)
        asked = f"{FORMAT}\n{data.integers}\n{tokenizer and tokenizer.name}\n{listing.fingerprint()}"
        if any(path.endswith(ROW_SUFFIXES) for path in listing.paths):
            asked += f"\nrows {data.column}"
        key = hashlib.sha256(asked.encode()).hexdigest()[:24]
        kept = cache / f"{listing.name}-{key}"
        if not (kept / "manifest.json").exists():
            cache.mkdir(parents=True, exist_ok=True)
            with _only_one(cache / f".{key}.lock", longest_wait_s):
                if not (kept / "manifest.json").exists():
                    _build(listing, tokenizer, data, kept)
        return _open(listing, data, kept)
    except OSError as error:
        place = Path(str(error.filename or cache))
        if place.is_relative_to(cache):
            raise FailedError(
                f"the corpus cache {place} cannot be written: {error.strerror}; free it or choose another"
            ) from None
        raise UsageError(
            f"the corpus {data.corpus} cannot be read: {place}: {error.strerror}; leave it out or repair it"
        ) from None


def _open(listing: Listing, data: DataSpec, kept: Path) -> Corpus:
    manifest = load_manifest(kept / "manifest.json")
    if listing.tokens:
        segments = tuple(_map_tokens(listing.root / file.path, data) for file in manifest.files)
    else:
        segments = (np.memmap(kept / "tokens.bin", dtype=manifest.integers, mode="r"),)
    if sum(map(len, segments)) != manifest.tokens:
        raise FailedError(f"{kept} does not hold the {manifest.tokens} tokens of its manifest; delete it to build anew")
    starts = np.cumsum([0, *map(len, segments[:-1])], dtype=np.int64)
    return Corpus(manifest, kept, segments, starts)


def _build(listing: Listing, tokenizer: Tokenizer | None, data: DataSpec, kept: Path) -> None:
    part = Path(tempfile.mkdtemp(prefix=f".{kept.name}.", suffix=".part", dir=kept.parent))
    part.chmod(0o755)
    try:
        manifest = (
            _tokenise(listing, tokenizer, part / "tokens.bin", data.column) if tokenizer else _survey(listing, data)
        )
        if manifest.tokens == 0:
            raise UsageError(f"the corpus {data.corpus} holds no text; put text or token files (.bin, .npy) there")
        manifest.save(part / "manifest.json")
        shutil.rmtree(kept, ignore_errors=True)
        part.rename(kept)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _tokenise(listing: Listing, tokenizer: Tokenizer, target: Path, column: str) -> CorpusManifest:
    files: list[Source] = []
    skipped: list[str] = []
    largest = 0
    integers = "uint8"
    with target.open("wb") as out:
        for path in listing.paths:
            place = listing.root / path
            count: int | None = None
            for document in documents_of(place, column):
                tokens = tokenizer.encode(document)
                integers = str(tokens.dtype)
                out.write(tokens.tobytes())
                largest = max(largest, int(tokens.max(initial=0)))
                count = (count or 0) + len(tokens)
            if count is None:
                skipped.append(path)
                continue
            files.append(Source(path, place.stat().st_size, count, digest_of(place), listing.licence_of(path)))
        out.flush()
        os.fsync(out.fileno())
    total = sum(file.tokens for file in files)
    return CorpusManifest(listing.name, tokenizer.name, integers, total, largest, tuple(files), tuple(skipped))


def _survey(listing: Listing, data: DataSpec) -> CorpusManifest:
    """Read token files once for their digests and their largest token."""
    files: list[Source] = []
    largest = 0
    width = 1
    for path in listing.paths:
        place = listing.root / path
        tokens = _map_tokens(place, data)
        width = max(width, tokens.dtype.itemsize)
        for start in range(0, len(tokens), _BLOCK_BYTES):
            largest = max(largest, int(tokens[start : start + _BLOCK_BYTES].max(initial=0)))
        with place.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        files.append(Source(path, place.stat().st_size, len(tokens), digest, listing.licence_of(path)))
    total = sum(file.tokens for file in files)
    return CorpusManifest(listing.name, "tokens", f"uint{8 * width}", total, largest, tuple(files))


def _map_tokens(path: Path, data: DataSpec) -> Tokens:
    if path.suffix == ".npy":
        try:
            found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise UsageError(f"{path} is not an array of tokens: {error}") from None
        if found.ndim != 1 or found.dtype not in (np.uint8, np.uint16, np.uint32):
            shape = "x".join(map(str, found.shape))
            raise UsageError(f"{path} holds {shape} {found.dtype}; write one row of uint8, uint16 or uint32")
        return found
    integers = _integers_of(path, data)
    size, each = path.stat().st_size, np.dtype(integers).itemsize
    if size % each:
        raise UsageError(
            f"{path} has {size} bytes, which is not a whole number of {integers} tokens; is it {integers}?"
        )
    # An empty file cannot be mapped.
    return np.memmap(path, dtype=integers, mode="r") if size else np.empty(0, dtype=integers)


def _integers_of(path: Path, data: DataSpec) -> str:
    beside = path.with_name(path.name + ".json")
    if not beside.is_file():
        return data.integers
    try:
        said = json_of(read_bytes(beside))
    except ValueError as error:
        raise UsageError(f"{beside} is not JSON: {error}") from None
    integers = said.get("integers") if isinstance(said, dict) else None
    if integers not in ("uint8", "uint16", "uint32"):
        raise UsageError(f'{beside} does not say how {path.name} holds its tokens; write {{"integers": "uint16"}}')
    return integers


@contextmanager
def _only_one(lock: Path, longest_wait_s: float) -> Iterator[None]:
    """Hold `lock`; the kernel frees it when its holder dies."""
    with lock.open("w") as opened:
        deadline = time.monotonic() + longest_wait_s
        while True:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise LimitReachedError(
                        f"another process has been building the corpus for {longest_wait_s:g} s (longest_wait_s), "
                        f"holding {lock}; wait for it or end it"
                    ) from None
                time.sleep(_PAUSE_S)
        yield
