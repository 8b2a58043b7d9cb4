"""Make the pictures of the documentation again, each from a real run: python scripts/pictures.py [NAME...].

Most are what a command draws with --plot; some are what one prints, on a terminal. They lie in docs/pictures. Those of
published results and rivals are drawn by `make verify`. Without names all are made.
"""

import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
WEFT = (sys.executable, "-m", "weft")

PLOTTED = {
    "campaign": "campaign gb200-4x200g-32k --seeds 2",
    "capacity": "capacity",
    "explain-lossy": "explain lossy",
    "explain-planes": "explain planes",
    "explain-spraying": "explain spraying",
    "explain-static-routing": "explain static-routing",
    "explain-tail": "explain tail",
    "fabric": "design gb200-8x100g-131k",
    "fabrics": "design --gpus 131072",
    "incast": "simulate incast --transport mrc,roce",
    "nic-port-down": "simulate nic-port-down",
    "planning": "plan gpt-1t gb200-8x100g-131k",
    "scaling": "scale fit examples/points.csv",
}
"""Pictures that a command draws, by the words of the command."""
TRAINED = {
    "training": "train tiny-gpt --set steps=40",
    "recovery": "train tiny-gpt --faults examples/faults.toml",
}
"""Pictures of a training's record, by the words that train."""
PRINTED = {
    "rehearse": "rehearse gpt-1t gb200-8x100g-131k",
    "path": "fabric path gb200-8x100g-131k --src 0 --dst 131071 --ev 5",
}
"""Pictures of a terminal, by the command that stands on it."""
REPLAYED = {"cluster-power": "cluster replay {trace} --site gb200-8x100g-131k --policy weft,no-power"}
"""Pictures of a replay of the scene `full-site`."""


def every() -> list[str]:
    """Return the names of all pictures that are made here."""
    return [*PLOTTED, *TRAINED, *PRINTED, *REPLAYED]


def make(name: str) -> None:
    """Make one picture."""
    target = FOLDER / f"{name}.svg"
    if name in PLOTTED:
        _weft(f"{PLOTTED[name]} --plot {target}")
    elif name in TRAINED:
        with tempfile.TemporaryDirectory() as runs:
            _weft(f"{TRAINED[name]} --folder {runs}")
            run = next(path for path in Path(runs).iterdir() if (path / "job.toml").exists())
            _weft(f"runs show {run.name} --folder {runs} --plot {target}")
    elif name in PRINTED:
        _run([sys.executable, str(ROOT / "scripts/screenshot"), str(target), *shlex.split(PRINTED[name])])
    elif name in REPLAYED:
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.csv"
            _weft(f"cluster generate {trace} --scene full-site")
            _weft(f"{REPLAYED[name].format(trace=trace)} --plot {target}")
    else:
        raise SystemExit(f"there is no picture {name}; there are {', '.join(every())}")


def _weft(words: str) -> None:
    _run([*WEFT, *shlex.split(words)])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with {done.returncode}: {done.stderr.strip()}")


if __name__ == "__main__":
    for picture in sys.argv[1:] or every():
        began = time.monotonic()
        make(picture)
        sys.stdout.write(f"pictures: {picture}.svg in {time.monotonic() - began:.0f} s\n")
        sys.stdout.flush()
