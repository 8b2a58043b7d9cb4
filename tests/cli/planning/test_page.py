"""The rehearsal's page: every figure is that of the JSON, nothing is fetched, nothing is left open."""

import base64
import hashlib
import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from weft import api
from weft.cli.main import main
from weft.cli.planning.page.formats import shown
from weft.cli.planning.page.html_page import page_of
from weft.cli.planning.page.places import DocumentPlace
from weft.specs import JobSpec, SiteSpec, load_job, load_site

SITES = [
    "bed-64x400g", "gb200-3tier-64k", "gb200-4x200g-32k", "gb200-8x100g-131k", "h100-400g-16k", "laptop",
    "leaf-spine-400g",
]  # fmt: skip
JOBS = ["gpt-1t", "gpt3-175b", "ladder-gpt", "llama3-405b", "own-loop", "tiny-gpt"]
VOID = {"meta", "rect", "path", "br", "li", "td", "th", "tr"}
"""Elements without an end tag: empty ones, and those whose end HTML lets one leave out."""
MIXTURE = {
    "layers": 24,
    "width": 2048,
    "heads": 16,
    "ffn": 1408,
    "vocabulary": 102400,
    "experts": {"count": 64, "top_k": 6, "ffn": 1408},
}


class Page(HTMLParser):
    """Collects what a page shows, and which element it stands in."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.figures: list[tuple[dict[str, str], str]] = []
        self.open: list[tuple[str, dict[str, str]]] = []
        self.prose: list[str] = []
        self.feed(text)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        held = {name: value or "" for name, value in attrs}
        self.elements.append((tag, held))
        if tag not in VOID:
            self.open.append((tag, held))
        if tag in ("data", "tspan", "text") and "data-path" in held:
            self.figures.append((held, ""))

    @override
    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        while self.open and self.open[-1][0] != tag:
            self.open.pop()
        if self.open:
            self.open.pop()

    @override
    def handle_data(self, data: str) -> None:
        inside = [held for _, held in self.open]
        if any(tag in ("script", "style", "title") for tag, _ in self.open):
            return
        if self.open and "data-path" in self.open[-1][1]:
            held, text = self.figures.pop()
            self.figures.append((held, text + data))
        elif not any("data-sentence" in held or "tick" in held.get("class", "") for held in inside):
            self.prose.append(data)


def at(document: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        step = part.replace("~1", "/").replace("~0", "~")
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document


def value_and_unit(document: Any, pointer: str, held: dict[str, str]) -> tuple[Any, str]:
    found = at(document, pointer)
    return (found["value"], found["unit"]) if isinstance(found, dict) else (found, held.get("data-unit", ""))


def written(value: Any) -> str:
    return repr(value) if isinstance(value, float) else "" if value is None else str(value)


def hold_together(text: str, document: dict[str, Any]) -> int:
    """Hold every figure of a page against the document; return how many there are."""
    page = Page(text)
    for held, words in page.figures:
        value, unit = value_and_unit(document, held["data-path"], held)
        assert held["data-value"] == written(value), held
        assert words == (f"{value:,}" if isinstance(value, int) else shown(value, unit)), held
    marks = [held for _, held in page.elements if "data-paths" in held]
    for held in marks:
        for pointer in held["data-paths"].split(" "):
            value, unit = value_and_unit(document, pointer, held)
            assert (f"{value:,}" if isinstance(value, int) else shown(value, unit)) in held["data-tip"], held
    for held in (held for _, held in page.elements if "data-sentence" in held):
        assert at(document, held["data-sentence"])["text"]
    strings = json.dumps(document, ensure_ascii=False)
    for words in page.prose:
        for number in re.findall(r"\d[\d,.]*", words):
            assert number.rstrip(".,") in strings or words.strip() == "90 % interval", words
        assert words.strip() not in ("-", "None", "nan", "inf"), words
    assert not re.search(r">\s*(?:-|None|nan|inf)\s*<", text.partition("<script")[0])
    inner = re.search(r'id="rehearsal">(.*?)</script>', text, re.DOTALL)
    assert inner is not None
    assert json.loads(inner[1]) == document
    return len(page.figures) + len(marks)


def bars_are_to_scale(text: str, document: dict[str, Any]) -> None:
    """The parts of the step fill their bar in proportion."""
    if "step" not in document["page"]:
        return
    rects = re.findall(r'<rect class="mark s\d" [^>]*width="([\d.]+)"[^>]*data-paths="(/page/step/parts/\d+)"', text)
    assert len(rects) == len(document["page"]["step"]["parts"])
    total = document["page"]["step"]["step"]["value"]
    for width, pointer in rects:
        assert float(width) / 1120 == pytest.approx(at(document, pointer)["value"] / total, abs=1e-4)


def own_job(number: int) -> JobSpec:
    """A job that nobody has written: a dense model or a mixture of experts, small or large."""
    chance = random.Random(number)
    model: dict[str, Any] = {
        "layers": 2 * chance.randint(1, 40), "heads": 8 * chance.randint(1, 8),
        "vocabulary": 256 * chance.randint(2, 400),
    }  # fmt: skip
    model["width"] = model["heads"] * 64
    model["ffn"] = 4 * model["width"]
    if chance.random() < 0.4:
        model["experts"] = {"count": 8, "top_k": 2, "ffn": model["ffn"] // 2}
    return JobSpec.model_validate({
        "name": f"own-{number}", "steps": chance.randint(10, 10**6), "model": model,
        "batch": {"sequences": 2 ** chance.randint(3, 13), "micro": 1, "length": 2 ** chance.randint(8, 13)},
    })  # fmt: skip


def own_site(number: int) -> SiteSpec:
    """A site that nobody has written: another one's, with other failures, power terms and storage."""
    chance = random.Random(number)
    site = load_site(chance.choice(SITES))
    plain = site.as_written()
    plain["name"] = f"own-{number}"
    plain["power"] = {**plain.get("power", {}), "price_per_kwh": "0.2 USD"}
    for key in ("limit", "ramp_per_second", "swing"):
        if chance.random() < 0.4:
            plain["power"].pop(key, None)
    if chance.random() < 0.5:
        plain["storage"] = f"{chance.randint(1, 4000)} Gb/s"
    if chance.random() < 0.3:
        plain["failures"] = {**plain.get("failures", {}), "gpu": "9 /1e3 h", "restart": "40 min"}
    return SiteSpec.model_validate(plain)


PAIRS = [(site, job) for site in SITES for job in JOBS]


@pytest.mark.parametrize(("site", "job"), [PAIRS[number] for number in range(0, len(PAIRS), 4)])
def test_every_figure_of_the_page_is_that_of_the_json(site: str, job: str):
    pages_agree(site, job)


@pytest.mark.slow
@pytest.mark.parametrize(("site", "job"), PAIRS)
def test_every_figure_of_every_page_is_that_of_the_json(site: str, job: str):
    pages_agree(site, job)


def pages_agree(site: str, job: str) -> None:
    document = json.loads(json.dumps(api.rehearse(site, job, simulate=False).as_json(), allow_nan=False))
    text = page_of(document)
    assert hold_together(text, document) > (50 if document["feasible"] else 5)
    bars_are_to_scale(text, document)


@pytest.mark.parametrize("number", range(8))
def test_pages_of_drawn_sites_and_jobs_are_whole(number: int):
    document = json.loads(json.dumps(api.rehearse(own_site(number), own_job(number), simulate=False).as_json()))
    text = page_of(document)
    hold_together(text, document)
    bars_are_to_scale(text, document)


def test_a_mixture_of_experts_has_a_page():
    job = load_job("ladder-gpt").as_written()
    spec = JobSpec.model_validate({**job, "name": "mixture", "model": MIXTURE, "plan": "auto"})
    document = api.rehearse("gb200-4x200g-32k", spec, simulate=False).as_json()
    assert document["feasible"]
    hold_together(page_of(document), document)


def test_what_does_not_fit_has_a_page_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "page.html"
    assert main(["rehearse", "laptop", "gpt-1t", "--html", str(page)]) == 2
    error = capsys.readouterr().err
    assert "nothing fits" in error
    text = page.read_text()
    assert "No go" in text
    assert "nothing fits" in text
    assert "Where a step" not in text


def test_the_command_prints_what_the_page_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "page.html"
    words = ["rehearse", "h100-400g-16k", "llama3-405b", "--folder", str(tmp_path), "--start", "2027-01-31"]
    assert main([*words, "--no-simulate", "--html", str(page), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    hold_together(page.read_text(), document)
    assert "it ends on" in document["page"]["verdict"]["headline"]["text"]


def test_nothing_is_fetched_and_only_what_stands_in_the_page_runs():
    text = page_of(api.rehearse("laptop", "tiny-gpt", simulate=False).as_json())
    assert not re.search(r"""(?:src|href)\s*=|url\(|@import|https?://""", text.partition('<script type="app')[0])
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert "default-src &#x27;none&#x27;" in policy[1]
    for tag in ("style", "script"):
        inner = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert inner is not None
        digest = base64.b64encode(hashlib.sha256(inner[1].encode()).digest()).decode()
        assert f"sha256-{digest}" in policy[1]
    assert " style=" not in text
    assert " onclick" not in text


def test_markup_in_names_is_text():
    site = SiteSpec.model_validate({**load_site("laptop").as_written(), "description": '<script>alert(1)</script>&"'})
    document = api.rehearse(site, "tiny-gpt", simulate=False).as_json()
    text = page_of(document)
    assert "<script>alert" not in text
    hold_together(text, document)


def test_a_simulation_fills_its_column():
    document = api.rehearse("laptop", "tiny-gpt", simulate=True).as_json()
    assert document["simulation"]["ran"]
    assert any(line["simulated"] is not None for line in document["lines"])
    text = page_of(document)
    assert "<th>simulated" in text
    hold_together(text, document)


def test_what_was_not_simulated_says_why():
    document = api.rehearse("laptop", "tiny-gpt", simulate=False).as_json()
    assert "not simulated" in document["simulation"]["note"]
    assert "<th>simulated" not in page_of(document)


def test_places_name_what_they_hold():
    place = DocumentPlace({"a/b": [{"value": 1.5, "unit": "s"}]})
    found = place["a/b"][0]
    assert found.path == "/a~1b/0"
    assert found.words == "1.5 s"
    assert 'data-value="1.5"' in found.figure
