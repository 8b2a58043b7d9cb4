"""Compiled rules are kept under a digest of everything they are made from."""

from pathlib import Path

import weft
from weft.netsim.compiling import RULES


def test_every_file_with_a_rule_of_the_simulator_is_in_the_digest() -> None:
    package = Path(weft.__file__).parent
    with_rules = [
        str(file.relative_to(package))
        for folder in ("mrc", "netsim")
        for file in sorted((package / folder).rglob("*.py"))
        if "\n@rule\n" in file.read_text(encoding="utf-8")
    ]
    assert with_rules
    assert [file for file in with_rules if file not in RULES and file.partition("/")[0] not in RULES] == []
