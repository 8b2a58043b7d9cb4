"""What a corpus is made of: every file with its size, digest and licence, and one digest that names the whole."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.core.errors import FailedError
from weft.core.input_files import json_of, read_bytes

FORMAT = 1
"""Version of what is kept; another one is another corpus."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file of a corpus."""

    path: str
    """Path below the corpus folder, with slashes."""
    bytes: int
    """Size of the file."""
    tokens: int
    """Tokens that it gave, its end marker included."""
    sha256: str
    """Digest of the file."""
    licence: str | None = None
    """Licence, where it is known: an SPDX name, or the licence file that lies nearest above."""


@dataclass(frozen=True, slots=True)
class CorpusManifest:
    """A corpus, file by file."""

    name: str
    """Name for people: the folder's, or "python-3.11.7" for the standard library."""
    tokenizer: str
    """"bytes", "tokens" for files that hold tokens already, or the digest of a tokenizer file."""
    integers: str
    """How tokens are kept: uint8, uint16 or uint32; where files differ, the widest."""
    tokens: int
    """Tokens in all."""
    largest: int
    """Largest token; a model needs a vocabulary above it."""
    files: tuple[Source, ...]
    """The files, in order."""
    skipped: tuple[str, ...] = ()
    """Files that were left out because they are not text."""

    @property
    def digest(self) -> str:
        """Return the name of the content: equal for equal files and tokenizer, wherever the folder lies."""
        whole = hashlib.sha256(f"weft corpus {FORMAT}\n{self.tokenizer}\n".encode())
        for file in self.files:
            whole.update(f"{file.sha256} {file.tokens} {file.path}\n".encode())
        return whole.hexdigest()[:32]

    def as_json(self) -> dict[str, Any]:
        """Return the manifest as plain values, digest included."""
        return {"format": FORMAT, "digest": self.digest, **asdict(self)}

    def save(self, path: Path) -> None:
        """Write the manifest to `path`."""
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n")


def load_manifest(path: Path) -> CorpusManifest:
    """Return the manifest that was saved at `path`, or raise where it is not whole."""
    try:
        table: dict[str, Any] = json_of(read_bytes(path))
        claimed = table.pop("digest")
        table.pop("format")
        table["files"] = tuple(Source(**file) for file in table["files"])
        table["skipped"] = tuple(table["skipped"])
        manifest = CorpusManifest(**table)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise FailedError(f"{path} is damaged ({error}); delete its folder and it is built again") from None
    if manifest.digest != claimed:
        raise FailedError(f"{path} does not match its own digest; delete its folder and it is built again")
    return manifest
