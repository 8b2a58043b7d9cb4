"""What the console's map of 131,072 GPUs costs, updated once a second: python benchmarks/console_map.py [SECONDS].

Debian's Chromium looks at `weft ui`; every second another set of parts fails and heals. Printed are the time that the
page takes to draw a frame, by the page's own marks, and the CPU that the server takes, as a share of one core. The aim:
5 ms a frame, 10 % of a core.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from weft.core.seeds import Seed

SITE = "gb200-8x100g-131k"
_CHROMIUM = shutil.which("chromium") or "chromium"


def cpu_seconds(process: int) -> float:
    """Return the CPU that a process has taken, by the kernel's account."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def parts(count: int) -> list[str]:
    """Return so many sets of parts, drawn: a T1, a T0, links and NIC ports of any plane."""
    draw = Seed(0).stream("console map")
    return [
        f"t1-p{draw.integers(8)}-i{draw.integers(256)},t0-p{draw.integers(8)}-i{draw.integers(512)},"
        f"link0-p{draw.integers(8)}-i{draw.integers(131072)},link1-p{draw.integers(8)}-i{draw.integers(512)}-u3"
        for _ in range(count)
    ]


def measured(url: str, server: int, seconds: int) -> tuple[list[float], float]:
    """Return the milliseconds of every frame, and the share of a core that the server took."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        page = driver.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"]).new_page()
        page.goto(url)
        page.goto(f"{url.partition('/?')[0]}/fabric?site={SITE}")
        page.wait_for_selector("html[data-ready]")
        page.wait_for_timeout(2000)
        page.evaluate("performance.clearMeasures()")
        before = cpu_seconds(server)
        for names in parts(seconds):
            page.get_by_role("button", name="Heal all").click()
            page.wait_for_timeout(100)
            page.get_by_label("part that fails").fill(names)
            page.get_by_role("button", name="Fail it").click()
            page.wait_for_timeout(900)
        took = cpu_seconds(server) - before
        frames = page.evaluate("performance.getEntriesByName('map').map((each) => each.duration)")
    return frames, took / seconds


def main() -> None:
    """Measure, and print."""
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "weft", "ui", folder, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None, "it is a pipe"
            try:
                url = next(word for line in server.stdout for word in line.split() if word.startswith("http"))
                frames, share = measured(url, server.pid, seconds)
            finally:
                server.terminate()
    assert len(frames) >= seconds, "every update was drawn"
    worst = sorted(frames)[int(0.95 * (len(frames) - 1))]
    print(f"{SITE}: {len(frames)} frames in {seconds} s, two updates a second")
    print(f"frame: median {statistics.median(frames):.2f} ms, 95th percentile {worst:.2f} ms (aim 5)")
    print(f"server: {100 * share:.1f} % of a core for two updates a second (aim 10 for one)")


if __name__ == "__main__":
    main()
