"""JSON in the bodies of requests: an object, or one sentence that says why it is none."""

import json
from typing import Any

from weft.core.errors import UsageError


def document_of(text: bytes) -> dict[str, Any]:
    """Return the JSON object in a request's body."""
    try:
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError("the body is no JSON object; write {...}")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number in JSON")
