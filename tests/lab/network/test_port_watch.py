"""What the kernel says about links, taken apart."""

import os
import struct
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.conftest import Weft

from weft_lab.network.lab import Lab
from weft_lab.network.port_watch import PortChange, changes_in

UP = 0x1 | 0x10000


def message(name: str, flags: int, kind: int = 16) -> bytes:
    text = name.encode() + b"\0"
    attribute = struct.pack("=HH", 4 + len(text), 3) + text
    attribute = struct.pack("=HHI", 8, 13, 1000) + attribute.ljust(-(-len(attribute) // 4) * 4, b"\0")
    body = struct.pack("=BxHiII", 0, 1, 7, flags, 0) + attribute
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


@pytest.mark.parametrize(
    ("flags", "kind", "up"), [(UP, 16, True), (0x1, 16, False), (0x10000, 16, False), (UP, 17, False)]
)
def test_a_port_is_up_when_it_is_meant_to_be_and_has_a_link(flags: int, kind: int, up: bool):
    assert list(changes_in(message("p3", flags, kind))) == [PortChange(3, up)]


def test_several_in_one_message_come_in_order_and_other_devices_are_left_out():
    told = message("p0", UP) + message("lo", UP) + message("p12", 0) + message("px", UP)
    assert list(changes_in(told)) == [PortChange(0, True), PortChange(12, False)]


@given(st.binary(max_size=200))
def test_anything_else_is_passed_over(noise: bytes):
    list(changes_in(noise))


WATCH = """
from weft_lab.network.port_watch import PortWatch
import selectors
watch = PortWatch()
print(sorted(watch.up.items()), flush=True)
ready = selectors.DefaultSelector()
ready.register(watch, selectors.EVENT_READ)
seen = 0
while seen < 2:
    ready.select(20)
    for change in watch.changes():
        print(change.plane, change.up, flush=True)
        seen += 1
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_host_sees_its_own_link_go_and_come_back(weft: Weft, lab: Callable[..., Lab]):
    made = lab("--hosts", "2", "--planes", "2", "--spines", "1")
    with subprocess.Popen([*made.inside(0), sys.executable, "-c", WATCH], stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        assert watch.stdout.readline() == "[(0, True), (1, True)]\n"
        assert weft("cut", "link0-p1-i1") == 0  # somebody else's
        assert weft("cut", "link0-p1-i0") == 0
        assert watch.stdout.readline() == "1 False\n"
        assert weft("heal") == 0
        assert watch.stdout.readline() == "1 True\n"
