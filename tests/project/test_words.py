"""The field's words: phrases of our own that have a better one, and a search for them in sources, help and pages.

An entry is what must not be written and what to write instead. Sources are searched as they are (identifiers, strings,
comments, docstrings); help and pages with their line breaks taken out, so that a phrase cannot hide at the margin.
Decisions and the changelog are history and stay as they were written.
"""

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from weft.cli.main import app

ROOT = Path(__file__).parents[2]
WIDTH = 80

EVERYWHERE = {
    # names of state and of modules
    r"\[.told.\]|\.told\b|\btold(?: =|:|\[)|def told\b|\w_told\b": "last_wait_code, events_head, ports_announced",
    # The key of a record on disk stays, so that older logs and stores are read.
    r'(?<!"key": ")\btold\b': "say who informs whom of what: announced, signalled, given, distinguished",
    r"(?<!without )\bharms?\b": "link fault",
    r"foresight|foresee": "prefetch",
    r"foretell|foretold": "predict",
    r"\bdesks?\b": "shard; store",
    r"(?<![Dd]ata )(?<!fact )\bsheets?\b": "packet pool",
    r"\bHalves\b|\bhalves\.\w|\bhalves\[|halves:": "host state",
    r"\bDARK\b|\bdark port|\bdarken": "link down, down port",
    r"\bcourt\b": "evidence log",
    r"balloon(?!\"|_ms)": "idle-time test",
    r"\bmeetings?\b": "rendezvous",
    r"\broll\b": "node index",
    r"\bbeginnings\b": "opening queue pairs; starts",
    r"\bclass Book\b|\bBook\(": "cluster state",
    r"class _Turn\b": "scheduling cycle",
    r"import \w+ as words\b": "import it under its own name",
    r"_PARTICULAR\b": "INTRINSICS",
    r"Swap\.instead|\.instead\b": "specialisation",
    r"class Spread\b": "parallelised decoder",
    r"class Seals?\b|\bseals\b": "checksums",
    r"[Aa]cted (?:node|pod|cluster)s?\b|What is acted": "simulated node",
    # phrases
    r"[Cc]an not\b(?! only)": "cannot",
    r"[Nn]ine in ten": "90 % interval",
    r"[Nn]ineteen in twenty": "95 % interval",
    r"without a word": "without a message; killed, died",
    r"no word\b(?! for)": "no output",
    r"breaks of the contract|breaks the contract": "utility-contract violations",
    r"[Cc]omputed again|[Cc]ompute again": "recompute",
    r"[Ww]ho pays": "team whose quota is charged",
    r"[Gg]ive a node": "cordon a node; return a node to service",
    r"\bunder way\b": "in flight; running",
    r"[Rr]ate of (?:a|one) NIC": "NIC rate",
    r"[Pp]ower of the network": "network power",
    r"(?<![Mm]ean )time between failures": "MTBF of the job",
    r"fullest GPU": "peak GPU memory",
    r"traffic that is not hidden|what compute does not hide": "exposed communication",
    r"\bway back\b": "reverse path",
    r"nothing to see here": "not applicable",
    r"speaks from|from when on it speaks": "threshold",
    r"innocent queue": "victim QP",
    r"all are alike, and": "identical rounds; time extrapolated",
    r"as many as help": "default: enough",
    r"block cut in two\b": "with TP",
    r"the greater counts": "max (Kaplan)",
    r"squares to absol": "Huber delta",
    r"\bas the die\b|\bthe die (?:is|for)\b|key is the die": "the random draw",
    r"page's conscience": "the page's check",
    r"or finds no room": "backfilling it would delay a job before it",
    r"no majority says": "only two copies, culprit unknown",
    r"kinds known to": "install CRDs",
    r"[Pp]lay (?:the )?nodes": "run simulated nodes",
    r"\bto and fro\b": "round trips",
    r"[Cc]all(?:ed|s)? off\b": "cancel",
    r"health programs?\b": "health check",
    r"what (?:each|it) can catch": "what it detects",
    r"[Ss]erved instead": "if served",
    r"sequences at once": "batch",
    r"a token each": "TPOT",
    r"nobody can say": "unknown",
    r"small message 0 us": "latency of a small message: < 1 us",
    r"[Ww]ays to smooth it": "power mitigations",
    r"what trainings have left behind": "training runs",
    r"on purpose as FILE": "inject the faults described in FILE",
    r"that feel it\b": "affected",
}  # fmt: skip
"""What is not written anywhere: a pattern, and what to write."""

FOR_PEOPLE = {
    r"\bWhich\.": "say what a name is, and where it is listed",
    r"[Oo]f which rank\.": "rank whose output is printed",
    r"Until the job ends\.": "stream new output",
    r"Those that have ended too": "include finished jobs",
    r"\bwhere absent\b|\bif absent\b": "default: ...",
    r"\d at first\b": "default 4",
    r"\bas FILE says": "described in FILE",
    r"Root of everything random": "random seed",
    r"Hand a training|hands? (?:one )?in\b": "submit",
    r"taken? along\b": "copy, pass",
    r"\btake[sn]? up again": "resume; adopt",
    r"\bso many\b": "a number, or N",
    r"\bcareful:": "warning:",
    r"terms that add up": "additive (Chinchilla)",
    r"[Ww]ho we are": "identity",
    r"\bfor ever\b": "no end",
    r"fall silent": "stop heartbeating",
}  # fmt: skip
"""What is besides these not written in help."""


def place_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[2].removesuffix(".py") if parts[:2] == ("src", "weft") else "packages"


SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "packages").rglob("*.py")])
PLACES = sorted({place_of(path) for path in SOURCES})
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def joined(text: str) -> str:
    """Return a text as one line: without line breaks, and without the frames around help."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", text)


def commands(words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Return every command, by its words."""
    yield words
    here = app
    for word in words:
        here = here[word]
    for name in here:
        if not name.startswith("-"):
            yield from commands((*words, name))


def help_of(words: tuple[str, ...]) -> str:
    out = io.StringIO()
    app.help_print(list(words), console=Console(file=out, width=WIDTH, force_terminal=False))
    return out.getvalue()


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """The help of every command on a narrow terminal."""
    return {" ".join(("weft", *words)): help_of(words) for words in commands()}


@pytest.mark.parametrize("place", PLACES)
def test_sources_use_the_fields_words(place: str):
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]!r}: write {better!r}"
        for path in SOURCES
        if place_of(path) == place
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for pattern, better in EVERYWHERE.items()
        if (match := re.search(pattern, line))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_the_fields_words(page: Path):
    if page.name == "CHANGELOG.md":
        return
    text = joined(page.read_text())
    found = [
        f"{text[max(0, match.start() - 30) : match.end() + 30]!r}: write {better!r}"
        for pattern, better in EVERYWHERE.items()
        if (match := re.search(pattern, text))
    ]
    assert not found, "\n".join(found)


def test_help_uses_the_fields_words(helps: dict[str, str]):
    found = [
        f"{command} --help: {match[0]!r}: write {better!r}"
        for command, text in helps.items()
        for pattern, better in (EVERYWHERE | FOR_PEOPLE).items()
        if (match := re.search(pattern, joined(text)))
    ]
    assert not found, "\n".join(found)


def test_help_fits_a_narrow_terminal(helps: dict[str, str]):
    wide = [(command, line) for command, text in helps.items() for line in text.splitlines() if len(line) > WIDTH]
    assert not wide


def test_every_option_of_every_command_has_a_sentence(helps: dict[str, str]):
    """A row of a table of options is its name and at least two words on it."""
    bare = [
        (command, row[0])
        for command, text in helps.items()
        for row in re.finditer(r"^│ +(?:\* +)?(--[\w-]+)(?: [A-Z]+(?:\.\.\.)?)?\s+(\S*)\s*│$", text, re.MULTILINE)
        if not row[2]
    ]
    assert not bare


def test_every_command_is_a_sentence_that_begins_with_a_verb(helps: dict[str, str]):
    for command, text in helps.items():
        sentence = joined(text).partition("Usage: ")[2]
        summary = sentence.split("] ")[-1] if "[" in sentence[:60] else sentence
        assert re.search(r"[A-Z][a-z]+ ", summary), command


@pytest.mark.parametrize(("pattern", "text"), [
    (r'(?<!"key": ")\btold\b', "who is told"), (r"[Cc]an not\b(?! only)", "it can not be read"),
    (r"[Nn]ine in ten", "nine in ten take"),
    (r"(?<![Dd]ata )(?<!fact )\bsheets?\b", "a sheet of packets"), (r"\bway back\b", "on its way back"),
    (r"(?<![Mm]ean )time between failures", "the time between failures"), (r"\bunder way\b", "packets under way"),
])  # fmt: skip
def test_a_pattern_finds_what_it_bans(pattern: str, text: str):
    assert re.search(pattern, text)


@pytest.mark.parametrize("text", [
    "a GPU's data sheet", "it can not only send", "mean time between failures", "untolding", "the halves of a ring",
    "charms", "a node underway",
])  # fmt: skip
def test_plain_english_is_not_banned(text: str):
    assert not [pattern for pattern in EVERYWHERE if re.search(pattern, text)]


def test_there_is_something_better_for_every_word():
    assert len(EVERYWHERE | FOR_PEOPLE) >= 75
    assert all(better.strip() for better in (EVERYWHERE | FOR_PEOPLE).values())
    for pattern in EVERYWHERE | FOR_PEOPLE:
        re.compile(pattern)
