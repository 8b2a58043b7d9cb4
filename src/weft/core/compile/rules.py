"""The one registry of rules: every rule runs as plain Python, and is compiled with numba where that is asked for.

Compiled code cannot call a plain Python function. So a rule is marked with `rule`, and `compiled` makes a copy of it in
which every other rule that it names is replaced by that rule's compiled copy. The plain functions stay as they are:
nothing is switched, both forms live side by side, and the same source serves both.

Conventions that keep the two forms equal: whole numbers only; columns are signed, because numba turns int64 with uint64
into floats; rules are imported by name, never called through a module; what could pass 2^63 goes through `int` first.

Three things stand in for a function at compile time, and the function itself says so each time: an intrinsic (listed in
`intrinsics`), a `compiled_variant` (a decorator), and a rule marked `replaceable`, for which a `Specialisation` may put
another one. Nothing but this package imports numba to compile rules.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple, TypeVar, cast

from typing_extensions import override

from weft.core.compile.intrinsics import INTRINSICS

RuleT = TypeVar("RuleT", bound=Callable[..., Any])

_RULES: dict[str, FunctionType] = {}
_COMPILED: dict[tuple[FunctionType, str, bool], Any] = {}
_VARIANTS: dict[Callable[..., Any], FunctionType] = {}
_REPLACEABLE: dict[Callable[..., Any], str] = {}
_CACHES: list[str] = []
_ANNOUNCED: list[Any] = []
_LOCATORS = "weft.core.compile.locator.DigestLocator,UserProvidedCacheLocator"
_BASELINE = "x86-64-v3"
_NEEDED = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
"""What the baseline has beyond the first x86-64, by the psABI's levels; other processors lack them all."""
_log = logging.getLogger("weft.compile")


def rule(function: RuleT) -> RuleT:
    """Register `function` as a rule and return it unchanged."""
    assert isinstance(function, FunctionType), "a rule is a plain function"
    _RULES[f"{function.__module__}.{function.__qualname__}"] = function
    return function


def compiled_variant(variant: Callable[..., Any]) -> Callable[[RuleT], RuleT]:
    """Let compiled code call rule `variant` in place of the decorated one: same result, by arithmetic that wraps."""
    assert isinstance(variant, FunctionType), "a rule is a plain function"

    def mark(function: RuleT) -> RuleT:
        _VARIANTS[function] = variant
        return function

    return mark


def replaceable(reason: str) -> Callable[[RuleT], RuleT]:
    """Let a `Specialisation` put another rule in place of the decorated one; the reason says which and where."""

    def mark(function: RuleT) -> RuleT:
        _REPLACEABLE[function] = reason
        return function

    return mark


def rules() -> dict[str, FunctionType]:
    """Return every rule registered so far, by its full name."""
    return dict(_RULES)


def use_cache(folder: str) -> None:
    """Let numba store what it compiles from now on in `folder`, and load it from there.

    Numba notices an edit of a rule but not of a rule that it calls: name the folder by a digest of all sources.
    """
    from numba import config

    # The module makes its variables when it is loaded, so that nothing can be known of them before.
    config.__dict__["CACHE_DIR"] = folder
    use_target()
    _CACHES.append(folder)


def use_target() -> None:
    """Let numba compile for `target()`, unless the environment names another processor."""
    from numba import config

    if config.__dict__["CPU_NAME"] is None and _has_baseline():
        config.__dict__.update(CPU_NAME=_BASELINE, CPU_FEATURES="")


@cache
def target() -> tuple[str, str]:
    """Return the processor that code is compiled for, and its features: the baseline where this is one of them."""
    from llvmlite import binding

    if os.environ.get("NUMBA_CPU_NAME"):
        return os.environ["NUMBA_CPU_NAME"], os.environ.get("NUMBA_CPU_FEATURES", "")
    if _has_baseline():
        return _BASELINE, ""
    return str(binding.get_host_cpu_name()), str(binding.get_host_cpu_features().flatten())


def _has_baseline() -> bool:
    """Return whether code for the common baseline runs here: stored code is then good for other machines, too.

    Homes are shared between machines, and wheels are installed on any. The rules count in whole numbers and wait for
    memory: they gain nothing from what newer processors can do beyond it.
    """
    from llvmlite import binding

    here: Any = binding.get_host_cpu_features()
    return all(here.get(feature) for feature in _NEEDED)


class Specialisation(NamedTuple):
    """A named set of replacements: rules that compiled code calls in place of others."""

    name: str
    """What the compiled copies are named after."""
    replacements: Mapping[Callable[..., Any], Callable[..., Any]]
    """From a `replaceable` rule to the one that takes its place."""


def compiled(
    function: Callable[..., Any], specialisation: Specialisation | None = None, *, inside: bool = False
) -> Any:
    """Return the compiled form of a rule; it takes the same arguments and leaves the same state behind.

    One that is `inside` can be called by other compiled code only, not by Python.
    """
    if specialisation is not None:
        for each in specialisation.replacements:
            assert each in _REPLACEABLE, f"{each.__qualname__} is not marked as replaceable"
    return _compiled(function, specialisation, entry=not inside)


def replaced(
    function: Callable[..., Any], specialisation: Specialisation | None
) -> tuple[FunctionType, Specialisation | None]:
    """Return what takes the place of a rule, and the specialisation where it makes a difference to it.

    A rule that reaches no replaced one is compiled once for all specialisations.
    """
    assert isinstance(function, FunctionType), "only rules can be compiled"
    if specialisation is None:
        return function, None
    function = specialisation.replacements.get(function, function)
    assert isinstance(function, FunctionType), "only rules take the place of rules"
    return function, specialisation if _reaches(function, specialisation, set()) else None


def _compiled(function: Callable[..., Any], specialisation: Specialisation | None, *, entry: bool) -> Any:
    """Return a rule compiled to be called from outside, or by other compiled rules only.

    The latter take no part in what Python needs, the unpacking of arguments and the caching of code, which costs far
    more time to compile than most rules do.
    """
    assert isinstance(function, FunctionType), "only rules can be compiled"
    assert _is_rule(function), f"{function.__qualname__} is not a rule; decorate it with @rule"
    function, specialisation = replaced(function, specialisation)
    suffix = "" if specialisation is None else f"_{specialisation.name}"
    known = _COMPILED.get((function, suffix, entry))
    if known is not None:
        return known
    import numba

    names = dict(function.__globals__)
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    # Numba's cache goes by this name, so that copies which call other rules must not share it.
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__ + suffix
    # Rules make no arrays, so nothing is to be counted or freed; counting references would cost more than the rules do.
    # They divide by nothing that could be zero, so no check for it is wanted either.
    options: dict[str, Any] = {"nogil": True, "_nrt": False, "error_model": "numpy"}
    if entry:
        options["cache"] = bool(_CACHES)
    else:
        options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}
    _announce_compilations()
    with _stored_by_digest():
        made: Any = numba.njit(copy, **options)
    _widen_arguments(made)
    _skip_negative_indices(made)
    # Noted before the rules that it calls are compiled, so that one that calls itself finds itself.
    _COMPILED[function, suffix, entry] = made
    for name in function.__code__.co_names:
        called = names.get(name)
        if isinstance(called, FunctionType):
            names[name] = _inner(called, specialisation)
    return made


@contextmanager
def _stored_by_digest() -> Iterator[None]:
    """Let numba store what is decorated here by `locator.DigestLocator`; nobody else's functions."""
    from numba import config

    others = config.__dict__.get("CACHE_LOCATOR_CLASSES", "")
    config.__dict__["CACHE_LOCATOR_CLASSES"] = _LOCATORS
    try:
        yield
    finally:
        config.__dict__["CACHE_LOCATOR_CLASSES"] = others


def _announce_compilations() -> None:
    """Log what is compiled, when that begins and when all of it is over; loading from the cache is no compilation."""
    if _ANNOUNCED:
        return
    from numba.core import event

    class Announcer(event.Listener):
        def __init__(self) -> None:
            self.depth = 0

        @override
        def on_start(self, event: Any) -> None:
            self.depth += 1
            _log.info("compiling %s", event.data["dispatcher"].py_func.__name__)

        @override
        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if self.depth == 0:
                _log.info("running")

    _ANNOUNCED.append(Announcer())
    event.register("numba:compile", _ANNOUNCED[0])


def _inner(called: FunctionType, specialisation: Specialisation | None) -> Any:
    """Return what compiled rules call for a function: its compiled form where it has one."""
    if specialisation is not None:
        called = cast("FunctionType", specialisation.replacements.get(called, called))
    if called in INTRINSICS:
        return INTRINSICS[called]()
    return _compiled(_VARIANTS.get(called, called), specialisation, entry=False) if _is_rule(called) else called


def _reaches(function: FunctionType, specialisation: Specialisation, seen: set[FunctionType]) -> bool:
    """Return whether a rule calls, itself or through others, one that is replaced."""
    seen.add(function)
    called = [function.__globals__.get(name) for name in function.__code__.co_names]
    rules_called = [each for each in called if isinstance(each, FunctionType) and _is_rule(each)]
    if any(each in specialisation.replacements for each in rules_called):
        return True
    return any(_reaches(each, specialisation, seen) for each in rules_called if each not in seen)


def _widen_arguments(made: Any) -> None:
    """Let compiled code call `made` with whole numbers of any width, and compile it for the widest alone.

    Constants and numbers from narrow columns would otherwise make a copy of a rule for every constant and every mixture
    of widths that it is called with, which takes several times as long to compile and computes the same.
    """
    from numba import types as known

    types: Any = known
    template = made.get_call_template
    narrow = (*types.signed_domain, *types.unsigned_domain)
    narrow = tuple(one for one in narrow if one not in (types.int64, types.uint64))

    def wide(arguments: Any, named: Any) -> Any:
        plain = [types.unliteral(one) for one in arguments]
        return template(tuple(types.int64 if one in narrow else one for one in plain), named)

    made.get_call_template = wide


def _skip_negative_indices(made: Any) -> None:
    """Let compiled code take every index as it is: rules never count from the end of a column.

    The question whether an index is negative would be asked some hundred times for each packet.
    """
    compile_one = made.compile

    def compile_plainly(signature: Any) -> Any:
        with _plain_indices():
            return compile_one(signature)

    made.compile = compile_plainly


@contextmanager
def _plain_indices() -> Iterator[None]:
    """Let numba, as long as this lasts, make no case of negative indices."""
    from numba import types as known
    from numba.np import arrayobj

    types: Any = known
    module: Any = arrayobj
    before = module.fix_integer_index

    def plain(context: Any, builder: Any, kind: Any, index: Any, _size: Any) -> Any:
        return context.cast(builder, index, kind, types.intp if kind.signed else types.uintp)

    module.fix_integer_index = plain
    try:
        yield
    finally:
        module.fix_integer_index = before


def _is_rule(function: FunctionType) -> bool:
    return _RULES.get(f"{function.__module__}.{function.__qualname__}") is function
