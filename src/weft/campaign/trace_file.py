"""A file of a job trace, read: weft's own or another project's, with the files that lie beside it."""

from pathlib import Path

from weft.campaign.importing import Imported, import_trace
from weft.campaign.readers.base import ForeignTrace
from weft.core.errors import UsageError
from weft.core.input_files import read_text

_LARGEST_BYTES = 4 * 2**30


def read_trace(trace: Path, node_gpus: int, processors_per_gpu: int = 1) -> Imported:
    """Return the jobs of a file of any known format."""
    try:
        text = read_text(trace, _LARGEST_BYTES)
    except FileNotFoundError:
        raise UsageError(f"there is no file {trace}; `weft cluster generate {trace}` makes one") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise UsageError(f"{trace} cannot be read as a trace: {reason}") from None

    def beside(name: str) -> str | None:
        path = trace.with_name(name)
        return read_text(path, _LARGEST_BYTES) if path.is_file() else None

    return import_trace(ForeignTrace(text, beside, processors_per_gpu), str(trace), node_gpus)
