"""Programs for the kernel are put together right: jumps count from behind themselves, arrays take two places."""

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_lab.network.ebpf import Assembler, KernelArray, load_program, tried_out

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="programs of the kernel need root")
PACKET = bytes(64)
ADD, MOVE, END = 0x07, 0xB7, 0x95


@given(st.integers(0, 30), st.integers(0, 30), st.booleans())
def test_a_jump_lands_on_its_label_forwards_and_backwards(before, between, forwards):
    code = Assembler()
    for _ in range(before):
        code.put(MOVE)
    if not forwards:
        code.label("there")
    else:
        code.jump("there")
    code.load_map(1, 7)
    for _ in range(between):
        code.put(MOVE)
    if forwards:
        code.label("there")
        code.put(END)
    else:
        code.jump("there")
    lines = [struct.unpack_from("<BBhi", code.assembled(), at) for at in range(0, len(code.assembled()), 8)]
    place = next(at for at, line in enumerate(lines) if line[0] == 0x05)
    target = before if not forwards else before + 1 + 2 + between
    assert place + 1 + lines[place][2] == target


@pytest.mark.root
@ROOT
@pytest.mark.parametrize("number", [0, 1, 77, 2**31 - 1])
def test_the_kernel_runs_what_was_put_together_and_shares_an_array(number):
    array = KernelArray.make(3)
    try:
        array.write([1, -5, 9])
        assert array.read() == [1, -5, 9]
        code = Assembler()
        code.put(MOVE, 0, number=number)
        code.put(END)
        program = load_program("weft_test", code.assembled())
        assert tried_out(program, PACKET) == (number, PACKET)
        os.close(program)
    finally:
        array.close()


@pytest.mark.root
@ROOT
def test_what_the_verifier_refuses_is_said():
    code = Assembler()
    code.put(ADD, 3, number=1)
    code.put(END)
    with pytest.raises(OSError, match="R3 !read_ok"):
        load_program("weft_test", code.assembled())
