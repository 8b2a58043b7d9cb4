"""Where a result comes from: the spec, the seed and the version that made it.

Every report carries one of these. Two reports with equal provenance are equal byte for byte.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from weft.core.version import VERSION

_HASH_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Provenance:
    """The name of a run: what was asked, with which seed, of which version."""

    spec: str
    """Digest of the canonical form of everything that was asked."""
    seed: int | None
    """Root seed, or none where no chance was involved."""
    version: str = VERSION
    """Version of weft."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def provenance(spec: Mapping[str, Any], seed: int | None = None) -> Provenance:
    """Return the provenance of a result made from the plain values `spec` and from `seed`."""
    return Provenance(spec=digest(spec), seed=seed)


def digest(value: Any) -> str:
    """Return a short digest of plain values that does not depend on the order of keys."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:_HASH_DIGITS]
