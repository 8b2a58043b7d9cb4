"""`weft export`: a run's timeline or a plan's schedule as a trace, and a run's weights for Hugging Face."""

import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from weft import api
from weft.cli.output import say, writing, written_to
from weft.core.errors import UsageError
from weft.core.extras import need
from weft.planning.schedule_trace import trace_of_plan
from weft.training.run_dir import find
from weft.training.run_trace import trace_of_run


def export(
    run: Annotated[str, Parameter(help="Name or path of a run; with --site the name or file of a job.")],
    /,
    *,
    perfetto: Annotated[
        Path | None, Parameter(help="Write the trace to FILE (.json), for https://ui.perfetto.dev."),
        written_to("--perfetto", ".json"),
    ] = None,
    to: Annotated[
        Path | None, Parameter(help="Write weights, config.json and tokenizer to a new folder, for transformers.")
    ] = None,
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], Parameter(help="Type of the weights.")] = "float32",
    site: Annotated[str | None, Parameter(help="Export the schedule of the job's plan on this site instead.")] = None,
    folder: Annotated[Path, Parameter(name="--folder", help="Folder of runs.")] = Path("runs"),
) -> None:  # fmt: skip
    """Export a run's steps, ranks and incidents, or the schedule of a plan, as a trace; or a run's weights."""
    if (perfetto is None) == (to is None):
        raise UsageError("write --perfetto FILE for a trace, or --to FOLDER for weights")
    if to is not None:
        if site is not None:
            raise UsageError("--site belongs to --perfetto; a plan has no weights")
        _export_weights(run, to, dtype, folder)
        return
    assert perfetto is not None, "one of both"
    if site is None:
        record = find(folder, run)
        trace = trace_of_run(record.name, record.steps(), record.incidents())
    else:
        trace = trace_of_plan(api.plan(run, site))
    with writing(perfetto) as part:
        part.write_text(json.dumps(trace, allow_nan=False), encoding="utf-8")
    say(f"{perfetto}: {len(trace['traceEvents']):,} events; open it at https://ui.perfetto.dev")


def _export_weights(run: str, to: Path, dtype: str, folder: Path) -> None:
    record = find(folder, run)
    need("torch")
    from weft.training.weights_export import export_weights

    made = export_weights(record, to, dtype)
    for skipped in made.skipped:
        say(f"not exported: {skipped}")
    tokenizer = "with its tokenizer" if made.tokenizer else "without a tokenizer: it learned from token files"
    say(
        f"{to}: {made.parameters:,} parameters in {dtype} after {made.step:,} steps, {tokenizer}; load it with"
        f" transformers.AutoModelForCausalLM.from_pretrained({str(to)!r})"
    )
