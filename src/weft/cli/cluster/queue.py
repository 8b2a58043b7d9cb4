"""`weft jobs|logs|cancel|why|nodes|drain|undrain`: look at the cluster's queue and its nodes, and change them."""

import getpass
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from weft.cli.cluster.local import HomeOption, OnOption, ago, client_of, print_nodes
from weft.cli.output import JsonFlag, print_json, print_table, say, watched
from weft.core.errors import UsageError
from weft.core.quantity import significant
from weft.engines.local.client import Speaker

nodes_app = App(name="nodes", help="List the cluster's nodes, or test this machine.", help_format="plaintext")

Rank = Annotated[int, Parameter(help="Rank whose output is printed.")]
JobName = Annotated[str, Parameter(help="Job name, as in `weft jobs`.")]
NodeName = Annotated[str, Parameter(help="Node name, as in `weft nodes`.")]
WatchFlag = Annotated[bool, Parameter(name=("--watch", "-w"), negative="", help="Print it again and again.")]
Reason = Annotated[str, Parameter(help="Reason for the record.")]
_WAIT_S = 10
_SHOWN = 30


def jobs(
    name: Annotated[str | None, Parameter(help="Job or sweep name.")] = None, /, *,
    all: Annotated[bool, Parameter(name=("--all", "-a"), negative="", help="Include finished jobs.")] = False,
    watch: WatchFlag = False, home: HomeOption = None, on: OnOption = None, json: JsonFlag = False,
) -> None:  # fmt: skip
    """List jobs; with the name of one, everything about it; with that of a sweep, its jobs compared, best first."""
    client = client_of(home, on)
    if watch:
        watched(lambda: _show(client, name, all=all, json=json))
    else:
        _show(client, name, all=all, json=json)


def _show(client: Speaker, name: str | None, *, all: bool, json: bool) -> None:
    if name is None:
        _list(client, all=all, json=json)
        return
    array = _array(client, name)
    document = client.get("v1", "jobs", name) if array is None else array
    if json:
        print_json(document)
    elif array is not None:
        print_array(array)
    else:
        _print_job(document)


def _array(client: Speaker, name: str) -> Any:
    try:
        return client.get("v1", "arrays", name)
    except UsageError:
        return None


def _list(client: Speaker, *, all: bool, json: bool) -> None:
    found = client.get("v1", "jobs", state="all" if all else "open")["jobs"]
    if json:
        print_json(found)
        return
    if not found:
        say("no jobs; weft submit creates one" if all else "no open jobs; weft jobs --all includes finished ones")
        return
    now = client.get("v1", "status")["now_ms"]
    rows = [
        (job["id"], job["kind"], job["team"], f"{job['priority']}", f"{job['nodes']}x{job['gpus_per_node']}",
         job["state"], _since(job, now), job["text"] or ", ".join(job["on"]))
        for job in found
    ]  # fmt: skip
    columns = ("job", "kind", "team", "priority", "nodes", "state", "for", "where, or why not")
    print_table("jobs, newest first", columns, rows, words=(0, 1, 2, 5, 7))


def _since(job: Mapping[str, Any], now_ms: int) -> str:
    if job["ended_ms"] is not None:
        return ago(job["ended_ms"] - (job["start_ms"] or job["ended_ms"]))
    return ago(now_ms - (job["start_ms"] or job["submit_ms"]))


def print_array(document: Mapping[str, Any]) -> None:
    """Print the jobs of a sweep, best first."""
    members = document["members"]
    keys = list(members[0]["sweep"])
    rows = [
        ("-" if job["score"] is None else significant(job["score"], 5), *(job["sweep"][key] for key in keys), job["id"],
         job["state"], job["text"])
        for job in members
    ]  # fmt: skip
    columns = (document["metric"], *keys, "job", "state", "")
    print_table(f"{document['array']}, best first", columns, rows, words=tuple(range(1, len(columns))))


def _print_job(job: Mapping[str, Any]) -> None:
    what = " ".join(job["command"]) if job["command"] else f"training {job['training']['name']}"
    say(f"{job['id']}: {what}")
    say(", ".join(filter(None, (job["state"], job["text"]))))
    _print_history(job["history"])
    if job["incidents"]:
        rows = [
            (f"{one['step']}", one["kind"], str(one["slot"]), one["action"] or "", one["outcome"] or "",
             f"{one['seconds_lost'] or 0:.2f}", f"{one['gpu_seconds_lost'] or 0:.2f}")
            for one in job["incidents"]
        ]  # fmt: skip
        columns = ("after step", "what", "slot", "action", "outcome", "s lost", "GPU-s lost")
        print_table("incidents", columns, rows, words=(1, 3, 4))


def _print_history(history: list[Mapping[str, Any]]) -> None:
    start = history[0]["at_ms"] if history else 0
    rows = [(f"{(line['at_ms'] - start) / 1000:,.1f} s", line["text"]) for line in history[-_SHOWN:]]
    print_table("history, since submission", ("at", "what"), rows, words=(1,))


def logs(
    job: JobName, /, *,
    follow_it: Annotated[bool, Parameter(name=("--follow", "-f"), negative="", help="Stream new output.")] = False,
    rank: Rank = 0, home: HomeOption = None, on: OnOption = None, json: JsonFlag = False,
) -> None:  # fmt: skip
    """Print the output of a job."""
    client = client_of(home, on)
    if json:
        print_json(client.get("v1", "jobs", job, "log", rank=rank))
    elif follow_it:
        follow(client, job, rank)
    else:
        offset, more = 0, True
        while more:
            part = client.get("v1", "jobs", job, "log", rank=rank, offset=offset)
            sys.stdout.write(part["text"])
            offset, more = part["next"], bool(part["text"])


def follow(client: Speaker, job: str, rank: int) -> None:
    """Print the output of a job as it comes, over all of its attempts, until it has ended."""
    offset, attempt = 0, 0
    while True:
        asked = {"attempt": attempt} if attempt else {}
        part = client.get("v1", "jobs", job, "log", rank=rank, offset=offset, wait=_WAIT_S, **asked)
        sys.stdout.write(part["text"])
        sys.stdout.flush()
        offset, attempt = part["next"], part["attempt"]
        if not part["text"] and part["newest_attempt"] > attempt:
            offset, attempt = 0, part["newest_attempt"]
        elif not part["more"]:
            return


def cancel(
    *names: Annotated[str, Parameter(help="Job or sweep names.")],
    home: HomeOption = None,
    on: OnOption = None,
    json: JsonFlag = False,
) -> None:
    """Cancel jobs or sweeps; running ones are asked to end, then killed."""
    if not names:
        raise UsageError("name a job to cancel; weft jobs lists them")
    client = client_of(home, on)
    found = [job for name in names for job in client.post("v1", "jobs", name, "cancel")["jobs"]]
    if json:
        print_json(found)
        return
    for job in found:
        say(f"{job['id']}: {job['state']}")


def why(
    job: JobName, /, *,
    from_slurm: Annotated[tuple[Path, ...], Parameter(
        negative="", help="Answer from files of `squeue --json` and `sinfo --json`, or a folder of them.")] = (),
    from_kueue: Annotated[tuple[Path, ...], Parameter(
        negative="", help="Answer from files of `kubectl get workloads,... -A -o json`, or a folder of them.")] = (),
    what_if: Annotated[tuple[str, ...], Parameter(
        negative="", help="Change to try: cancel=JOB, priority=JOB:N, limit=JOB:TIME, nodes=+N, quota=QUEUE:N.",
    )] = (),
    home: HomeOption = None, on: OnOption = None, json: JsonFlag = False,
) -> None:  # fmt: skip
    """Explain why a job waits: the rule, the jobs before it, when it will start, and what would start it sooner."""
    if from_slurm or from_kueue:
        from weft.cli.cluster.advise import advise_from

        if from_slurm and from_kueue:
            raise UsageError("--from-slurm and --from-kueue are two clusters; ask about one of them")
        scheduler = "slurm" if from_slurm else "kueue"
        advise_from(scheduler, from_slurm or from_kueue, job, what_if, json=json)
        return
    if what_if:
        raise UsageError("--what-if changes a snapshot; give one with --from-slurm or --from-kueue")
    document = client_of(home, on).get("v1", "jobs", job, "why")
    if json:
        print_json(document)
        return
    say(f"{document['job']} is {document['state']}: {document['text']}")
    if document["state"] == "waiting":
        if document["before"]:
            more = document["position"] - len(document["before"])
            names = ", ".join(document["before"]) + (f" and {more:,} more" if more > 0 else "")
            say(f"before it: {names}")
        if document["holds"]:
            say(f"nodes are held by: {', '.join(document['holds'])}")
        say(f"it starts: {_when(document)}")
        for hint in document["sooner"]:
            say(f"sooner if: {hint}")


def _when(document: Mapping[str, Any]) -> str:
    """Return when a job is thought to start, with the interval where there is one."""
    expected, now = document["expected_ms"], document["now_ms"]
    early, late = document.get("early_ms"), document.get("late_ms")
    if expected is None:
        return "unknown"
    if early is None or late is None:
        return f"in {ago(expected - now)}"
    return f"in about {ago(expected - now)}; 80 % interval {ago(early - now)} to {ago(late - now)}"


@nodes_app.default
def nodes(*, watch: WatchFlag = False, home: HomeOption = None, on: OnOption = None, json: JsonFlag = False) -> None:
    """List the nodes: state, their jobs, evidence of faults."""
    client = client_of(home, on)
    if watch:
        watched(lambda: _show_nodes(client, json=json))
    else:
        _show_nodes(client, json=json)


def _show_nodes(client: Speaker, *, json: bool) -> None:
    document = client.get("v1", "nodes")["nodes"]
    if json:
        print_json(document)
        return
    print_nodes(document, client.get("v1", "status")["now_ms"])


def drain(
    node: NodeName, /, *, reason: Reason = "", home: HomeOption = None, on: OnOption = None, json: JsonFlag = False
) -> None:
    """Cordon a node: running work goes on, nothing new starts."""
    _drain(node, "drain", reason, client_of(home, on), json=json)


def undrain(
    node: NodeName, /, *, reason: Reason = "", home: HomeOption = None, on: OnOption = None, json: JsonFlag = False
) -> None:
    """Return a node to service."""
    _drain(node, "undrain", reason, client_of(home, on), json=json)


def _drain(node: str, verb: str, reason: str, client: Speaker, *, json: bool) -> None:
    document = client.post("v1", "nodes", node, verb, body={"by": _user(), "reason": reason})
    if json:
        print_json(document)
        return
    say(f"{document['name']} is {document['state']}")


def _user() -> str:
    """Return the user who asks, for the record."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "operator"
