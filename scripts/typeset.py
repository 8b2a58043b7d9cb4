"""Mathematics of the pages: TeX between dollar signs becomes MathML, which browsers draw without a script or a font.

`$...$` stands in a line, `$$` on lines of its own around a formula that has a place of its own. Code keeps its dollars.
`python scripts/typeset.py FOLDER` does so in every page of a folder; `make docs` runs it before it builds. The font,
whose brackets and roots grow, comes from npm, is held to a digest and laid beside the pages; nothing is fetched when a
page is read. Without npm the reader's own font draws them.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from latex2mathml.converter import convert

_PACKAGE = "@fontsource/stix-two-math@5.3.0"
_FONT, _LICENCE = "package/files/stix-two-math-latin-400-normal.woff2", "package/LICENSE"
_DIGEST = "8b2a6834cfe1f4e0f3724ffa59fe92000013fc5a4c41e6a3f438006c26c60f0d"
"""SHA-256 of the font (STIX Two Math, SIL Open Font License 1.1)."""
_STYLE = """@font-face { font-family: "Formulas"; src: local("STIX Two Math"), url(formulas.woff2) format("woff2"); }
math { font-family: "Formulas", "Cambria Math", math; font-size: 1.1em; }
div.formula { overflow-x: auto; overflow-y: hidden; margin: 1em 0; }
"""
_PARTS = re.compile(
    r"(?P<code>^(?P<fence>```+|~~~+).*?^(?P=fence)[ \t]*$|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))"
    r"|^\$\$\n(?P<block>.+?)\n\$\$$"
    r"|(?<![\\\w$])\$(?P<line>[^\s$](?:[^$\n]*?[^\s$\\])?)\$(?![\w$])",
    re.MULTILINE | re.DOTALL,
)


def typeset(text: str) -> str:
    """Return a page with its formulas as MathML."""
    return _PARTS.sub(_typeset, text)


def formulas(text: str) -> list[str]:
    """Return the formulas of a page, as TeX."""
    found = (each["block"] or each["line"] for each in _PARTS.finditer(text))
    return [each for each in found if each is not None]


def _typeset(found: re.Match[str]) -> str:
    if found["code"] is not None:
        return found["code"]
    if found["block"] is not None:
        return f'<div class="formula">{_drawn(found["block"], display="block")}</div>'
    # A line of a page may begin with it, and `math` there would begin a block of its own.
    return f'<span class="formula">{_drawn(found["line"])}</span>'


def _drawn(tex: str, display: str = "inline") -> str:
    return convert(tex, display=display).replace("\n", "")


def font() -> tuple[bytes, bytes] | None:
    """Return the font and its licence from the npm registry; none where npm is not there or has no way to it."""
    if shutil.which("npm") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, _PACKAGE]
        if subprocess.run(command, capture_output=True, check=False, timeout=120).returncode:  # noqa: S603 - our own command
            return None
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as package:
            found, licence = (package.extractfile(name) for name in (_FONT, _LICENCE))
            assert found is not None and licence is not None, "both are files"  # noqa: PT018
            drawn = found.read(), licence.read()
    if hashlib.sha256(drawn[0]).hexdigest() != _DIGEST:
        raise SystemExit(f"{_PACKAGE}: the font is not the one that is known")
    return drawn


def lay_style(folder: Path) -> None:
    """Write the style of formulas, and their font where it can be had, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "formulas.css").write_text(_STYLE, encoding="utf-8")
    found = font()
    if found is None:
        sys.stderr.write("typeset: npm brings no mathematical font; formulas are drawn in the reader's\n")
        return
    (folder / "formulas.woff2").write_bytes(found[0])
    (folder / "formulas-LICENSE.txt").write_bytes(found[1])


if __name__ == "__main__":
    lay_style(Path(sys.argv[1]) / "stylesheets")
    for page in sorted(Path(sys.argv[1]).rglob("*.md")):
        page.write_text(typeset(page.read_text(encoding="utf-8")), encoding="utf-8")
