"""`weft runs`: training runs listed, shown and compared.

Reads run folders only; torch is not loaded.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from weft.cli.output import JsonFlag, PlotFile, RunArgument, print_json, print_table, save_picture, say
from weft.core import quantity
from weft.core.errors import FailedError
from weft.training.compare import Comparison, compare
from weft.training.metrics.step_line import from_bits
from weft.training.run_dir import RunRecord, find, records

Folder = Annotated[Path, Parameter(name="--folder", help="Folder of runs.")]
_RUNS = Path("runs")
_BARS = "▁▂▃▄▅▆▇█"
_SPARKS = 60

app = App(name="runs", help="List, show and compare training runs.", help_format="plaintext")


@app.default
def list_runs(*, folder: Folder = _RUNS, json: JsonFlag = False) -> None:
    """List the runs."""
    rows = [_summary(record) for record in records(folder)]
    if json:
        print_json(rows)
        return
    if not rows:
        say(f"no runs in {folder}")
        return
    print_table(
        f"runs in {folder}",
        ("run", "job", "state", "steps", "final loss", "tokens/s"),
        [
            (row["run"], row["job"], row["state"], f"{row['steps']:,} of {row['steps_asked']:,}",
             _loss(row["final_loss"]), _rate(row["tokens_per_s"]))
            for row in rows
        ],
        words=(0, 1, 2),
    )  # fmt: skip


@app.command
def show(run: RunArgument, /, *, folder: Folder = _RUNS, json: JsonFlag = False, plot: PlotFile = None) -> None:
    """Show one run: where its time went, its loss, evaluations, energy and checkpoints."""
    record = find(folder, run)
    report = _report(record)
    save_picture(plot, "draw_run", record, size=(9.0, 7.0))
    if json:
        print_json(report)
        return
    _print_head(report)
    _print_time(report)
    _print_losses(record.steps())
    _print_evaluations(report["eval"])
    if report["checkpoints"]:
        rows = [(one["name"], f"{one['step']:,}", quantity.SIZE.about(one["bytes"])) for one in report["checkpoints"]]
        print_table("complete checkpoints, newest first", ("checkpoint", "step", "size"), rows)


@app.command(name="compare")
def compare_runs(
    left: RunArgument,
    right: Annotated[str, Parameter(help="Name or path of another.")],
    /,
    *,
    folder: Folder = _RUNS,
    json: JsonFlag = False,
) -> None:
    """Compare two runs bit by bit; status 0 where they are equal, 1 with the first difference where not."""
    one, other = find(folder, left), find(folder, right)
    found = compare(one, other)
    if json:
        print_json(
            {
                "left": one.name,
                "right": other.name,
                **found.as_json(),
                "provenance": [one.provenance(), other.provenance()],
            }
        )
    if not found.equal:
        raise FailedError(_difference(one.name, other.name, found))
    if not json:
        say(
            f"{one.name} and {other.name} are equal bit for bit: "
            f"{found.steps_compared:,} steps, {found.tensors_compared:,} tensor digests"
        )


@app.command
def incidents(run: RunArgument, /, *, folder: Folder = _RUNS, json: JsonFlag = False) -> None:
    """Show what went wrong in a run: symptom, blamed rank, action, time lost."""
    record = find(folder, run)
    lines = record.incidents()
    if json:
        print_json({"run": record.name, "incidents": lines, "provenance": record.provenance()})
        return
    if not lines:
        say(f"{record.name}: no incidents")
        return
    rows = [
        (str(line["incident"]), line["at"][11:19], f"{line['step']:,}", line["kind"], _who(line),
         line["seen"].splitlines()[0], line["action"], line["restored_from"] or "-", f"{line['seconds_lost']:,.2f}",
         f"{line['gpu_seconds_lost']:,.1f}", f"{line['steps_repeated']:,}")
        for line in lines
    ]  # fmt: skip
    head = ("", "UTC", "step", "kind", "rank", "seen", "done", "restored from", "s lost", "GPU-s", "repeated")
    print_table(f"incidents of {record.name}", head, rows, words=range(3, 8))
    for line in lines:
        for note in line["passed_over"]:
            say(f"incident {line['incident']}: {note}")


def _who(line: Mapping[str, Any]) -> str:
    return "-" if line["rank"] is None else str(line["rank"])


def _summary(record: RunRecord) -> dict[str, Any]:
    lines, job = record.steps(), record.job()
    spent = sum(sum(line["seconds"].values()) for line in lines)
    tokens = sum(line["tokens"] for line in lines)
    result = record.result() or {}
    return {
        "run": record.name,
        "job": job.name,
        "state": record.state(),
        "steps": lines[-1]["step"] if lines else 0,
        "steps_asked": job.steps,
        "final_loss": lines[-1]["loss"] if lines else None,
        "tokens_per_s": result.get("tokens_per_s", tokens / spent if spent > 0 else None),
    }


def _report(record: RunRecord) -> dict[str, Any]:
    result, seconds = record.result() or {}, record.seconds()
    return {
        **_summary(record),
        "seconds": seconds,
        "wall_s": sum(seconds.values()),
        "mfu": result.get("mfu"),
        "weights_digest": result.get("weights_digest"),
        "energy_j": result.get("energy_j"),
        "energy": result.get("energy"),
        "eval": record.evaluations(),
        "checkpoints": [
            {"name": path.name, "step": manifest.step, "bytes": manifest.bytes}
            for path, manifest in record.checkpoints()
        ],
        "sessions": record.sessions(),
        "provenance": record.provenance(),
    }


def _print_head(report: Mapping[str, Any]) -> None:
    facts = [
        f"{report['run']}: {report['state']}, {report['steps']:,} of {report['steps_asked']:,} steps",
        f"final loss {_loss(report['final_loss'])}",
        f"{_rate(report['tokens_per_s'])} tokens/s",
    ]
    if report["mfu"] is not None:
        facts.append(f"MFU {report['mfu']:.1%}")
    if report["energy_j"] is not None:
        how = "" if report["energy"] is None else (" measured" if report["energy"]["measured"] else " partly estimated")
        facts.append(f"{quantity.ENERGY.about(report['energy_j'] * 1000)}{how}")
    if report["weights_digest"] is not None:
        facts.append(f"weights {report['weights_digest']}")
    say(", ".join(facts))


def _print_time(report: Mapping[str, Any]) -> None:
    wall = report["wall_s"]
    if not wall:
        return
    spent = sorted(report["seconds"].items(), key=lambda entry: -entry[1])
    rows = [(kind.replace("_", " "), f"{seconds:,.3f}", f"{seconds / wall:.1%}") for kind, seconds in spent]
    rows.append(("wall time", f"{wall:,.3f}", "100.0%"))
    print_table("time per rank, mean", ("class", "seconds", "share"), rows)


def _print_losses(lines: Sequence[Mapping[str, Any]]) -> None:
    if not lines:
        return
    losses = [from_bits(line["loss_bits"]) for line in lines]
    text = f"loss {_loss(losses[0])} {sparkline(losses)} {_loss(losses[-1])}"
    say(text)


def _print_evaluations(lines: Sequence[Mapping[str, Any]]) -> None:
    if not lines:
        return
    names = list(dict.fromkeys(name for line in lines for name in line if name != "step"))
    rows = [(f"{line['step']:,}", *(_loss(line.get(name)) for name in names)) for line in lines]
    print_table("evaluations", ("step", *names), rows, words=())


def sparkline(values: Sequence[float], width: int = _SPARKS) -> str:
    """Return `values` as a row of small bars, at most `width` of them; a gap where a value is not finite."""
    count = min(width, len(values))
    picked = [values[index * (len(values) - 1) // max(1, count - 1)] for index in range(count)]
    finite = [value for value in picked if abs(value) < float("inf")]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] if abs(value) < float("inf") else " " for value in picked)


def _difference(left: str, right: str, found: Comparison) -> str:
    assert found.values is not None
    if found.differs == "missing":
        text = f"step {found.step:,} is only in {left if found.values[0] else right}"
    elif found.differs == "tensor":
        text = f"{left} and {right} differ at step {found.step:,}"
    else:
        text = (
            f"{left} and {right} differ first at step {found.step:,}: "
            f"{found.differs} {found.values[0]} against {found.values[1]}"
        )
    if found.tensor is not None:
        return f"{text}; the first differing tensor known is {found.tensor}, at step {found.tensor_step:,}"
    if found.differs == "missing":
        return text
    known = f"the {found.tensors_compared:,} tensor digests that both have are equal"
    return f"{text}; {known if found.tensors_compared else 'there are no tensor digests to compare'}"


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _rate(value: float | None) -> str:
    return "-" if value is None else quantity.significant(value)
