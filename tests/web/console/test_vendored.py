"""What is vendored is what its manifest says, and nothing is fetched from elsewhere at run time."""

import hashlib
import json
import re
from importlib.resources import files

STATIC = files("weft.web.console") / "static"


def test_vendored_files_are_those_of_the_manifest():
    vendor = STATIC / "vendor"
    manifest = json.loads((vendor / "manifest.json").read_text())
    listed = {name: digest for package in manifest["packages"] for name, digest in package["files"].items()}
    there = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in vendor.iterdir()
             if each.name != "manifest.json"}  # fmt: skip
    assert there == listed
    for package in manifest["packages"]:
        assert package.keys() >= {"name", "version", "licence", "from"}
        assert package["licence_file"] in listed


def test_no_page_names_another_address():
    for each in STATIC.iterdir():
        if each.is_file():
            found = re.findall(r"https?://[^\s\"'<>]+", each.read_text())
            assert set(found) <= {"http://www.w3.org/2000/svg"}, each.name
