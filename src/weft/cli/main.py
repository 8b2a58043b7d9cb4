"""The command `weft`: its words, where each is implemented, and how a run ends.

Commands are named by import path and imported when they are called, so `weft --help` loads neither numpy nor torch.
Exit status 0: done; 1: it failed; 2: wrong use; 130: interrupted.
"""

import errno
import itertools
import os
import re
import sys
from contextlib import nullcontext

from cyclopts import App, CycloptsError, Group, Parameter
from rich.console import Console
from rich.markup import escape

from weft.cli.screen.defaults import put_defaults
from weft.cli.screen.examples import example_of
from weft.cli.screen.life_sign import showing
from weft.cli.screen.logs import level_of, logged, without_verbosity
from weft.cli.screen.refusals import hint, in_words, refuse_empty_paths
from weft.cli.screen.tables import prose_lines
from weft.core.errors import WeftError
from weft.core.extras import missing
from weft.core.version import VERSION

INTERRUPTED = 130
_LONGEST_LINE, _MOST_LINES = 1_000, 200
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

app = App(
    name="weft",
    help="Rehearse a 131,072-GPU training run on your laptop, then run it.",
    version=VERSION,
    help_format="plaintext",
    help_epilogue="SITE, JOB and SCENARIO are built-in names or TOML files. Every command that reports takes --json. "
    "-v before a command logs what it does.",
    config=(put_defaults, refuse_empty_paths),
    default_parameter=Parameter(json_list=False, json_dict=False),
    exit_on_error=False,
    print_error=False,
)


_GROUPS = {
    "fabric": "Look inside a site's fabric: paths, tables, exports.",
    "site": "Look at sites, and measure this machine as one.",
    "health": "Watch a node's health, and list what each fault calls for.",
    "cluster": "Run a cluster on this machine or on Kubernetes, or replay one in simulated time.",
}
_COMMANDS = """
Design:
design            weft.cli.network.design:design          Compare fabrics for a number of GPUs, or describe a site's.
explain           weft.cli.network.explain:explain        Show why a design decision works, with a site's numbers.
fabric path       weft.cli.network.fabric:path            Follow a packet through the static tables, hop by hop.
fabric table      weft.cli.network.fabric:table           Print the static forwarding table of one switch.
fabric import     weft.cli.network.fabric:import_network  Read any network from an edge list (CSV).
fabric export     weft.cli.network.fabric:export          Print the fabric as Linux commands (iproute2, seg6local).
fabric dissector  weft.cli.network.dissector:dissector    Print the dissector of MRC for Wireshark and tshark (Lua).
site list         weft.cli.files:list_sites               List the built-in sites.
site show         weft.cli.files:show_site                Print a site with everything it inherits.
site measure      weft.cli.planning.measure:measure       Measure this machine and write it as a site.
plan              weft.cli.planning.plan:app              Find the best plans of a job on a site and their cost.
campaign          weft.cli.planning.campaign:app       Run months of a fleet: faults, repairs, controllers.
capacity          weft.cli.planning.capacity:capacity   Say which limit binds when: power, floor, delivery, money.
rehearse          weft.cli.planning.rehearse:rehearse_job Predict what a job would do on a site, on one page.
serve-plan        weft.cli.planning.serve:serve_plan      Plan serving a model: prefill, decode, KV cache, price.
scale             weft.cli.planning.scale:app             Predict the loss of a large run from small ones.
calibrate         weft.cli.planning.calibrate:calibrate   Compare the log of a run with its prediction, and calibrate.
Simulate:
simulate          weft.cli.network.simulate:simulate      Run a scenario, packet by packet.
Train:
train             weft.cli.training.train:train           Train a job on this machine, from one plan.
run               weft.cli.training.supervised_command:run Supervise any command, such as torchrun's, on several ranks.
Cluster:
cluster up        weft.cli.cluster.local:up               Start the cluster of this machine.
cluster down      weft.cli.cluster.local:down             Stop its daemon; running jobs go on.
cluster status    weft.cli.cluster.local:status           Show nodes, teams and jobs.
cluster replay    weft.cli.cluster.replay:replay          Replay a job trace through the real scheduler.
cluster generate  weft.cli.cluster.traces:generate        Generate a job trace from a seed.
cluster trace     weft.cli.cluster.traces:convert         Convert another project's job trace for a replay.
cluster install   weft.cli.cluster.kubernetes:install     Install weft's CRDs in a Kubernetes cluster.
cluster control   weft.cli.cluster.kubernetes:control     Run weft's controller of a Kubernetes cluster.
cluster act       weft.cli.cluster.kubernetes:act         Run simulated (KWOK-like) nodes against a real API server.
health agent      weft.cli.cluster.health_agent:agent     Watch this node: kernel log, GPUs, NICs; report faults.
health catalogue  weft.cli.cluster.health_agent:catalogue List the known faults, their actions and their sources.
submit            weft.cli.cluster.submit:submit          Submit a training, a command or a sweep to the cluster.
jobs              weft.cli.cluster.queue:jobs             List jobs, show one, or compare the jobs of a sweep.
logs              weft.cli.cluster.queue:logs             Print the output of a job.
cancel            weft.cli.cluster.queue:cancel           Cancel jobs or sweeps.
why               weft.cli.cluster.queue:why              Explain why a job waits and when it will start.
nodes             weft.cli.cluster.health:nodes_app       List the cluster's nodes, or test this machine.
drain             weft.cli.cluster.queue:drain            Cordon a node: running work goes on, nothing new starts.
undrain           weft.cli.cluster.queue:undrain          Return a node to service.
pod               weft.cli.cluster.kubernetes:pod         Be the program inside a pod.
Lab:
lab               weft.cli.extensions:lab                 Build a real SRv6 fabric on this machine and break it.
Look:
doctor            weft.cli.look.doctor:doctor             Read anybody's traces and logs: slow, stuck, wrong, who?
ui                weft.cli.look.console:ui                Open the console: runs, what-if, fabric, cluster.
top               weft.cli.look.top:top                   Show runs and the cluster on a terminal, again and again.
export            weft.cli.look.export:export             Export a run as a trace or as weights, or a plan.
runs              weft.cli.training.runs:app              List, show and compare training runs.
schema            weft.cli.files:schema                   Print the JSON schema of a kind of file.
check             weft.cli.files:check                    Check files and report every mistake in them.
completion        weft.cli.files:completion               Print the completion script of a shell.
compile           weft.cli.look.compiling:compile_ahead   Compile simulator and transport now, so that no run waits.
"""
_NESTED = (*re.findall(r"^([\w-]+) +\S+:\w*app ", _COMMANDS, re.MULTILINE), "lab")
"""Commands with commands below them that are defined where they are implemented."""
_CARRIERS = ("submit", "lab", "pod")
"""Commands that run words of their command line as a command."""
_SPEAK_THEMSELVES = ("lab exec", "logs", "ui", "top", "pod", "cluster control", "cluster act", "completion")
"""Commands whose screen belongs to somebody else, or that log what they do."""
_HIDDEN = ("pod",)
"""Commands for programs: the entry point of weft's pods."""

for _place, (_heading, _lines) in enumerate(re.findall(r"^(\w+):\n((?:.+\n)+?)(?=\w+:\n|\Z)", _COMMANDS, re.MULTILINE)):
    _section = Group(_heading, sort_key=_place)
    for _words, _path, _help in re.findall(r"^([\w-]+(?: \w+)?) +(\S+) +(.+)$", _lines, re.MULTILINE):
        *_group, _name = _words.split()
        if _group and _group[0] not in app:
            app.command(App(name=_group[0], help=_GROUPS[_group[0]], help_format="plaintext", group=_section))
        _shown = _name not in _HIDDEN
        if _group:
            app[_group[0]].command(_path, name=_name, help=_help, show=_shown)
        else:
            app.command(_path, name=_name, help=_help, show=_shown, group=_section)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        words = list(sys.argv[1:] if arguments is None else arguments)
        # A command that is run by another one has options of its own.
        words, verbosity = without_verbosity(words, anywhere=_name_of(words).split(" ")[0] not in _CARRIERS)
        name = _name_of(words)
        with logged(level_of(verbosity)), nullcontext() if name in _SPEAK_THEMSELVES else showing(name):
            app(words, result_action="return_value")
            _print_example(words, name)
            sys.stdout.flush()
    except KeyboardInterrupt:
        _errors().print("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has gone: not a failure of ours, and nothing more may be written to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (CycloptsError, WeftError, ImportError, OSError) as error:
        return _refused(error)
    return 0


def _print_example(words: list[str], name: str) -> None:
    """Print an example below the help of a command."""
    own = itertools.takewhile(lambda word: word != "--", words)
    if not {"--help", "-h"}.isdisjoint(own) and (example := example_of(name)) is not None:
        sys.stdout.write(f"Example:\n  {example}\n")


def _name_of(words: list[str]) -> str:
    """Return the words of a command line that name its command."""
    named = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    return " ".join(named[: 2 if named[:1] and named[0] in (*_GROUPS, *_NESTED) else 1]) or "weft"


def _refused(error: CycloptsError | WeftError | ImportError | OSError) -> int:
    """Say what is wrong, and return the exit status; raise what is a mistake of this program."""
    if isinstance(error, CycloptsError):
        _complain(in_words(error))
        _errors().print(f"[dim]{hint(error)}[/]")
        return 2
    if isinstance(error, ImportError):
        # Whatever a command imports, and wherever: the extra that brings it is named here, in one place.
        if (absent := missing(error)) is None:
            raise error
        error = absent
    if isinstance(error, WeftError):
        _complain(str(error))
        return error.exit_status
    if error.filename is not None:
        # A file that was named, or one in a folder that was: the world's state, not a mistake of this program.
        _complain(f"{error.filename}: {error.strerror}")
        return 2
    if error.errno not in _NO_ROOM:
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    _complain(f"the output cannot be written: {error.strerror}")
    return 1


def _errors() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def _complain(text: str) -> None:
    """Say on standard error what is wrong: folded at spaces on a terminal, whole lines in a pipe."""
    screen = _errors()
    width = screen.width if screen.is_terminal else None
    label, *rest = (part for line in _shortened(f"error: {text}") for part in prose_lines(line, width))
    screen.print(f"[bold red]error:[/]{escape(label.removeprefix('error:'))}")
    for line in rest:
        screen.print(line, markup=False)


def run() -> None:
    """Run the command line and leave the process; the entry point of `weft`."""
    sys.exit(main())


def _shortened(text: str) -> list[str]:
    lines = text.splitlines() or [""]
    # A message may quote a file, and a file may hold a line of a million characters.
    shown = [line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} ..." for line in lines[:_MOST_LINES]]
    more = [f"... and {len(lines) - _MOST_LINES:,} lines more"] if len(lines) > _MOST_LINES else []
    return [*shown, *more]
