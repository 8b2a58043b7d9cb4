"""`weft cluster up|down|status`: the daemon of a cluster of slots on this machine."""

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from weft import api
from weft.cli.output import JsonFlag, print_json, print_table, say
from weft.core.errors import FailedError, UsageError
from weft.core.extras import need
from weft.engines.local.client import LocalClient, Speaker, UnreachableError
from weft.engines.local.home import Home

HomeOption = Annotated[
    Path | None, Parameter(name="--home", help="Cluster folder; default: $WEFT_CLUSTER, or ~/.weft/cluster.")
]
OnOption = Annotated[
    str | None, Parameter(name="--on", help="Kubernetes context instead of this machine; '.' for the current.")
]
DEFAULT_NODES = 4
LOOPBACK = "127.0.0.1"
DAEMON = ("starlette", "uvicorn", "prometheus_client")
"""Packages that the daemon needs; it is another process, and could say so in its log only."""
_PATIENCE_S, _LOOK_S = 30.0, 0.05
_NAMED = 5


def home_of(given: Path | None) -> Home:
    """Return the cluster that is meant."""
    return api.cluster_home(given)


def client_of(given: Path | None, on: str | None = None) -> Speaker:
    """Return a way to the cluster that is meant: this machine's, or the Kubernetes context `on`."""
    if on is None:
        return LocalClient(home_of(given))
    from weft.cli.cluster.kubernetes import remote

    return remote(on)


def up(
    *,
    nodes: Annotated[
        int | None, Parameter(help=f"Slots of this machine, each a node; default {DEFAULT_NODES}.")
    ] = None,
    gpus: Annotated[int | None, Parameter(help="GPUs (one rank each) per slot; default 1.")] = None,
    team: Annotated[tuple[str, ...], Parameter(negative="", help="Team and its GPU quota: NAME=GPUS.")] = (),
    host: Annotated[
        str, Parameter(help="Address to listen on; any but loopback is reachable from the network.")
    ] = LOOPBACK,
    port: Annotated[int, Parameter(help="Port; 0 for any free one.")] = 0,
    policy: Annotated[
        str | None, Parameter(help="Policy file, or a built-in policy's name; a running cluster takes it up.")
    ] = None,
    home: HomeOption = None,
    json: JsonFlag = False,
) -> None:
    """Start the cluster of this machine, or say that it is up; jobs of an earlier one are adopted."""
    need(*DAEMON)
    place = home_of(home)
    client = LocalClient(place)
    running = client.process()
    if policy is not None:
        _save_policy(place, policy)
    if running is None:
        bring_up(place, nodes=nodes, gpus=gpus, team=team, host=host, port=port)
    elif nodes is not None or gpus is not None or team:
        raise UsageError("the cluster is up; weft cluster down first, then give it other nodes or teams")
    where = place.where()
    url = f"http://{where[0]}:{where[1]}" if where else None
    document: dict[str, Any] = {"url": url, "console": f"{url}/?token={place.token()}", "home": str(place.folder),
                "started": running is None, **client.get("v1", "status")}  # fmt: skip
    if json:
        print_json(document)
        return
    verb = "is up already" if running is not None else "is up"
    count, held = len(document["nodes"]), document["jobs"].get("running", 0)
    say(f"cluster {verb}: {count} nodes at {document['url']}, state in {place.folder}"
        f"{f', {held} jobs running' if held else ''}")  # fmt: skip
    say(f"console: {document['console']}")


def bring_up(
    place: Home, *, nodes: int | None = None, gpus: int | None = None, team: tuple[str, ...] = (),
    host: str = LOOPBACK, port: int = 0,
) -> None:  # fmt: skip
    """Start the daemon of a cluster that is not up."""
    need(*DAEMON)
    from weft.web.http.listening import listen

    # The daemon is another process: what it cannot listen on is said here, in one sentence.
    listen(host, port).close()
    place.make()
    _configure(place, nodes, gpus, team)
    _start(place, host, port)


def _save_policy(place: Home, reference: str) -> None:
    """Write a policy, with all that it is built on, where the engine reads it."""
    from weft.cluster.from_policy import policy_of_spec
    from weft.core.toml import written
    from weft.specs import load_policy

    spec = load_policy(reference)
    policy_of_spec(spec)
    place.make()
    part = place.policy.with_suffix(".part")
    part.write_text(written(spec.as_written()), encoding="utf-8")
    part.replace(place.policy)


def take_down(client: LocalClient) -> bool:
    """Stop the daemon, and return whether there was one."""
    running = client.process()
    if running is not None:
        running.signal(signal.SIGTERM)
        _until(lambda: not running.alive(), "the daemon does not exit")
    return running is not None


def down(
    *,
    jobs: Annotated[bool, Parameter(negative="", help="Cancel open jobs first.")] = False,
    home: HomeOption = None,
    json: JsonFlag = False,
) -> None:
    """Stop the cluster's daemon; running jobs go on, and weft cluster up adopts them."""
    client = LocalClient(home_of(home))
    running = client.process()
    left: list[str] = []
    if running is not None:
        left = [job["id"] for job in client.get("v1", "jobs", state="open")["jobs"]]
        if jobs:
            left = _cancel_all(client, left)
        take_down(client)
    if json:
        print_json({"stopped": running is not None, "jobs_left": left})
        return
    text = "cluster is down" if running is not None else "no cluster was up"
    more = f"; {len(left)} jobs have not ended and go on: {', '.join(left[:_NAMED])}" if left else ""
    say(text + more)


def status(*, home: HomeOption = None, json: JsonFlag = False) -> None:
    """Show the cluster: nodes, teams, jobs, alarms and what happened last."""
    place = home_of(home)
    document = LocalClient(place).get("v1", "status")
    if json:
        print_json(document)
        return
    print_nodes(document["nodes"], document["now_ms"])
    rows = [
        (team["name"], f"{team['quota_gpus']:,}", f"{team['holds_gpus']:,}", _most(team)) for team in document["teams"]
    ]
    print_table("teams", ("team", "quota", "holds", "at most"), rows)
    counts = ", ".join(f"{count:,} {state}" for state, count in sorted(document["jobs"].items())) or "none yet"
    say(f"jobs: {counts}")
    for alarm in document["alarms"]:
        say(f"alarm: {alarm}")
    health = document.get("health", {})
    if health.get("state", "ok") != "ok":
        error = health["last_error"] or {"text": "it does not say why"}
        say(f"alarm: the engine is {health['state']}: {error['text']}")


def _most(team: Mapping[str, Any]) -> str:
    return "-" if team["most_gpus"] is None else f"{team['most_gpus']:,}"


def print_nodes(nodes: Sequence[Mapping[str, Any]], now_ms: int) -> None:
    """Print nodes, their state and their jobs."""
    rows = [
        (node["name"], node["state"], f"{node['usable_gpus']}",
         ago(now_ms - node["since_ms"]) if node["since_ms"] else "-", ", ".join(node["jobs"]), _evidence(node))
        for node in nodes
    ]  # fmt: skip
    print_table("nodes", ("node", "state", "GPUs", "for", "jobs", "seen"), rows, words=(0, 1, 4, 5))


def _evidence(node: Mapping[str, Any]) -> str:
    if node["override_by"]:
        return str(node["override_by"])
    return "; ".join(str(one.get("text", one["check"])) for one in node["evidence"][-2:])


def ago(span_ms: int) -> str:
    """Return a time as people say it: 12 s, 3 min, 5 h."""
    seconds = max(0, span_ms) // 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _configure(place: Home, nodes: int | None, gpus: int | None, team: tuple[str, ...]) -> None:
    """Write down what the cluster is made of, where that is new or asked for."""
    from weft.cluster.records.job import Team
    from weft.engines.local.site_state import SiteState
    from weft.engines.policy_file import default_policy

    memory = SiteState(place)
    try:
        known = memory.store.nodes()
        if known and nodes is None and gpus is None and not team:
            return
        count = nodes if nodes is not None else len(known) or DEFAULT_NODES
        each = gpus if gpus is not None else (known[0].gpus if known else 1)
        memory.configure(count, each, [Team(*_team(text)) for text in team], default_policy())
    finally:
        memory.store.close()


def _team(text: str) -> tuple[str, int]:
    name, equals, quota = text.partition("=")
    if not equals or not (quota.isascii() and quota.isdigit()):
        raise UsageError(f"--team {text}: write NAME=GPUS, such as --team research=2")
    return name, int(quota)


def _start(place: Home, host: str, port: int) -> None:
    """Start the daemon and wait until it answers."""
    with place.log.open("ab") as log:
        began = log.tell()
        child = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "weft.web.daemon", str(place.folder), "--host", host, "--port", str(port)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    client = LocalClient(place)

    def ready() -> bool:
        if child.poll() is not None:
            said = place.log.read_text(encoding="utf-8", errors="replace")[began:].strip().splitlines()
            raise FailedError(f"the daemon did not start: {said[-1] if said else 'no output'}; see {place.log}")
        try:
            return client.process() is not None and bool(client.get("v1", "status"))
        except UnreachableError:
            return False

    _until(ready, f"the daemon does not answer; see {place.log}")
    # Python would complain of a process that nobody has waited for; outliving us is the purpose.
    child.returncode = 0


def _cancel_all(client: LocalClient, names: Sequence[str]) -> list[str]:
    for name in names:
        client.post("v1", "jobs", name, "cancel")
    _until(lambda: not client.get("v1", "jobs", state="open")["jobs"], "some jobs do not end")
    return []


def _until(done: Any, text: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise FailedError(f"{text} within {_PATIENCE_S:g} s")
        time.sleep(_LOOK_S)
