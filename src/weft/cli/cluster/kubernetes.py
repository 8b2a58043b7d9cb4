"""`weft cluster install|control|act`: weft's CRDs, its controller and simulated nodes on a Kubernetes cluster."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from weft.cli.output import JsonFlag, print_json, say
from weft.core.errors import UsageError
from weft.core.extras import need
from weft.engines.local.client import Speaker

On = Annotated[str | None, Parameter(name="--on", help="Kubeconfig context; default: the current one.")]
Config = Annotated[Path | None, Parameter(name="--kubeconfig", help="Kubeconfig file; default: $KUBECONFIG.")]


def needed() -> None:
    """Say in one sentence which packages are missing."""
    need("aiohttp", "orjson", "yaml", "prometheus_client")


def remote(on: str, image: str | None = None, volumes: tuple[str, ...] = ()) -> Speaker:
    """Return a client of the cluster of a context; "." is the current one."""
    needed()
    from weft.engines.kubernetes.api.access import load
    from weft.engines.kubernetes.commands.remote import Remote

    pool = os.environ.get("WEFT_POOL", "weft")
    return Remote(load(None if on == "." else on, os.environ), image=image, volumes=volumes, pool=pool)


def print_rendered(table: Mapping[str, Any], kind: str, image: str | None, volumes: tuple[str, ...]) -> None:
    """Print a submission as JobSet or Kueue objects."""
    needed()
    from weft.engines.kubernetes.commands.rendering import rendered

    if table.get("within") or table.get("apart"):
        raise UsageError("--within and --apart are for weft's own scheduler; a rendered JobSet does not carry them")
    sys.stdout.write(rendered(table, kind, image, volumes))


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run until done; SIGTERM ends it as Ctrl-C does."""

    async def main() -> Any:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await work

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def install(
    *,
    on: On = None,
    kubeconfig: Config = None,
    print_: Annotated[bool, Parameter(name="--print", negative="", help="Print the CRDs as YAML instead.")] = False,
    json: JsonFlag = False,
) -> None:  # fmt: skip
    """Install weft's CRDs: WeftJob, Team, NodeHealth and Topology. Idempotent."""
    needed()
    if print_:
        from weft.engines.kubernetes.api.crds import manifest

        sys.stdout.write(manifest())
        return
    from weft.engines.kubernetes.api.access import load
    from weft.engines.kubernetes.commands.installation import install as work

    access = load(on, os.environ, kubeconfig)
    names = run(work(access))
    if json:
        print_json({"context": access.context, "kinds": names})
    else:
        say(f"{access.context}: {', '.join(names)} are served")


def control(
    *,
    on: On = None,
    kubeconfig: Config = None,
    pool: Annotated[str, Parameter(name="--pool", help="Node pool that weft manages.")] = "weft",
    namespace: Annotated[str | None, Parameter(name="--namespace", help="Only jobs of this namespace.")] = None,
    lease_namespace: Annotated[str, Parameter(name="--lease-namespace", help="Its namespace.")] = "weft-system",
    lease: Annotated[float, Parameter(name="--lease", help="Seconds until a silent leader loses its lease.")] = 15.0,
    identity: Annotated[str, Parameter(name="--identity", help="Lease identity; default: the host name.")] = "",
    metrics: Annotated[str, Parameter(name="--metrics", help="Serve metrics and health at HOST:PORT.")] = "",
    reports: Annotated[str, Parameter(name="--reports", help="URL at which pods reach --metrics.")] = "",
    rate: Annotated[float, Parameter(name="--rate", help="API writes per second, at most.")] = 2000.0,
    policy: Annotated[Path | None, Parameter(name="--policy", help="Policy file; changes in it are taken up.")] = None,
    decisions: Annotated[Path | None, Parameter(name="--decisions", help="Folder for logs of decisions.")] = None,
) -> None:  # fmt: skip
    """Run the controller: it places jobs on the pool's nodes and keeps them running. One replica leads."""
    needed()
    from weft.engines.kubernetes.api.access import load
    from weft.engines.kubernetes.api.crds import DEFAULT_IMAGE
    from weft.engines.kubernetes.controller.controller_main import Leading
    from weft.engines.kubernetes.controller.controller_main import control as work
    from weft.engines.kubernetes.controller.settings import Settings

    if rate < 1 or lease <= 0:
        raise UsageError(f"--rate {rate} and --lease {lease} must be at least 1 write and more than 0 seconds")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if policy is not None:
        from weft.cluster.from_policy import policy_of_spec
        from weft.specs import load_policy

        policy_of_spec(load_policy(str(policy)))
    access = load(on, os.environ, kubeconfig)
    settings = Settings(pool=pool, namespace=namespace, rate_per_s=rate, aggregator=reports.rstrip("/"),
                        policy_file=policy, decisions=decisions,
                        image=os.environ.get("WEFT_IMAGE", DEFAULT_IMAGE))  # fmt: skip
    leading = Leading(lease_namespace, identity or socket.gethostname(), lease, metrics, **_leading())
    run(work(access, settings, leading))


def _leading() -> dict[str, Any]:
    """Return what a Deployment says by its environment: where reports are heard, and where tickets go."""
    folder = os.environ.get("WEFT_TICKETS_FOLDER")
    return {
        "advertise": os.environ.get("WEFT_ADVERTISE", ""), "tickets": os.environ.get("WEFT_TICKETS_URL", ""),
        "ticket_token": os.environ.get("WEFT_TICKETS_TOKEN", ""), **({"ticket_folder": Path(folder)} if folder else {}),
    }  # fmt: skip


def act(
    *,
    on: On = None,
    kubeconfig: Config = None,
    nodes: Annotated[int, Parameter(name="--nodes", help="Nodes to simulate.")] = 100,
    gpus: Annotated[int, Parameter(name="--gpus", help="GPUs per node.")] = 8,
    pool: Annotated[str, Parameter(name="--pool", help="Node pool that they join.")] = "weft",
    start: Annotated[float, Parameter(name="--start", help="Start-up seconds of a pod.")] = 0.0,
    run_for: Annotated[float | None, Parameter(name="--run", help="Seconds that a pod runs; default: no end.")] = None,
    exec_: Annotated[bool, Parameter(name="--exec", negative="", help="Run the pods' commands here.")] = False,
    folder: Annotated[Path, Parameter(name="--folder", help="Folder for --exec's volumes and logs.")] = Path("acted"),
    silence: Annotated[float, Parameter(name="--silence", help="Share of nodes that stop heartbeating.")] = 0.0,
    after: Annotated[float, Parameter(name="--after", help="Seconds until they stop.")] = 60.0,
) -> None:  # fmt: skip
    """Run simulated nodes against a real API server: they heartbeat and move pods through their phases."""
    needed()
    from weft.engines.kubernetes.api.access import load
    from weft.testing.kubelets import SimulatedNodes, checked_count, simulate

    if not 0 <= silence <= 1:
        raise UsageError(f"--silence {silence}: write a share from 0 to 1")
    stage = checked_count(SimulatedNodes(nodes, gpus, pool, start_s=start, run_s=run_for))
    access = load(on, os.environ, kubeconfig)

    def ready() -> None:
        say(f"{nodes:,} simulated nodes on {access.context}, heartbeat {stage.period_s:.0f} s; Ctrl-C ends it")

    run(simulate(access, stage, ready, folder if exec_ else None, (silence, after)))


def pod(
    *command: Annotated[str, Parameter(help="Command to run; default: a training.", allow_leading_hyphen=True)],
) -> None:
    """Be the program inside a pod: run a command in the submitter's folder, or the ranks of a training."""
    from weft.engines.kubernetes.pod.pod_main import run as work

    status = work(command, os.environ)
    if status:
        sys.exit(status)
