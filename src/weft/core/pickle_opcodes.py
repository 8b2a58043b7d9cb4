"""Reads pickles as descriptions, without unpickling them: opcodes in, plain values and names out, nothing imported.

To unpickle is to run whatever a file says. Here its opcodes are read by a small stack machine; a name that the file
calls for has to be in the caller's table, and what it makes of it is only described. The rest is refused.
"""

import pickletools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

_DEEPEST = 64


class StrangePickleError(ValueError):
    """A file asks for more than its kind may, or is damaged."""


@dataclass(slots=True)
class Described:
    """An object as the file describes it: nothing of it exists."""

    name: str
    """The full name of what makes it."""
    given: tuple[Any, ...] = ()
    """What it is made of."""
    state: Any = None
    """What is put into it afterwards."""


@dataclass(slots=True, eq=False)
class Pairs:
    """A dictionary as the file describes it; its keys may be descriptions."""

    items: list[tuple[Any, Any]] = field(default_factory=list)


def described(content: bytes, known: Collection[str], kind: str) -> Any:
    """Return what a pickle describes; `known` are the names that it may call for, `kind` says what it should be."""
    try:
        return _Opcodes(known, kind).read(content)
    except StrangePickleError:
        raise
    except (ValueError, LookupError, AttributeError, TypeError, OverflowError, MemoryError) as error:
        raise StrangePickleError(f"it is damaged ({type(error).__name__})") from None


def plain_values(content: bytes, kind: str) -> Any:
    """Return what a pickle of numbers, texts, lists, tuples and mappings holds; any other is refused."""
    return _plain(described(content, (), kind), {}, _DEEPEST)


def _plain(found: Any, made: dict[int, Any], depth: int) -> Any:
    """Return `found` with its mappings as dictionaries; what it holds twice is made once."""
    if not isinstance(found, (Pairs, list, tuple)):
        return found
    if depth == 0:
        raise StrangePickleError(f"it is nested more than {_DEEPEST} deep, or holds itself")
    if id(found) in made:
        return made[id(found)]
    if isinstance(found, Pairs):
        try:
            whole: Any = {_plain(key, made, depth - 1): _plain(value, made, depth - 1) for key, value in found.items}
        except TypeError:
            raise StrangePickleError("it has a key that is no plain value") from None
    else:
        whole = type(found)(_plain(each, made, depth - 1) for each in found)
    made[id(found)] = whole
    return whole


class _Opcodes:
    """A stack machine for the opcodes that descriptions of plain records are written in."""

    def __init__(self, known: Collection[str], kind: str) -> None:
        self._known, self._kind = known, kind
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def read(self, content: bytes) -> Any:
        """Return what `content` describes."""
        for opcode, argument, _ in pickletools.genops(content):
            name = opcode.name
            if name == "STOP":
                return self._stack.pop()
            if name in _LITERALS:
                self._stack.append(_LITERALS[name](argument))
            else:
                action = _ACTIONS.get(name)
                if action is None:
                    raise StrangePickleError(f"it holds the pickle instruction {name}, which no such file needs")
                action(self, argument)
        raise StrangePickleError("it ends too early")

    def _since_mark(self) -> list[Any]:
        first = self._marks.pop()
        found = self._stack[first:]
        del self._stack[first:]
        return found

    def mark(self, _: Any) -> None:
        """Remember where a group of values begins."""
        self._marks.append(len(self._stack))

    def memoize(self, _: Any) -> None:
        """Give the newest value a number."""
        self._memo[len(self._memo)] = self._stack[-1]

    def remember(self, number: int) -> None:
        """Give the newest value the number that the file says."""
        self._memo[number] = self._stack[-1]

    def recall(self, number: int) -> None:
        """Give a numbered value again."""
        self._stack.append(self._memo[number])

    def group(self, _: Any) -> None:
        """Make a tuple of everything since the mark."""
        self._stack.append(tuple(self._since_mark()))

    def look_up(self, _: Any) -> None:
        """Take a name of the table."""
        name, module = self._stack.pop(), self._stack.pop()
        whole = f"{module}.{name}"
        if whole not in self._known:
            raise StrangePickleError(f"it asks for {whole[:80]!r}, which is no part of {self._kind}")
        self._stack.append(Described(whole))

    def describe(self, _: Any) -> None:
        """Describe an object: its kind and what it is made of."""
        given, kind = self._stack.pop(), self._stack.pop()
        if not isinstance(given, tuple) or not isinstance(kind, Described) or kind.given or kind.state is not None:
            raise StrangePickleError("it calls something that is no record")
        self._stack.append(Described(kind.name, given))

    def put_state(self, _: Any) -> None:
        """Note what is put into the newest object."""
        state, made = self._stack.pop(), self._stack[-1]
        if not isinstance(made, Described):
            raise StrangePickleError("it restores something that is no record")
        made.state = state

    def append(self, _: Any) -> None:
        """Append one value to a list."""
        value = self._stack.pop()
        _listed(self._stack[-1]).append(value)

    def extend(self, _: Any) -> None:
        """Append everything since the mark to a list."""
        values = self._since_mark()
        _listed(self._stack[-1]).extend(values)

    def set_one(self, _: Any) -> None:
        """Put one pair into a dictionary."""
        value, key = self._stack.pop(), self._stack.pop()
        _pairs(self._stack[-1]).append((key, value))

    def set_many(self, _: Any) -> None:
        """Put the pairs since the mark into a dictionary."""
        values = self._since_mark()
        _pairs(self._stack[-1]).extend(zip(values[::2], values[1::2], strict=True))

    def last(self, count: int) -> None:
        """Make a tuple of the newest values."""
        if len(self._stack) < count:
            raise StrangePickleError("it takes values that are not there")
        found = tuple(self._stack[-count:])
        del self._stack[-count:]
        self._stack.append(found)


def _listed(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise StrangePickleError(f"there is a {type(found).__name__} where a list belongs")
    return found


def _pairs(found: Any) -> list[tuple[Any, Any]]:
    if not isinstance(found, Pairs):
        raise StrangePickleError(f"there is a {type(found).__name__} where a dictionary belongs")
    return found.items


def _itself(argument: Any) -> Any:
    return argument


_LITERALS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("SHORT_BINUNICODE", "BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), _itself),
    "NONE": lambda _: None, "NEWTRUE": lambda _: True, "NEWFALSE": lambda _: False,
    "EMPTY_TUPLE": lambda _: (), "EMPTY_LIST": lambda _: [], "EMPTY_DICT": lambda _: Pairs(),
}  # fmt: skip
_ACTIONS: dict[str, Callable[[_Opcodes, Any], None]] = {
    "PROTO": lambda *_: None, "FRAME": lambda *_: None, "MARK": _Opcodes.mark, "MEMOIZE": _Opcodes.memoize,
    "BINPUT": _Opcodes.remember, "LONG_BINPUT": _Opcodes.remember, "BINGET": _Opcodes.recall,
    "LONG_BINGET": _Opcodes.recall, "TUPLE": _Opcodes.group,
    "TUPLE1": lambda reader, _: reader.last(1), "TUPLE2": lambda reader, _: reader.last(2),
    "TUPLE3": lambda reader, _: reader.last(3), "STACK_GLOBAL": _Opcodes.look_up, "NEWOBJ": _Opcodes.describe,
    "REDUCE": _Opcodes.describe, "BUILD": _Opcodes.put_state, "APPEND": _Opcodes.append, "APPENDS": _Opcodes.extend,
    "SETITEM": _Opcodes.set_one, "SETITEMS": _Opcodes.set_many,
}  # fmt: skip
