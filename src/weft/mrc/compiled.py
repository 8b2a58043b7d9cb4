"""The one registry of rules: every rule runs as plain Python, and is compiled with numba where that is asked for.

Compiled code can not call a plain Python function. So a rule is marked with `rule`, and `compiled` makes a copy of it
in which every other rule that it names is replaced by that rule's compiled copy. The plain functions stay as they are:
nothing is switched, both forms live side by side, and the same source serves both.

Conventions that keep the two forms equal: whole numbers only; columns are signed, because numba turns int64 with uint64
into floats; rules are imported by name, never called through a module; what could pass 2^63 goes through `int` first.
This is the only module that imports numba.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

RuleT = TypeVar("RuleT", bound=Callable[..., Any])

_RULES: dict[str, FunctionType] = {}
_COMPILED: dict[FunctionType, Any] = {}
_KEPT: list[str] = []


def rule(function: RuleT) -> RuleT:
    """Register `function` as a rule and return it unchanged."""
    assert isinstance(function, FunctionType), "a rule is a plain function"
    _RULES[f"{function.__module__}.{function.__qualname__}"] = function
    return function


def rules() -> dict[str, FunctionType]:
    """Return every rule registered so far, by its full name."""
    return dict(_RULES)


def keep_compiled(folder: str) -> None:
    """Let numba keep what it compiles from now on in `folder`, and take it from there.

    Numba notices an edit of a rule but not of a rule that it calls: name the folder by a digest of all sources.
    """
    from numba import config

    # The module makes its variables when it is loaded, so that nothing can be known of them before.
    config.__dict__["CACHE_DIR"] = folder
    _KEPT.append(folder)


def compiled(function: Callable[..., Any]) -> Any:
    """Return the compiled form of a rule; it takes the same arguments and leaves the same state behind."""
    assert isinstance(function, FunctionType), "only rules can be compiled"
    assert _is_rule(function), f"{function.__qualname__} is not a rule; decorate it with @rule"
    known = _COMPILED.get(function)
    if known is not None:
        return known
    import numba

    names = dict(function.__globals__)
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    # Rules make no arrays, so nothing is to be counted or freed; counting references would cost more than the rules do.
    options: dict[str, Any] = {"nogil": True, "_nrt": False, "cache": bool(_KEPT)}
    made: Any = numba.njit(copy, **options)
    _take_wide(made)
    _COMPILED[function] = made
    for name in function.__code__.co_names:
        called = names.get(name)
        if isinstance(called, FunctionType) and _is_rule(called):
            names[name] = compiled(called)
    return made


def _take_wide(made: Any) -> None:
    """Let compiled code call `made` with whole numbers of any width, and compile it for the widest alone.

    Constants and numbers from narrow columns would otherwise make a copy of a rule for every constant and every mixture
    of widths that it is called with, which takes several times as long to compile and computes the same.
    """
    from numba import types

    template = made.get_call_template
    narrow = (*types.signed_domain, *types.unsigned_domain)
    narrow = tuple(one for one in narrow if one not in (types.int64, types.uint64))

    def wide(arguments: Any, named: Any) -> Any:
        plain = [types.unliteral(one) for one in arguments]
        return template(tuple(types.int64 if one in narrow else one for one in plain), named)

    made.get_call_template = wide


def _is_rule(function: FunctionType) -> bool:
    return _RULES.get(f"{function.__module__}.{function.__qualname__}") is function
