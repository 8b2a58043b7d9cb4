"""Text to tokens: bytes by default, or a tokenizer.json where the `tokenizers` package is at hand."""

import hashlib
import importlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from weft.core.errors import UsageError
from weft.core.input_files import read_bytes

Tokens = NDArray[np.unsignedinteger[Any]]

_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")
_UINT16_SIZE = 2**16


class Tokenizer(Protocol):
    """Turns the bytes of a text into tokens."""

    @property
    def name(self) -> str:
        """Return what tells it from others: equal names give equal tokens."""
        ...

    def encode(self, text: bytes) -> Tokens:
        """Return the tokens of one file, its end marker included."""
        ...


class ByteTokenizer(Tokenizer):
    """Every byte is a token; a NUL byte, which text does not have, ends a file."""

    @property
    @override
    def name(self) -> str:
        """Return "bytes"."""
        return "bytes"

    @override
    def encode(self, text: bytes) -> NDArray[np.uint8]:
        """Return the bytes and the end marker."""
        return np.frombuffer(text + b"\0", dtype=np.uint8)


class FileTokenizer(Tokenizer):
    """A tokenizer.json of Hugging Face's `tokenizers`; its end-of-text token ends a file, where it has one."""

    def __init__(self, path: Path) -> None:
        try:
            tokenizers = importlib.import_module("tokenizers")
        except ImportError:
            raise UsageError(
                f"the tokenizer {path} needs the package `tokenizers`; install it (pip install tokenizers), "
                'write tokenizer = "bytes", or give the corpus as token files'
            ) from None
        try:
            content = read_bytes(path)
            self._inner = tokenizers.Tokenizer.from_str(content.decode())
        except OSError as error:
            raise UsageError(f"the tokenizer {path} cannot be read: {error.strerror}") from None
        except Exception as error:  # noqa: BLE001 - the package raises bare Exception for a bad file
            raise UsageError(f"{path} is not a tokenizer.json: {error}") from None
        self._name = hashlib.sha256(content).hexdigest()
        found = (self._inner.token_to_id(token) for token in _ENDS)
        self._end = next((token for token in found if token is not None), None)
        self._type = np.uint16 if self._inner.get_vocab_size() <= _UINT16_SIZE else np.uint32

    @property
    @override
    def name(self) -> str:
        """Return the digest of the file."""
        return self._name

    @override
    def encode(self, text: bytes) -> Tokens:
        """Return the tokens of a text; bytes that are not UTF-8 become replacement characters."""
        ids = self._inner.encode(text.decode(errors="replace"), add_special_tokens=False).ids
        return np.array(ids if self._end is None else [*ids, self._end], dtype=self._type)


def open_tokenizer(name: str, folder: Path) -> Tokenizer:
    """Return the tokenizer called `name`: "bytes", or a file in `folder`, or one at that path."""
    if name == "bytes":
        return ByteTokenizer()
    places = [folder / name, Path(name)]
    for place in places:
        if place.is_file():
            return FileTokenizer(place)
    raise UsageError(f'there is no tokenizer {name} in {folder} nor at that path; write "bytes" or a tokenizer.json')
