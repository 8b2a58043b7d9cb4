"""`weft cluster generate` and `weft cluster trace`: job traces, made from a seed or converted from other projects'."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from weft.campaign.importing import Imported, at_load
from weft.campaign.scenes import scene
from weft.campaign.trace import TraceJob, written
from weft.campaign.trace_file import read_trace
from weft.cli.output import JsonFlag, print_json, say, seed_option, writing
from weft.cluster.from_site import nodes_of
from weft.cluster.records.node import Node
from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.specs import load_site
from weft.specs.site import SiteSpec

SITE = "gb200-8x100g-131k"
_DAY_MS = 86_400_000

SiteName = Annotated[str, Parameter(name="--site", help="Built-in name or path of a site file.")]
Nodes = Annotated[int | None, Parameter(help="Use only the first N nodes of the site.")]
SeedNumber = Annotated[int, seed_option("Random seed.")]


def generate(
    out: Annotated[Path, Parameter(help="CSV file to write; `weft cluster replay` reads it.")],
    /,
    *,
    jobs: Annotated[int, Parameter(help="Number of jobs.")] = 1000,
    scenario: Annotated[
        str, Parameter(name="--scene", help="Trace type: mixed, small-beside-big, full-site.")
    ] = "mixed",
    site: SiteName = SITE,
    nodes: Nodes = None,
    load: Annotated[float, Parameter(help="Offered load of a mixed trace.")] = 0.8,
    seed: SeedNumber = 0,
    json: JsonFlag = False,
) -> None:
    """Generate a job trace from a seed and write it into OUT."""
    spec = load_site(site)
    pool = pool_of(spec, nodes)
    if not 1 <= jobs <= 10_000_000:  # noqa: PLR2004 - said in the message
        raise UsageError(f"--jobs {jobs}: write a number from 1 to 10,000,000")
    if not 0 < load <= 10:  # noqa: PLR2004 - said in the message
        raise UsageError(f"--load {load:g}: write a share above 0 and at most 10")
    lines = scene(scenario, len(pool), spec.node.gpus, jobs=jobs, seed=Seed(seed), load=load)
    with writing(out) as part:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(written(lines))
    days = (lines[-1].submit_ms - lines[0].submit_ms) / 86_400_000
    if json:
        print_json({"file": str(out), "jobs": len(lines), "days": days, "nodes": len(pool), "seed": seed})
    else:
        say(f"{out}: {len(lines):,} jobs over {days:.1f} days for {len(pool):,} nodes")


def convert(
    trace: Annotated[Path, Parameter(help="Trace of Slurm (sacct -P), SWF, Philly, Helios, Acme or Alibaba.")],
    out: Annotated[Path, Parameter(help="CSV file to write; `weft cluster replay` reads it.")],
    /,
    *,
    node_gpus: Annotated[int, Parameter(help="GPUs of a node that jobs are packed onto.")] = 8,
    processors_per_gpu: Annotated[int, Parameter(help="Processors that count as one GPU, in SWF.")] = 1,
    most_gpus: Annotated[int | None, Parameter(help="Leave jobs out that ask for more GPUs.")] = None,
    load: Annotated[
        float | None, Parameter(help="Stretch or shorten the times between submissions to this load of --nodes.")
    ] = None,
    nodes: Annotated[int | None, Parameter(help="Nodes that --load is a share of.")] = None,
    limits: Annotated[bool, Parameter(negative="--no-limits", help="Keep the time limits that jobs declared.")] = True,
    team: Annotated[str | None, Parameter(help="Put all jobs into this one team.")] = None,
    json: JsonFlag = False,
) -> None:
    """Convert TRACE, a job trace of another project, into one that can be replayed, and write it into OUT."""
    for flag, value in (("--node-gpus", node_gpus), ("--processors-per-gpu", processors_per_gpu), ("--nodes", nodes)):
        if value is not None and not 1 <= value <= 10**6:
            raise UsageError(f"{flag} {value}: write a number from 1 to 1,000,000")
    if (load is None) != (nodes is None):
        raise UsageError("--load and --nodes go together: a load is a share of the GPUs of so many nodes")
    if load is not None and not 0 < load <= 10:  # noqa: PLR2004 - said in the message
        raise UsageError(f"--load {load:g}: write a share above 0 and at most 10")
    found = read_trace(trace, node_gpus, processors_per_gpu)
    kept = [line for line in found.lines if most_gpus is None or line.nodes * line.gpus_per_node <= most_gpus]
    if not kept:
        raise UsageError(f"--most-gpus {most_gpus}: no job asks for so few")
    if len(kept) < len(found.lines):
        found.left_out[f"asks for more than {most_gpus:,} GPUs"] = len(found.lines) - len(kept)
    lines = [_changed(line, limits=limits, team=team) for line in kept]
    if load is not None and nodes is not None:
        lines = at_load(lines, nodes * node_gpus, load)
    with writing(out) as part:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(written(lines))
    days = (lines[-1].submit_ms - lines[0].submit_ms) / _DAY_MS
    if json:
        print_json({"file": str(out), "format": found.format, "jobs": len(lines), "days": days,
                    "left_out": dict(found.left_out)})  # fmt: skip
    else:
        say(f"{out}: {len(lines):,} jobs over {days:.1f} days, of {trace} ({found.format})")
        say_left_out(trace, found)


def say_left_out(trace: Path, found: Imported) -> None:
    """Print what of a trace is not replayed."""
    if found.left_out:
        reasons = ", ".join(f"{count:,} ({why})" for why, count in found.left_out.most_common())
        say(f"left out of {trace}: {reasons}")


def pool_of(spec: SiteSpec, nodes: int | None) -> tuple[Node, ...]:
    """Return the nodes of a site, or the first of them."""
    whole = spec.fabric.gpus // spec.node.gpus
    if nodes is not None and not 1 <= nodes <= whole:
        raise UsageError(f"--nodes {nodes}: {spec.name} has {whole:,} nodes; write a number from 1 to that")
    return nodes_of(spec, nodes)


def _changed(line: TraceJob, *, limits: bool, team: str | None) -> TraceJob:
    return replace(line, limit_ms=line.limit_ms if limits else None, team=team or line.team)
