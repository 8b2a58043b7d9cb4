"""Six acts in a few minutes: a fabric designed, simulated beside RoCE, trained on, broken, mended, rehearsed.

    python examples/demo.py [FOLDER] [--live]

Every act is a command of weft with --json, run as you would run it. With root, `ip` and `nft` the fourth act runs on a
real SRv6 fabric of network namespaces, where a cable is pulled; without them its planes are loopback's. It ends with 0
when every act held, 1 when one did not, 130 when it was interrupted; nothing keeps running. With --live (`make demo
LIVE=1`) the console stands beside it, where the trainings are seen while they run, until the report is written and
somebody presses Ctrl-C.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel

HERE = Path(__file__).parent
SITE, JOB, SMALL = "gb200-8x100g-131k", "gpt-1t", "tiny-gpt"
CUT = "cut link0-p0-i0"
INTERRUPTED = 130
_TAIL = 12


class ActFailedError(Exception):
    """An act did not show what it is there to show."""


@dataclass
class Stage:
    """Where the acts run, and what they found out."""

    folder: Path
    out: Console
    numbers: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    closed: bool = False

    def weft(self, *words: str, may_fail: bool = False) -> Any:
        """Run a command of weft and return its JSON; what it is doing it shows itself, where this is a terminal."""
        shown = None if sys.stderr.isatty() else subprocess.PIPE
        child = subprocess.Popen(  # noqa: S603 - our own command line
            [sys.executable, "-m", "weft", *words], stdout=subprocess.PIPE, stderr=shown, text=True,
            env={**os.environ, **self.environment},
        )  # fmt: skip
        try:
            text, errors = child.communicate()
        except KeyboardInterrupt:
            # The terminal's Ctrl-C reached the command as well; a signal to us alone has to be passed on.
            child.send_signal(signal.SIGINT)
            child.communicate()
            raise
        if child.returncode == INTERRUPTED:
            raise KeyboardInterrupt
        if child.returncode and not may_fail:
            raise ActFailedError(f"weft {' '.join(words)} ended with {child.returncode}\n{_tail(errors)}")
        return json.loads(text) if text.strip() else None


def _tail(text: str | None) -> str:
    return "\n".join((text or "").strip().splitlines()[-_TAIL:])


def design(stage: Stage) -> str:
    """Describe the fabric."""
    found = stage.weft("design", SITE, "--json")
    switch = next(each for each in found["blast_radius"] if each["part"] == "t0")
    return (
        f"{found['gpus']:,} GPUs, {found['switches']['total']:,} switches in {found['planes']} planes; "
        f"a dead switch takes {switch['share']:.1%} from {switch['nics']:,} NICs and cuts none off"
    )


def simulate(stage: Stage) -> str:
    """Let a spine die under MRC and under RoCE with eight queue pairs for each flow."""
    reports = stage.weft("simulate", "black-hole", "--transport", "mrc,roce:8", "--json", may_fail=True)
    if reports is None:
        raise ActFailedError("the simulation printed nothing")
    mrc, roce = reports
    if mrc["completed"] != mrc["flows"]:
        raise ActFailedError(f"MRC completed {mrc['completed']} of {mrc['flows']} flows")
    stage.numbers["flows that outlive a dead spine"] = (
        f"MRC {mrc['completed']} of {mrc['flows']}, RoCE {roce['completed']}"
    )
    return (
        f"a spine dies under {mrc['flows']} NICs: MRC completes all in {mrc['fct_us']['max']:.0f} us; "
        f"RoCE loses {roce['flows'] - roce['completed']} flows"
    )


def train(stage: Stage) -> str:
    """Train undisturbed."""
    result = stage.weft("train", SMALL, "--folder", str(stage.folder), "--json")
    stage.numbers["trained on this machine"] = (
        f"{result['tokens_per_s']:,.0f} tokens/s, MFU {result['mfu']:.1%} of its measured peak"
    )
    return f"{result['steps']} steps on four processes, loss {result['final_loss']:.3f}"


def disturb(stage: Stage) -> str:
    """Train again over MRC: cut a plane, kill a rank, flip a bit."""
    with ExitStack() as after:
        lab = _lab(stage, after)
        result = stage.weft(
            "train", SMALL, "--folder", str(stage.folder), "--faults", str(HERE / "planes.toml"),
            "--set", "guard.digest_every=1", "--set", "backend=mrc", "--json",
        )  # fmt: skip
        if lab is not None:
            _pull_a_cable(stage, lab)
    kinds = [one["kind"] for one in result["incidents"]]
    if len(result["recoveries"]) < 2:  # noqa: PLR2004 - the killed rank and the flipped bit
        raise ActFailedError(f"a killed rank and a flipped bit want two recoveries; the incidents are {kinds}")
    lost = sum(one["seconds_lost"] for one in result["incidents"])
    stage.numbers["a kill, a flip and a cut cost"] = f"{lost:.1f} s in all, {len(result['recoveries'])} recoveries"
    return f"a plane cut, a rank killed, a bit flipped ({', '.join(kinds)}): found and mended in {lost:.1f} s"


def _lab(stage: Stage, after: ExitStack) -> str | None:
    """Return the name of a real fabric that lasts until the act is over; none without root and its tools."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nft"))):
        return None
    name = f"d{os.getpid() % 1000}"
    if stage.weft("lab", "up", "--name", name, "--json", may_fail=True) is None:
        return None
    after.callback(lambda: stage.weft("lab", "down", "--name", name, "--json", may_fail=True))
    stage.environment["WEFT_LAB"] = name
    after.callback(stage.environment.pop, "WEFT_LAB")
    return name


def _pull_a_cable(stage: Stage, lab: str) -> None:
    found = stage.weft("lab", "bench", "--name", lab, "--seconds", "6", "--rival", "tcp", "--fault", CUT, "--json")
    phases = {one["transport"]: [rate / 1e6 for rate in one["mean_bps"].values()] for one in found["results"]}
    stage.numbers["Mb/s before, during and after a cut"] = "; ".join(
        f"{name} {', '.join(f'{rate:.0f}' for rate in rates)}" for name, rates in phases.items()
    )


def equal(stage: Stage) -> str:
    """Compare both runs bit by bit."""
    one, other = f"{SMALL}-1", f"{SMALL}-2"
    found = stage.weft("runs", "compare", one, other, "--folder", str(stage.folder), "--json", may_fail=True)
    if not found or not found["equal"]:
        raise ActFailedError(f"the runs differ: {found}")
    stage.numbers["equal bit for bit"] = (
        f"{found['steps_compared']} steps, {found['tensors_compared']:,} tensor digests"
    )
    return f"{found['steps_compared']} losses and {found['tensors_compared']:,} digests of both runs are equal"


def rehearse(stage: Stage) -> str:
    """Rehearse a trillion parameters on 131,072 GPUs."""
    found = stage.weft("rehearse", JOB, SITE, "--html", str(stage.folder / "rehearsal.html"), "--json")
    figures = {line["key"]: line["predicted"] for line in found["lines"]}
    days = f"{figures['run_s'] / 86_400:.2f} days"
    interval = f"{figures['run_low_s'] / 86_400:.2f} to {figures['run_high_s'] / 86_400:.2f}"
    stage.numbers[f"{JOB} on {int(figures['gpus']):,} GPUs"] = (
        f"{days} ({interval}), MFU {figures['mfu']:.0f}%, {figures['gpu_cost'] / 1e6:.1f} M USD"
    )
    return f"{JOB} on {int(figures['used_gpus']):,} GPUs: {days}, goodput {figures['goodput']:.0f}%"


ACTS: Sequence[tuple[str, Callable[[Stage], str]]] = (
    ("design a fabric for 131,072 GPUs", design),
    ("simulate a slice of one while a spine dies (compiles once)", simulate),
    ("train a small GPT", train),
    ("train it again; kill, flip and cut", disturb),
    ("compare both runs, bit by bit", equal),
    ("rehearse a trillion parameters on 131,072 GPUs", rehearse),
)


def play(stage: Stage) -> None:
    """Run the acts, a line before each and a line after."""
    for number, (title, act) in enumerate(ACTS, 1):
        stage.out.print(f"[bold]{number}/{len(ACTS)}[/] {title}", highlight=False)
        began = time.monotonic()
        line = act(stage)
        stage.out.print(f"    [green]✓[/] {line} [dim]({time.monotonic() - began:.0f} s)[/]", highlight=False)


def _close(stage: Stage, seconds: float) -> None:
    """Print the box with which it ends."""
    rows = [f"{name}: [bold]{value}[/]" for name, value in stage.numbers.items()]
    rows += ["", f"the report: {stage.folder / 'rehearsal.html'}", f"it took {seconds:.0f} s"]
    stage.out.print(Panel("\n".join(rows), title="weft", title_align="left", expand=False), highlight=False)
    stage.closed = True


@contextmanager
def console_beside(folder: Path) -> Iterator[str]:
    """Give the address of a console over the runs in `folder`, which ends with it."""
    command = [sys.executable, "-m", "weft", "ui", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603 - our own command line
        assert server.stdout is not None, "it is a pipe"
        try:
            line = server.stdout.readline()
            if "http" not in line:
                raise ActFailedError(f"the console did not open: {line.strip()}")
            yield line.split()[-1]
        finally:
            server.terminate()


def main(words: Sequence[str]) -> int:
    """Run the demo in a folder of its own and return its exit status."""
    named = [word for word in words if word != "--live"]
    folder = Path(named[0] if named else "build/demo")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stage = Stage(folder, Console())
    # Whoever ends the demo ends what it started, in the same way as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    try:
        with console_beside(folder) if "--live" in words else nullcontext("") as url:
            if url:
                stage.out.print(f"the console, live: {url}", highlight=False, soft_wrap=True)
            play(stage)
            _close(stage, time.monotonic() - began)
            if url:
                stage.out.print("the console stays until Ctrl-C", highlight=False)
                signal.pause()
    except KeyboardInterrupt:
        if stage.closed:
            return 0
        stage.out.print("interrupted; nothing keeps running")
        return INTERRUPTED
    except ActFailedError as error:
        stage.out.print(f"    [red]✗[/] {error}", highlight=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
