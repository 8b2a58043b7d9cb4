"""Rules over several fields read what they say, on every branch: where one of these is wrong, they are not asked."""

import ast
import importlib
import inspect
import pkgutil
import textwrap

import pytest

import weft.specs
from weft.core.spec import Check, Spec

for module in pkgutil.iter_modules(weft.specs.__path__, "weft.specs."):
    importlib.import_module(module.name)


def _below(cls: type[Spec]) -> list[type[Spec]]:
    return [cls, *(deeper for sub in cls.__subclasses__() for deeper in _below(sub))]


CHECKS = [
    pytest.param(cls, check, id=f"{cls.__name__}-{check.reads[0]}") for cls in _below(Spec) for check in cls.checks
]


def _read(check: Check) -> set[str]:
    """Return the attributes that a rule reads of the table that it is given, as its source says."""
    spec = next(iter(inspect.signature(check.rule).parameters))
    found = set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(check.rule)))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == spec:
            found.add(node.attr)
    return found


def test_there_are_checks() -> None:
    assert len(CHECKS) > 10


@pytest.mark.parametrize(("cls", "check"), CHECKS)
def test_a_check_reads_the_fields_that_it_names(cls: type[Spec], check: Check) -> None:
    assert set(check.reads) <= set(cls.model_fields)
    assert _read(check) <= set(check.reads)
