"""The picture in the README is drawn by a program, from a real run, and fetches nothing when it is looked at."""

import html
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def lines_of(picture: str) -> str:
    """Return the text of a picture, spaces folded."""
    parts = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    return " ".join(html.unescape(" ".join(parts)).replace("\N{NO-BREAK SPACE}", " ").split())


def test_the_screenshot_shows_a_run_of_the_command(tmp_path: Path):
    target = tmp_path / "shot.svg"
    subprocess.run([sys.executable, str(ROOT / "scripts/screenshot"), str(target)], check=True)
    picture = target.read_text()
    assert "$ weft rehearse gpt-1t gb200-8x100g-131k" in lines_of(picture)
    assert "verdict: fits" in lines_of(picture)
    assert "starting" not in lines_of(picture), "the sign of life is gone"


def test_the_picture_in_the_readme_is_one_of_its_and_fetches_nothing():
    picture = (ROOT / "docs/pictures/rehearse.svg").read_text()
    assert "docs/pictures/rehearse.svg" in (ROOT / "README.md").read_text()
    assert "$ weft rehearse gpt-1t gb200-8x100g-131k" in lines_of(picture)
    assert not re.search(r"url\(['\"]?http|@import|href=", picture)
