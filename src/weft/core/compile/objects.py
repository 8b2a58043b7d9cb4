"""Compiled rules as object code: made once by the compiler, loaded ever after without it.

Numba's own cache brings all of numba back, its types of every argument and the code before and after optimising. A
program that only runs a rule needs none of that: `make` compiles a rule for arguments like those given and returns an
object file with one entry, which takes the address of a row of 64-bit words; `load` links one into this process; `Flat`
turns arguments into those words. What an object fits is said by `shape_of`, a word that is part of its file's name; its
folder's name says what it was made from and by (`cache.digest_of`). A seal over both and the code tells a file that was
damaged, cut short or moved from one that may be run; it protects from accidents, and the folder's owner from others.
"""

import ctypes
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.compile.cache import OBJECT, put
from weft.core.compile.rules import Specialisation, compiled, use_target

ENTRY = "weft_entry"
_FAILED = (-1, 1)
"""What a compiled rule returns beside its value where an assertion in it did not hold."""
_VALUES = ("int64", "uint64", "bool", "none")
"""What a compiled rule may return: what fits the word that the entry leaves, with its sign."""
_DIGITS, _SEAL = 16, hashlib.sha256().digest_size
_OUTSIDE = ("memcpy", "memmove", "memset")
"""What object code may call besides itself: the C library has it in every process."""
_FIRST = 2
"""Words before those of the arguments: the status and the value that a call leaves."""
_loaded: list[Any] = []


def layout_of(array: np.ndarray) -> str:
    """Return "C" where rows follow each other without a gap, else "A"; the strides say it of a column of one row.

    Numpy calls every such column contiguous. What is compiled for it then would fit no other number of rows.
    """
    wanted = array.itemsize
    for length, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        # The strides of an empty column say nothing.
        if stride != wanted and array.size:
            return "A"
        wanted *= length
    return "C"


def shape_of(arguments: tuple[Any, ...]) -> str:
    """Return a word that is the same for all arguments that one compiled form of a rule fits."""
    return hashlib.sha256(_described(arguments).encode()).hexdigest()[:_DIGITS]


def _described(argument: Any) -> str:
    if isinstance(argument, np.ndarray):
        kind, writable = argument.dtype, argument.flags["W"]
        return f"{kind.str}:{len(kind.names or ())}:{argument.ndim}:{layout_of(argument)}:{writable}"
    if isinstance(argument, tuple):
        return f"{type(argument).__name__}({','.join(map(_described, argument))})"
    assert isinstance(argument, int | np.integer), "rules take columns, records of them and whole numbers"
    return "bool" if isinstance(argument, bool) else "int"


class Flat:
    """Arguments as a row of words; tuples that come again are not taken apart again.

    A column is what compiled code takes for one: nothing, nothing, size, size of an item, address, shape, strides.
    """

    def __init__(self) -> None:
        self.words = np.zeros(_FIRST, np.int64)
        self._known: list[tuple[Any, np.ndarray]] = []

    def fill(self, arguments: tuple[Any, ...]) -> None:
        """Put arguments into `words`."""
        if len(self._known) != len(arguments):
            self._known = [(None, self.words)] * len(arguments)
        for place, argument in enumerate(arguments):
            if self._known[place][0] is not argument or not isinstance(argument, tuple):
                self._known[place] = (argument, np.array(_flat(argument), np.int64))
        self.words = np.concatenate([np.zeros(_FIRST, np.int64), *(words for _, words in self._known)])


def _flat(argument: Any) -> list[int]:
    if isinstance(argument, np.ndarray):
        address = argument.__array_interface__["data"][0]
        return [0, 0, argument.size, argument.itemsize, address, *argument.shape, *argument.strides]
    if isinstance(argument, tuple):
        return [word for each in argument for word in _flat(each)]
    return [int(argument)]


def load(code: bytes) -> Callable[[Flat], int]:
    """Link object code into this process and return what calls it: with filled arguments, for its value."""
    from llvmlite import binding

    if not _loaded:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    # One linker for each object, since all objects have the same entry; kept, or the code would be gone with it.
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _loaded.append(engine)
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.get_function_address(ENTRY))

    def call(arguments: Flat) -> int:
        entry(arguments.words.ctypes.data)
        status, value = arguments.words[:_FIRST].tolist()
        if status in _FAILED:
            raise AssertionError("an assertion of a compiled rule does not hold; run it plain to see which")
        return value

    return call


def make(function: Any, specialisation: Specialisation | None, arguments: tuple[Any, ...]) -> bytes:
    """Compile a rule for arguments like those given and return its object code."""
    from llvmlite import binding

    use_target()
    made = compiled(function, specialisation, inside=True)
    kinds = tuple(_kind_of(each) for each in arguments)
    made.compile(kinds)
    value = made.overloads[kinds].signature.return_type
    assert str(value) in _VALUES, f"{function.__qualname__} returns {value}, which does not fit a word"
    library = made.overloads[kinds].library
    inside: Any = library.__dict__["_final_module"]
    name = made.overloads[kinds].fndesc.llvm_func_name
    wanted = [str(each.type) for each in inside.get_function(name).arguments]
    module = inside.clone()
    called = {each.name for each in module.functions if each.is_declaration and not each.name.startswith("llvm.")}
    assert called <= {*_OUTSIDE}, f"{function.__qualname__} needs {called} at run time, which only the compiler has"
    module.link_in(binding.parse_assembly(_entry(name, wanted, str(module.triple), str(module.data_layout))))
    return library.codegen.__dict__["_tm"].emit_object(module)


def _entry(name: str, kinds: list[str], triple: str, layout: str) -> str:
    """Return the text of the entry: it takes words apart for the rule, and leaves status and value in the first two."""
    lines = ["  %value = getelementptr i64, ptr %words, i64 1", "  store i64 0, ptr %value", "  %why = alloca ptr"]
    given = ["ptr %value", "ptr %why"]
    for place, kind in enumerate(kinds[_FIRST:], _FIRST):
        how = {"i64": "bitcast", "ptr": "inttoptr"}.get(kind, "trunc")
        lines += [f"  %p{place} = getelementptr i64, ptr %words, i64 {place}"]
        lines += [f"  %w{place} = load i64, ptr %p{place}", f"  %a{place} = {how} i64 %w{place} to {kind}"]
        given.append(f"{kind} %a{place}")
    lines += [f"  %status = call i32 @{name}({', '.join(given)})", "  %wide = sext i32 %status to i64"]
    head = [
        f'target triple = "{triple}"',
        f'target datalayout = "{layout}"',
        f"declare i32 @{name}({', '.join(kinds)})",
    ]
    return "\n".join(
        [*head, f"define void @{ENTRY}(ptr %words) {{", *lines, "  store i64 %wide, ptr %words", "  ret void", "}", ""]
    )


def _kind_of(argument: Any) -> Any:
    """Return numba's type of an argument, with a column's layout as we tell it."""
    from numba import typeof
    from numba import types as known

    types: Any = known
    if isinstance(argument, np.ndarray):
        kind: Any = typeof(argument)
        return kind.copy(layout=layout_of(argument))
    if isinstance(argument, tuple):
        return types.BaseTuple.from_types([_kind_of(each) for each in argument], type(argument))
    return types.boolean if isinstance(argument, bool) else types.int64


def file_name(function: Any, specialisation: Specialisation | None, arguments: tuple[Any, ...]) -> str:
    """Return the name of the file in which the compiled form of a rule for such arguments is stored."""
    suffix = "" if specialisation is None else f"_{specialisation.name}"
    return f"{function.__module__}.{function.__qualname__}{suffix}.{shape_of(arguments)}{OBJECT}"


def store(place: Path, code: bytes) -> None:
    """Store object code, sealed."""
    put(place, _seal(place, code) + code)


def stored(place: Path) -> bytes | None:
    """Return stored object code; None where there is none, or none that is whole and in its place."""
    try:
        found = place.read_bytes()
    except OSError:
        return None
    code = found[_SEAL:]
    return code if found[:_SEAL] == _seal(place, code) else None


def _seal(place: Path, code: bytes) -> bytes:
    return hashlib.sha256(f"{place.parent.name}/{place.name}".encode() + b"\0" + code).digest()
