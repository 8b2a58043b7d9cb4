"""`weft export`: a run's timeline, or the schedule of a job's plan, as a trace that Perfetto opens."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from weft import api
from weft.cli.output import say, writing, written_to
from weft.planning.schedule_trace import trace_of_plan
from weft.training.run_dir import find
from weft.training.run_trace import trace_of_run


def export(
    run: Annotated[str, Parameter(help="Name or path of a run; with --site the name or file of a job.")],
    /,
    *,
    perfetto: Annotated[
        Path, Parameter(help="Write the trace to FILE (.json), for https://ui.perfetto.dev."),
        written_to("--perfetto", ".json"),
    ],
    site: Annotated[str | None, Parameter(help="Export the schedule of the job's plan on this site instead.")] = None,
    folder: Annotated[Path, Parameter(name="--folder", help="Folder of runs.")] = Path("runs"),
) -> None:  # fmt: skip
    """Export a run's steps, ranks and incidents, or the schedule of a plan, as a trace."""
    if site is None:
        record = find(folder, run)
        trace = trace_of_run(record.name, record.steps(), record.incidents())
    else:
        trace = trace_of_plan(api.plan(run, site))
    with writing(perfetto) as part:
        part.write_text(json.dumps(trace, allow_nan=False), encoding="utf-8")
    say(f"{perfetto}: {len(trace['traceEvents']):,} events; open it at https://ui.perfetto.dev")
