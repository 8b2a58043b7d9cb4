"""`weft lab capture`: what passes a link of a lab, as a file that Wireshark opens."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from weft.cli.output import JsonFlag, console, print_json, writing, written_to
from weft.core.errors import FailedError, UsageError
from weft_lab.commands.lab_app import Name, records
from weft_lab.network import lab as labs
from weft_lab.network.lab import Lab

LONGEST_S = 3600.0
MOST_PACKETS = 100_000_000
_END_S = 5.0


def capture(
    link: str,
    /,
    *,
    out: Annotated[
        Path, Parameter(name=("--out", "-o"), help="File to write: pcapng."), written_to("--out", ".pcapng")
    ],
    seconds: Annotated[float, Parameter(help="How long; 0: until Ctrl-C or --packets.")] = 10.0,
    packets: Annotated[int, Parameter(help="Packets to take at most; 0: no limit.")] = 0,
    name: Name = "w",
    json: JsonFlag = False,
) -> None:
    """Write the packets of a link, both directions, to a pcapng file: weft lab capture link0-p0-i0 -o F.pcapng.

    Wireshark and tshark read MRC in it with `weft fabric dissector -o mrc.lua`. Ctrl-C ends it and keeps the file.

    Parameters
    ----------
    link
        Name of a link.

    """
    lab = labs.find(records(), name)
    found = _single(lab, link)
    if not 0 <= seconds <= LONGEST_S:
        raise UsageError(f"--seconds {seconds:g}: write a number from 0 to {LONGEST_S:g}")
    if not 0 <= packets <= MOST_PACKETS:
        raise UsageError(f"--packets {packets}: write a number from 0 to {MOST_PACKETS:,}")
    with writing(out) as part:
        count = _record(lab, found, part, (packets, seconds))
    size = out.stat().st_size
    if json:
        print_json({"link": found, "file": str(out), "packets": count, "bytes": size})
    else:
        console().print(f"{count:,} packets of {found} in {out}", markup=False, soft_wrap=True)


def _single(lab: Lab, link: str) -> str:
    """Return the one link that a name or pattern means."""
    found = lab.names(link, ("link",))
    if len(found) != 1:
        raise UsageError(f"{link} means {len(found)} links, and a capture has one; name one, such as {found[0]}")
    return found[0]


def _record(lab: Lab, link: str, target: Path, limits: tuple[int, float]) -> int:
    """Let an agent at the lower end of a link write what passes; return how many packets that were."""
    (namespace, device), _ = lab.plan.ends(lab.plan.topology.names.find(link, ("link",))[1])
    node = lab.plan.namespaces.index(namespace)
    command = (*lab.inside(node), sys.executable, "-m", "weft_lab.agents.capture", device, link, *map(str, limits))
    with (
        target.open("wb") as file,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.PIPE, text=True) as agent,
    ):
        assert agent.stdin is not None
        assert agent.stderr is not None
        try:
            agent.wait()
        except KeyboardInterrupt:
            # The agent stops when its input ends; the same happens where this process is killed.
            agent.stdin.close()
            agent.wait(_END_S)
        said = agent.stderr.read()
    lines = said.strip().splitlines()
    if not lines or not lines[-1].isdecimal():
        raise FailedError(f"{link} could not be captured: {lines[-1] if lines else 'the agent said nothing'}")
    return int(lines[-1])
