"""How near a ladder's prediction comes: sixteen small runs, a run ten times larger, predicted against measured.

Prints the ratio of the predicted to the measured held-out loss. Took 15 to 30 minutes on two busy cores.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Train, predict and compare."""
    with tempfile.TemporaryDirectory() as folder:
        home, out = Path(folder) / "cluster", Path(folder) / "points.csv"
        program = "import sys; from weft.cli.main import main; sys.exit(main(sys.argv[1:]))"
        command = ["scale", "ladder", "--run", "--json", "--home", str(home), "--out", str(out)]
        done = subprocess.run([sys.executable, "-c", program, *command], stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout)
    times = found["times_cheaper"]
    print(f"the large run takes {times:.1f} times the operations of the largest small one")
    print(f"predicted {found['predicted']['loss']:.4f}, measured {found['measured']:.4f}: off by {found['error']:+.2%}")


if __name__ == "__main__":
    main()
