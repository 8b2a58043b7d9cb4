"""A real browser before the console: Debian's Chromium, driven by Playwright, and whatever it complains about."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
WIDTHS, SCHEMES = (1280, 1920), ("light", "dark")
SERIOUS = {"serious", "critical"}


@dataclass
class Visit:
    """One window of a browser on the console."""

    page: Any
    url: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Any:
        """Open a page of the console and wait until it has drawn."""
        self.page.goto(self.url.partition("/?")[0] + path)
        self.page.wait_for_selector("html[data-ready]")
        return self.page

    def accessible(self) -> list[str]:
        """Return what axe finds serious on the present page."""
        import axe_playwright_python

        folder = Path(axe_playwright_python.__file__).parent
        # Evaluated by the driver, so that the page's own policy about scripts stays as it is.
        self.page.evaluate(next(folder.rglob("axe.min.js")).read_text())
        found = self.page.evaluate("axe.run(document)")
        return [
            f"{each['id']}: {node['html'][:150]}"
            for each in found["violations"]
            if each["impact"] in SERIOUS
            for node in each["nodes"]
        ]


@contextlib.contextmanager
def visiting(url: str, scheme: str = "light", width: int = 1280) -> Iterator[Visit]:
    """Open a browser on the console at `url`."""
    if CHROMIUM is None:
        pytest.fail("chromium is not installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})  # pyrefly: ignore
        visit = Visit(context.new_page(), url)
        visit.page.on("console", lambda line: visit.complaints.append(line.text) if line.type == "error" else None)
        visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        visit.page.on(
            "request", lambda one: visit.complaints.append(f"asked {one.url}") if _foreign(one.url, url) else None
        )
        visit.page.goto(url)
        yield visit
        browser.close()


def _foreign(asked: str, url: str) -> bool:
    return not asked.startswith(("data:", "blob:", url.partition("/?")[0]))


def is_drawn(photograph: bytes) -> bool:
    """Return whether a photograph shows more than one colour or two."""
    import io

    from PIL import Image

    colours = Image.open(io.BytesIO(photograph)).convert("RGB").getcolors(1 << 24)
    return colours is not None and len(colours) > 40
