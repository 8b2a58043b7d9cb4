"""Tables of operations, one in a row with its rank, step, start and duration: Parquet or CSV, by many column names."""

import io
import re
from typing import TYPE_CHECKING

import numpy as np

from weft.core.errors import UsageError
from weft.diagnosis.operations import Operations, job_dimensions
from weft.doctor.readers.base import FileToRead, UnreadableError
from weft.doctor.readers.evidence import Evidence

if TYPE_CHECKING:
    import polars as pl

_PARQUET = b"PAR1"
_COLUMNS: dict[str, tuple[str, ...]] = {
    "rank": ("rank", "global_rank", "worker", "pid"),
    "replica": ("dp_rank", "replica", "data_parallel_rank", "dp"),
    "stage": ("stage", "pp_rank", "pp_stage", "pipeline_stage", "pipeline_rank", "pp"),
    "step": ("step", "iteration", "iter", "global_step", "step_id"),
    "operation": ("operation", "optype", "op_type", "op", "op_name", "name", "event"),
    "start": ("start", "start_ts", "ts", "begin", "start_time", "timestamp"),
    "duration": ("duration", "dur", "elapsed", "time"),
    "end": ("end", "end_ts", "end_time", "stop"),
    "micro_batch": ("mb_id", "micro_batch", "microbatch", "microbatch_id", "micro_batch_id", "mb"),
}
_UNITS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_ENDING = re.compile(r"^(.*?)_(s|sec|seconds|ms|us|ns)$")
_MOST_ROWS = 50_000_000


class OperationTableReader:
    """Reads Parquet and CSV."""

    name = "table of operations"

    def recognises(self, file: FileToRead) -> bool:
        """Return whether it has the columns of one."""
        if file.head.startswith(_PARQUET):
            return True
        first = file.text_head.split("\n", 1)[0]
        names = [word.strip().strip('"').lower() for word in re.split(r"[,;\t]", first)]
        known = _known(names)
        return (
            file.is_text and {"step", "operation", "start"} <= known.keys() and bool({"duration", "end"} & known.keys())
        )

    def read(self, file: FileToRead, evidence: Evidence) -> str:
        """Read it into columns."""
        table = _table(file)
        known = _known([name.lower() for name in table.columns])
        for needed in ("step", "operation", "start"):
            if needed not in known:
                wanted = ", ".join(_COLUMNS[needed])
                raise UnreadableError(f"{file.path} has no column for the {needed}; one of {wanted} is needed")
        if "duration" not in known and "end" not in known:
            raise UnreadableError(f"{file.path} has neither a column for the duration nor one for the end")
        if not {"rank", "replica", "stage"} & known.keys() and file.rank is None:
            raise UnreadableError(f"{file.path} does not say whose operations these are; add a column rank")
        operations = _operations(
            table, {key: (table.columns[at], unit) for key, (at, unit) in known.items()}, file.rank
        )
        evidence.operations.append(operations)
        return f"{len(operations):,} operations: {job_dimensions(operations)}"


def _known(names: list[str]) -> dict[str, tuple[int, float]]:
    """Return which column holds what, and its unit in seconds."""
    found: dict[str, tuple[int, float]] = {}
    for at, name in enumerate(names):
        plain, unit = name.strip(), 1.0
        if (ending := _ENDING.match(plain)) is not None:
            plain, unit = ending.group(1), _UNITS[ending.group(2)]
        for key, aliases in _COLUMNS.items():
            if plain in aliases and (key not in found or aliases.index(plain) == 0):
                found[key] = (at, unit)
    return found


def _table(file: FileToRead) -> "pl.DataFrame":
    try:
        import polars as pl
    except ImportError:
        raise UsageError("tables are read with polars; install it with pip install 'weft[doctor]'") from None

    try:
        with file.open() as stream:
            if file.head.startswith(_PARQUET):
                return pl.read_parquet(file.path if file.path.suffix != ".gz" else io.BytesIO(stream.read()))
            separator = max(",;\t", key=file.text_head.split("\n", 1)[0].count)
            return pl.read_csv(stream, separator=separator, n_rows=_MOST_ROWS, infer_schema_length=10_000)
    except (pl.exceptions.PolarsError, OSError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnreadableError(f"{file.path} is no table that can be read: {first}") from None


def _operations(table: "pl.DataFrame", columns: dict[str, tuple[str, float]], rank_of_file: int | None) -> Operations:
    import polars as pl

    rows = len(table)

    def whole(key: str, absent: int) -> np.ndarray:
        if key not in columns:
            return np.full(rows, absent, dtype=np.int64)
        series = table[columns[key][0]]
        if not series.dtype.is_numeric():
            return np.unique(series.cast(pl.String).fill_null("").to_numpy(), return_inverse=True)[1].astype(np.int64)
        return series.cast(pl.Int64, strict=False).fill_null(absent).to_numpy()

    def seconds(key: str) -> np.ndarray:
        name, unit = columns[key]
        return table[name].cast(pl.Float64, strict=False).fill_null(float("nan")).to_numpy() * unit

    names, index = np.unique(
        table[columns["operation"][0]].cast(pl.String).fill_null("?").to_numpy(), return_inverse=True
    )
    replica, stage = whole("replica", 0), whole("stage", 0)
    if "rank" in columns:
        rank = whole("rank", 0)
    else:
        rank = (
            stage * (int(replica.max(initial=0)) + 1) + replica if rank_of_file is None else np.full(rows, rank_of_file)
        )
    if "replica" not in columns and "stage" not in columns:
        replica = rank.copy()  # Ranks of which no more is known are taken for replicas of one another.
    start = seconds("start")
    duration = seconds("duration") if "duration" in columns else seconds("end") - start
    good = np.isfinite(start) & np.isfinite(duration) & (duration >= 0)
    return Operations(
        rank[good], replica[good], stage[good], whole("step", 0)[good], index.astype(np.int64)[good], start[good],
        duration[good], whole("micro_batch", -1)[good], tuple(str(name) for name in names),
    )  # fmt: skip
