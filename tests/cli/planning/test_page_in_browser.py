"""The rehearsal's page in Debian's Chromium: no complaint, charts that answer pointer and keys, at most four pages."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.web.console.browsing import Visit

from weft import api
from weft.cli.planning.page.html_page import page_of

pytestmark = pytest.mark.slow

PAIRS = [
    ("gb200-8x100g-131k", "gpt-1t"), ("h100-400g-16k", "llama3-405b"), ("laptop", "tiny-gpt"), ("laptop", "gpt-1t"),
    ("gb200-3tier-64k", "ladder-gpt"), ("bed-64x400g", "gpt3-175b"), ("gb200-8x100g-131k", "gpt3-175b"),
]  # fmt: skip
A4_POINTS = (595, 842)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    assert chromium is not None, "chromium is not installed: apt-get install chromium"
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: f"{pair[1]}-{pair[0]}")
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site, job = request.param
    target = tmp_path_factory.mktemp("page") / "page.html"
    target.write_text(page_of(api.rehearse(site, job, simulate=False).as_json()))
    return target


def opened(browser: Any, page: Path, width: int, scheme: str) -> tuple[Any, list[str]]:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    found, complaints = context.new_page(), []
    found.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
    found.on("pageerror", lambda error: complaints.append(str(error)))
    found.on("request", lambda asked: complaints.append(asked.url) if not asked.url.startswith("file:") else None)
    found.goto(page.as_uri())
    return found, complaints


@pytest.mark.parametrize("width", [1280, 1920])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_without_complaint_and_fits(browser: Any, page: Path, width: int, scheme: str):
    found, complaints = opened(browser, page, width, scheme)
    assert complaints == []
    assert found.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert found.evaluate(
        "[...document.querySelectorAll('.tile strong')].every(one => one.scrollWidth <= one.clientWidth)"
    )
    assert Visit(found, "").accessible() == []
    dark = found.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(251, 251, 250)"
    assert dark == (scheme == "dark")
    # Every text of a chart stays inside the window.
    outside = (
        "[...document.querySelectorAll('svg text')].filter(t => t.getBoundingClientRect().right > innerWidth).length"
    )
    assert found.evaluate(outside) == 0
    found.context.close()


def test_charts_answer_the_pointer_and_the_arrow_keys(browser: Any, page: Path):
    found, complaints = opened(browser, page, 1280, "light")
    for chart in found.query_selector_all("svg.chart"):
        marks = chart.query_selector_all(".mark")
        assert marks
        chart.focus()
        found.keyboard.press("ArrowRight")
        assert found.text_content("#tip") == marks[0].get_attribute("data-tip")
        assert found.is_visible("#tip")
        found.keyboard.press("End")
        assert found.text_content("#tip") == marks[-1].get_attribute("data-tip")
        found.keyboard.press("Escape")
        assert not found.is_visible("#tip")
    chart = found.query_selector("svg.chart")
    mark = chart.query_selector("rect.nic")
    mark.hover(force=True)
    assert found.text_content("#tip") == mark.get_attribute("data-tip")
    assert complaints == []
    found.context.close()


def test_it_prints_on_at_most_four_a4_pages(browser: Any, page: Path, tmp_path: Path):
    from pypdf import PdfReader

    found, _ = opened(browser, page, 1280, "dark")
    printed = tmp_path / "page.pdf"
    found.pdf(path=printed, prefer_css_page_size=True, print_background=True)
    pages = PdfReader(printed).pages
    assert 1 <= len(pages) <= 4
    assert all(abs(float(size) - want) < 2 for size, want in zip(pages[0].mediabox[2:], A4_POINTS, strict=True))
    assert "".join(each.extract_text() for each in pages).count("Provenance") == 1
    found.context.close()
