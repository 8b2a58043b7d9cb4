"""The console in a real browser: every page opened, clicked through and photographed, with nothing complained about."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.web.console.browsing import SCHEMES, WIDTHS, is_drawn, visiting
from tests.web.console.conftest import incident, line, write_run

pytestmark = pytest.mark.slow
MARKUP = "<img src=x onerror=document.title='owned'>"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    for name in ("tiny-gpt-1", "tiny-gpt-2", MARKUP):
        run = write_run(root, name)
        run.append("metrics.jsonl", *(line(step, rank_seconds=[0.1, 0.1, 0.25 if step > 20 else 0.1, 0.1])
                                      for step in range(1, 41)))  # fmt: skip
        run.append("incidents.jsonl", incident(1, 20, seen=MARKUP))
        run.append("eval.jsonl", {"step": 20, "held_out_loss": 2.5}, {"step": 40, "held_out_loss": 2.0})
    return root


def photograph(page: Any, name: str) -> None:
    """Photograph the page; where CI or a person gives a folder, keep the picture there."""
    kept = os.environ.get("WEFT_PHOTOGRAPHS")
    if kept:
        Path(kept).mkdir(parents=True, exist_ok=True)
    assert is_drawn(page.screenshot(full_page=True, path=Path(kept) / f"{name}.png" if kept else None))


PAGES = {
    "runs": "/", "run": "/run?run=tiny-gpt-1&with=tiny-gpt-2", "what-if": "/what-if", "cluster": "/cluster",
    "fabric": "/fabric?site=gb200-8x100g-131k&down=t1-p0-i7,link0-p3-i1000,t0-p2-i5",
}  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_is_drawn_accessible_and_quiet(served: str, scheme: str, width: int):
    with visiting(served, scheme, width) as visit:
        for name, path in PAGES.items():
            page = visit.open(path)
            page.wait_for_timeout(300)
            photograph(page, f"{name}-{width}-{scheme}")
            assert visit.accessible() == []
            # Nothing is cut off at the side.
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        assert visit.complaints == []


def test_runs_are_marked_opened_and_laid_over_each_other(served: str):
    with visiting(served) as visit:
        page = visit.open("/")
        assert page.locator("tbody tr").count() == 3
        # A name is text, whatever it is made of, and is a link that works.
        page.get_by_role("link", name=MARKUP).click()
        page.wait_for_selector("html[data-ready]")
        assert MARKUP in page.locator("h1").inner_text()
        assert MARKUP in page.locator("table").last.inner_text()
        assert page.title() != "owned"
        assert page.locator("img[src=x]").count() == 0
        page = visit.open("/")
        # By keyboard alone.
        for name in ("tiny-gpt-1", "tiny-gpt-2"):
            page.get_by_label(f"mark {name}").focus()
            page.keyboard.press("Space")
        page.get_by_role("button", name="Lay over each other").focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/run?**")
        page.wait_for_selector("html[data-ready]")
        assert "up to step 40" in page.locator(".badge").first.inner_text()
        page.get_by_label("Predicted on").select_option("laptop")
        page.get_by_role("rowheader", name="step", exact=True).wait_for()
        page.get_by_label("log scale").check()
        assert visit.complaints == []


def test_a_run_is_seen_while_it_is_written_and_a_lost_plane_within_two_seconds(served: str, runs: Path):
    run = write_run(runs, "live-1", 3)
    with visiting(served) as visit:
        page = visit.open("/run?run=live-1")
        page.get_by_text("3 of 60").wait_for()
        page.wait_for_timeout(500)
        run.append("metrics.jsonl", line(4, rank_seconds=[0.1] * 4))
        page.get_by_text("4 of 60").wait_for(timeout=10_000)
        begun = time.monotonic()
        run.append("metrics.jsonl", line(5, rank_seconds=[0.1] * 4, planes_out=[0, 4, 0, 0]))
        page.get_by_text("plane 2 carries nothing from rank 1").wait_for(timeout=10_000)
        # The console looks five times a second; the rest is for a machine that is busy.
        assert time.monotonic() - begun < 2
        # A recovery cuts steps off; what was drawn of them goes.
        (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line(step)) + "\n" for step in (1, 2)))
        page.get_by_text("2 of 60").wait_for(timeout=10_000)
        assert visit.complaints == []


def test_what_if_answers_pins_and_copies(served: str):
    with visiting(served) as visit:
        visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = visit.open("/what-if?site=gb200-8x100g-131k&job=gpt-1t")
        page.get_by_role("button", name="Pin as A").click()
        page.locator("select[name=planes]").select_option("4")
        page.get_by_text("--what-if planes=4").wait_for()
        assert "A:" in page.locator(".tiles").inner_text()
        page.get_by_role("slider", name="GPUs, slider").focus()
        page.keyboard.press("ArrowLeft")
        page.get_by_text("--what-if nodes=").wait_for()
        page.get_by_role("button", name="Pin as B").click()
        page.get_by_role("button", name="Copy as command").click()
        page.get_by_text("the command copied").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.locator("#command").inner_text()
        page.locator("input[name=batch]").fill("7")
        page.locator("input[name=batch]").press("Enter")
        page.locator("select[name=precision]").select_option("fp8")
        page.get_by_text("--what-if precision=fp8").wait_for()
        # What does not go is a sentence, and no error of the page.
        page.locator("select[name=memory]").select_option("40 GB")
        page.locator("input[name=batch]").fill("1")
        page.locator("input[name=batch]").press("Enter")
        page.wait_for_timeout(1500)
        photograph(page, "what-if-changed")
        assert visit.accessible() == []
        assert visit.complaints == []


def test_the_fabric_breaks_heals_and_shows_a_path(served: str):
    with visiting(served) as visit:
        page = visit.open("/fabric?site=gb200-8x100g-131k")
        page.get_by_text("131,072", exact=True).wait_for()
        page.get_by_label("part that fails").fill("t0-p2-i5")
        page.get_by_role("button", name="Fail it").click()
        page.get_by_text("130,816").wait_for()
        map_ = page.locator("canvas.gpus").bounding_box()
        assert map_ is not None
        for share in (0.1, 0.9):
            page.mouse.click(map_["x"] + share * map_["width"], map_["y"] + share * map_["height"])
        page.get_by_text("SRv6 address fcbb:bbbb:").wait_for()
        assert page.locator(".hops li").count() == 5
        page.get_by_role("button", name="heal t0-p2-i5").click()
        page.get_by_text("131,072", exact=True).wait_for()
        page.get_by_label("time of the simulation").focus()
        page.keyboard.press("End")
        page.get_by_role("button", name="heal t1-p0-i7").wait_for()
        assert visit.accessible() == []
        assert visit.complaints == []


def test_the_url_of_a_cluster_opens_it(tmp_path: Path):
    home, program = tmp_path / "home", [sys.executable, "-m", "weft"]

    def weft(*words: str) -> str:
        place = {**os.environ, "WEFT_CLUSTER": str(home)}
        done = subprocess.run([*program, *words], capture_output=True, text=True, check=True, env=place)
        return done.stdout

    policy = tmp_path / "budget.toml"
    policy.write_text('[power]\nsite = "3 kW"\nramp_per_second = "1 kW"\nnode_idle = "100 W"\ngpu_rise = "600 W"\n')
    url = weft("cluster", "up", "--nodes", "2", "--policy", str(policy)).split("console: ")[1].strip()
    try:
        for name, seconds in (("long", "60"), ("wide", "1")):
            weft(
                "submit",
                "--name",
                name,
                "--no-snapshot",
                "--nodes",
                "2",
                "--time-limit",
                "2 min",
                "--",
                "sleep",
                seconds,
            )
        with visiting(url) as visit:
            page = visit.open("/cluster")
            page.get_by_role("row", name="wide-2 waiting").get_by_text("nodes are free").wait_for()
            page.get_by_role("row", name="long-1 running").wait_for()
            assert "bind long-1" in page.locator("section", has_text="Decisions").inner_text()
            page.get_by_text("1.4 kW of 3 kW; largest change within a second 1.2 kW, of at most 1 kW").wait_for()
            assert page.get_by_label("declared draw over time").count() == 1
            photograph(page, "cluster-with-jobs")
            assert visit.accessible() == []
            page.on("dialog", lambda dialog: dialog.accept())
            page.get_by_role("button", name="cordon slot-0").click()
            page.get_by_role("button", name="return slot-0").wait_for()
            page.get_by_role("button", name="cancel long-1").click()
            page.get_by_role("row", name="long-1 running").wait_for(state="detached")
            page.get_by_label("decision", exact=True).focus()
            page.keyboard.press("Home")
            assert visit.complaints == []
    finally:
        weft("cluster", "down", "--jobs")


def test_the_page_prints(served: str):
    with visiting(served) as visit:
        page = visit.open("/run?run=tiny-gpt-1")
        printed = page.pdf(format="A4")
        assert printed.startswith(b"%PDF")
        assert printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") <= 4
        assert visit.complaints == []


def test_a_browser_without_the_token_sees_nothing(served: str):
    base = served.partition("/?")[0]
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(base)
    assert refused.value.code == 403
    refused.value.close()
