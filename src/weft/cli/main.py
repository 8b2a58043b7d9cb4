"""The command `weft`: its words, where each is implemented, and how a run ends.

Commands are named by import path and imported when they are called, so `weft --help` loads neither numpy nor torch.
Status 0: done; 1: it failed; 2: it was asked wrongly; 130: interrupted.
"""

import errno
import os
import sys

from cyclopts import App, CycloptsError, UnusedCliTokensError
from rich.console import Console

from weft.core.errors import WeftError
from weft.core.version import VERSION

INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

app = App(
    name="weft",
    help="Rehearse a 131,072-GPU training run on your laptop, then run it.",
    version=VERSION,
    help_format="plaintext",
    help_epilogue="SITE, JOB and SCENARIO are built-in names or TOML files. Every command that reports takes --json.",
    exit_on_error=False,
    print_error=False,
)


def _group(name: str, help_line: str) -> App:
    group = App(name=name, help=help_line, help_format="plaintext")
    app.command(group)
    return group


app.command(
    "weft.cli.network.design:design", name="design", help="Compare fabrics for a number of GPUs, or describe a site's."
)
app.command(
    "weft.cli.network.explain:explain", name="explain", help="Show why a design decision works, with a site's numbers."
)
app.command("weft.cli.network.simulate:simulate", name="simulate", help="Run a scenario, packet by packet.")

app.command(
    "weft.cli.planning.rehearse:rehearse_job", name="rehearse", help="Say what a job would do on a site, on one page."
)
app.command(
    "weft.cli.planning.plan:app", name="plan", help="Find the best plans of a job on a site and what they cost."
)

fabric = _group("fabric", "Look inside a site's fabric: paths, tables, exports.")
fabric.command(
    "weft.cli.network.fabric:path", name="path", help="Follow a packet through the static tables, hop by hop."
)
fabric.command("weft.cli.network.fabric:table", name="table", help="Print the static forwarding table of one switch.")
fabric.command(
    "weft.cli.network.fabric:import_network", name="import", help="Read any network from an edge list (CSV)."
)
fabric.command(
    "weft.cli.network.fabric:export", name="export", help="Print the fabric as Linux commands (iproute2, seg6local)."
)

site = _group("site", "Look at sites, and measure this machine as one.")
site.command("weft.cli.files:list_sites", name="list", help="List the built-in sites.")
site.command("weft.cli.files:show_site", name="show", help="Print a site with everything it inherits.")
site.command("weft.cli.planning.measure:measure", name="measure", help="Measure this machine and write it as a site.")

app.command(
    "weft.cli.extensions:lab",
    name="lab",
    help="Build a real SRv6 fabric on this machine, break it, send over it.",
)

app.command("weft.cli.training.train:train", name="train", help="Train a job on this machine, from one plan.")
app.command("weft.cli.training.runs:app", name="runs", help="List, show and compare what trainings have left behind.")
cluster = _group("cluster", "Run a cluster on this machine, or replay one in simulated time.")
cluster.command("weft.cli.cluster.local:up", name="up", help="Start the cluster of this machine.")
cluster.command("weft.cli.cluster.local:down", name="down", help="Stop its daemon; jobs that run go on.")
cluster.command("weft.cli.cluster.local:status", name="status", help="Show nodes, teams and jobs.")
app.command(
    "weft.cli.cluster.submit:submit", name="submit", help="Hand a training, a command or a sweep to the cluster."
)
app.command("weft.cli.cluster.queue:jobs", name="jobs", help="List jobs, show one, or compare the jobs of a sweep.")
app.command("weft.cli.cluster.queue:logs", name="logs", help="Print the output of a job.")
app.command("weft.cli.cluster.queue:cancel", name="cancel", help="Call off jobs or sweeps.")
app.command(
    "weft.cli.cluster.queue:why", name="why", help="Say why a job waits, when it starts, and what would make it sooner."
)
app.command("weft.cli.cluster.health:nodes_app", name="nodes", help="List the cluster's nodes, or test this machine.")
app.command("weft.cli.cluster.queue:drain", name="drain", help="Give a node no more work.")
app.command("weft.cli.cluster.queue:undrain", name="undrain", help="Give a node back.")

app.command("weft.cli.planning.scale:app", name="scale", help="Predict the loss of a large run from small ones.")
cluster.command("weft.cli.cluster.replay:replay", name="replay", help="Replay a trace through the real decisions.")
cluster.command("weft.cli.cluster.replay:generate", name="generate", help="Make a trace from a seed.")

cluster.command("weft.cli.cluster.kubernetes:install", name="install", help="Make weft's kinds known to Kubernetes.")
cluster.command("weft.cli.cluster.kubernetes:control", name="control", help="Run the engine of a Kubernetes cluster.")
cluster.command("weft.cli.cluster.kubernetes:act", name="act", help="Play nodes against a real API server.")
app.command("weft.cli.cluster.kubernetes:pod", name="pod", help="Be the program inside a pod.", show=False)

app.command("weft.cli.files:schema", name="schema", help="Print the JSON schema of a kind of file.")
app.command("weft.cli.files:check", name="check", help="Check files and name every mistake in them.")
app.command("weft.cli.files:completion", name="completion", help="Print the completion script of a shell.")


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        app(arguments, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        errors.print(f"[bold red]error:[/] {_escaped(_in_words(error))}")
        errors.print("[dim]weft --help lists the commands; weft COMMAND --help their options[/]")
        return 2
    except WeftError as error:
        errors.print(f"[bold red]error:[/] {_escaped(str(error))}")
        return error.exit_status
    except KeyboardInterrupt:
        errors.print("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has gone: not a failure of ours, and nothing more may be written to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        errors.print(f"[bold red]error:[/] the output can not be written: {error.strerror}")
        return 1
    return 0


def run() -> None:
    """Run the command line and leave the process; the entry point of `weft`."""
    sys.exit(main())


def _in_words(error: CycloptsError) -> str:
    """Return what was asked wrongly; words that no command wanted are named without the parser's own terms."""
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"nothing is asked for at {' '.join(map(repr, error.unused_tokens))}; leave it out"
    return str(error)


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
