"""Tables of operations, one in a row with its rank, step, start and duration: Parquet, Arrow, CSV or lines of JSON."""

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
    "rank": ("rank", "global_rank", "rank_id", "worker", "pid"),
    "replica": ("dp_rank", "replica", "data_parallel_rank", "dp", "dp_id"),
    "tensor": ("tp_rank", "tensor_parallel_rank", "tp", "tp_id"),
    "stage": ("stage", "pp_rank", "pp_stage", "pipeline_stage", "pipeline_rank", "pp", "pp_id", "stage_id"),
    "step": ("step", "iteration", "iter", "global_step", "step_id", "train_step", "step_num"),
    "operation": ("operation", "optype", "op_type", "op", "op_name", "name", "event", "event_name", "kind"),
    "start": ("start", "start_ts", "ts", "begin", "start_time", "timestamp", "begin_time", "t_start"),
    "duration": ("duration", "dur", "elapsed", "elapsed_time", "time", "latency"),
    "end": ("end", "end_ts", "end_time", "stop", "t_end"),
    "micro_batch": ("mb_id", "micro_batch", "microbatch", "microbatch_id", "micro_batch_id", "mb", "mbs_id"),
}
_UNITS = {
    "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "msec": 1e-3, "millis": 1e-3,
    "milliseconds": 1e-3, "us": 1e-6, "usec": 1e-6, "µs": 1e-6, "micros": 1e-6, "microseconds": 1e-6, "ns": 1e-9,
    "nsec": 1e-9, "nanos": 1e-9, "nanoseconds": 1e-9,
}  # fmt: skip
_ENDING = re.compile(rf"^(.*?)[ _.]*[\[(_ .]({'|'.join(_UNITS)})[\])]?$")
"""As in `dur_us`, `duration (ms)` or `start [ns]`."""
_EPOCHS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""Times since 1970 tell their unit by their size."""
_MOST_BUSY = 64.0
"""A rank is not busy for longer than a step takes, but for so many streams at once."""
_ARROW = (b"ARROW1", b"\xff\xff\xff\xff")
_MOST_ROWS = 50_000_000


class OperationTableReader:
    """Reads Parquet, Arrow, CSV and JSON lines."""

    name = "table of operations"

    def recognises(self, file: FileToRead) -> bool:
        """Return whether it has the columns of one."""
        if file.head.startswith((_PARQUET, *_ARROW)):
            return True
        first = file.text_head.split("\n", 1)[0]
        names = [word.strip().strip('"').lower() for word in re.split(r"[,;\t|]", first)]
        if first.startswith("{"):
            names = [word.lower() for word in re.findall(r'"([^"]+)"\s*:', first)]
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
                has = ", ".join(table.columns[:8])
                raise UnreadableError(
                    f"{file.path} has the columns {has}, and none for the {needed}; one of {wanted} is needed"
                )
        if "duration" not in known and "end" not in known:
            raise UnreadableError(f"{file.path} has neither a column for the duration nor one for the end")
        if not {"rank", "replica", "stage", "tensor"} & known.keys() and file.rank is None:
            raise UnreadableError(f"{file.path} does not say whose operations these are; add a column rank")
        operations = _operations(
            table, {key: (table.columns[at], unit) for key, (at, unit) in known.items()}, file.rank
        )
        if not len(operations):
            raise UnreadableError(f"{file.path} has no row with a start and a duration that are numbers")
        evidence.operations.append(operations)
        counted = "" if "rank" in known or file.rank is not None else "; ranks are counted stage by stage, from 0"
        return f"{len(operations):,} operations: {job_dimensions(operations)}{counted}"


def _known(names: list[str]) -> dict[str, tuple[int, float | None]]:
    """Return which column holds what, and its unit in seconds where its name says so."""
    found: dict[str, tuple[int, float | None]] = {}
    for at, name in enumerate(names):
        plain, unit = name.strip().replace(" ", "_"), None
        if (ending := _ENDING.match(name.strip())) is not None and ending.group(1):
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
            if file.head.startswith(_ARROW[0]):
                return pl.read_ipc(io.BytesIO(stream.read()))
            if file.head.startswith(_ARROW[1]):
                return pl.read_ipc_stream(io.BytesIO(stream.read()))
            if file.text_head.startswith("{"):
                return pl.read_ndjson(
                    io.BytesIO(stream.read()), infer_schema_length=10_000, n_rows=_MOST_ROWS, ignore_errors=True
                )
            separator = max(",;\t|", key=file.text_head.split("\n", 1)[0].count)
            return pl.read_csv(
                stream, separator=separator, n_rows=_MOST_ROWS, infer_schema_length=10_000, ignore_errors=True,
                truncate_ragged_lines=True, null_values=["N/A", "NA", "nan", "NaN", "None", "null", "-"],
            )  # fmt: skip
    except (pl.exceptions.PolarsError, OSError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnreadableError(f"{file.path} is no table that can be read: {first}") from None


def _operations(
    table: "pl.DataFrame", columns: dict[str, tuple[str, float | None]], rank_of_file: int | None
) -> Operations:
    import polars as pl

    table = table.rename({column: column.strip() for column in table.columns if column != column.strip()})
    rows = len(table)

    def whole(key: str, absent: int) -> np.ndarray:
        if key not in columns:
            return np.full(rows, absent, dtype=np.int64)
        series = table[columns[key][0].strip()]
        if not series.dtype.is_numeric():
            numbers = series.cast(pl.String).str.extract(r"(\d+)\D*$").cast(pl.Int64, strict=False)
            if numbers.null_count() <= series.null_count():  # "rank 3", "stage_3"
                return numbers.fill_null(absent).to_numpy()
            return np.unique(series.cast(pl.String).fill_null("").to_numpy(), return_inverse=True)[1].astype(np.int64)
        return series.cast(pl.Int64, strict=False).fill_null(absent).to_numpy()

    names, index = np.unique(
        table[columns["operation"][0].strip()].cast(pl.String).fill_null("?").to_numpy(), return_inverse=True
    )
    replica, stage, tensor = whole("replica", 0), whole("stage", 0), whole("tensor", 0)
    across = int(tensor.max(initial=0)) + 1
    replica = replica * across + tensor  # ranks that share a layer by tensors are peers, as replicas are
    several = rows > 0 and (np.ptp(replica) > 0 or np.ptp(stage) > 0)
    if "rank" in columns:
        rank = whole("rank", 0)
    elif rank_of_file is not None and not several:  # a number in the name of a file of many ranks is a date
        rank = np.full(rows, rank_of_file)
    else:  # counted from 0, whatever stages and replicas are counted from
        low = int(replica.min()) if rows else 0
        rank = (stage - (int(stage.min()) if rows else 0)) * (int(replica.max(initial=0)) + 1 - low) + replica - low
    if not {"replica", "stage", "tensor"} & columns.keys():
        replica = rank.copy()  # Ranks of which no more is known are taken for replicas of one another.
    step = whole("step", 0)
    start, duration = _seconds(table, columns, rank, step)
    good = np.isfinite(start) & np.isfinite(duration) & (duration >= 0)
    return Operations(
        rank[good], replica[good], stage[good], step[good], index.astype(np.int64)[good], start[good],
        duration[good], whole("micro_batch", -1)[good], tuple(str(name) for name in names),
    )  # fmt: skip


def _seconds(
    table: "pl.DataFrame", columns: dict[str, tuple[str, float | None]], rank: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and durations in seconds; a unit that no name tells is found from the figures themselves."""

    def column(key: str, since: int | None) -> tuple[np.ndarray, float | None, int]:
        name, unit = columns[key]
        figures, found, since = _figures(table[name.strip()], since)
        return figures, unit or found, since

    start, unit, since = column("start", None)
    if "duration" not in columns:
        end, own, _ = column("end", since)
        unit = unit or own or 1.0
        return start * unit, end * (own or unit) - start * unit
    duration, own, _ = column("duration", 0)
    unit = unit or own or 1.0
    if own is None:
        own = unit
        _, row = np.unique(rank * (int(step.max(initial=0)) + 1) + step, return_inverse=True)
        first, last = np.full(row.max(initial=0) + 1, np.inf), np.full(row.max(initial=0) + 1, -np.inf)
        np.fmin.at(first, row, start * unit)
        np.fmax.at(last, row, start * unit)
        share = float(np.median(np.bincount(row, np.nan_to_num(duration)) / np.maximum(last - first, 1e-12)))
        while share * own > _MOST_BUSY:  # a start in seconds beside durations in milliseconds or microseconds
            own /= 1e3
    return start * unit, duration * own


def _figures(series: "pl.Series", since: int | None) -> tuple[np.ndarray, float | None, int]:
    """Return a column as numbers, their unit where they tell it, and what was taken off: dates have many digits."""
    import polars as pl

    if series.dtype == pl.String and series.cast(pl.Float64, strict=False).null_count() == len(series):
        try:
            series = series.str.to_datetime(strict=False, time_unit="ns")
        except pl.exceptions.PolarsError:
            return np.full(len(series), np.nan), None, 0  # words, of which no row is used
    dated = series.dtype.is_temporal()
    if dated:
        lasting = series.dtype in {pl.Duration, pl.Time}
        series = series.cast(pl.Duration("ns") if lasting else pl.Datetime("ns")).cast(pl.Int64)
    if not series.dtype.is_integer():
        found = series.cast(pl.Float64, strict=False).fill_null(float("nan")).to_numpy()
        middle = float(np.nanmedian(found)) if np.isfinite(found).any() else 0.0
        unit = next((scale for size, scale in _EPOCHS if middle >= size), None) if since is None else None
        return found, unit, 0
    least = int(series.min() or 0)  # type: ignore[arg-type]
    unit = 1e-9 if dated else None
    if since is None:
        unit = unit or next((scale for size, scale in _EPOCHS if least >= size), None)
        since = least if least >= _EPOCHS[-1][0] else 0
    return (
        (series.cast(pl.Int64, strict=False) - since).cast(pl.Float64).fill_null(float("nan")).to_numpy(),
        unit,
        since,
    )
