"""Plugins are found by name, loaded late, and named with the distribution that ships them when they are broken."""

from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core import plugins
from weft.core.errors import FailedError, UsageError


def point(name: str, value: str, ships: str = "somebody") -> EntryPoint:
    made = EntryPoint(name=name, value=value, group="weft.transports")
    vars(made)["dist"] = SimpleNamespace(name=ships)
    return made


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    listed: list[EntryPoint] = []
    monkeypatch.setattr(plugins, "_installed", lambda group: [p for p in listed if p.group == group])
    plugins._group.cache_clear()
    yield listed
    plugins._group.cache_clear()


def test_a_plugin_is_loaded_by_its_name(installed):
    installed.append(point("root", "pathlib:PurePosixPath"))
    assert plugins.entry_point("weft.transports", "root") is __import__("pathlib").PurePosixPath


def test_a_name_that_nobody_provides_is_nothing(installed):
    assert plugins.entry_point("weft.transports", "root") is None


def test_names_are_listed_without_loading(installed):
    installed += [point("b", "no_such_package:x"), point("a", "no_such_package:y")]
    assert plugins.names("weft.transports") == ("a", "b")


@pytest.mark.parametrize("value", ["no_such_package:x", "pathlib:NoSuchThing", "tests.core.broken_plugin:anything"])
def test_a_broken_plugin_is_named_with_who_ships_it(installed, value: str):
    installed.append(point("broken", value, ships="acme-transports"))
    with pytest.raises(FailedError, match=r"'broken' of acme-transports could not be loaded"):
        plugins.entry_point("weft.transports", "broken")


def test_two_distributions_may_not_provide_different_things_under_one_name(installed):
    installed += [point("x", "pathlib:Path", ships="one"), point("x", "pathlib:PurePath", ships="two")]
    with pytest.raises(UsageError, match="one and two both provide 'x'"):
        plugins.names("weft.transports")


def test_the_same_object_twice_is_no_conflict(installed):
    installed += [point("x", "pathlib:Path"), point("x", "pathlib:Path")]
    assert plugins.entry_point("weft.transports", "x") is Path


def test_a_group_that_weft_does_not_read_is_a_mistake_of_ours():
    with pytest.raises(AssertionError):
        plugins.names("weft.transport")


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["pathlib:Path"]))))
def test_every_installed_name_is_listed_once_and_loads(drawn):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "_installed", lambda group: [point(name, value) for name, value in drawn])
        plugins._group.cache_clear()
        try:
            assert plugins.names("weft.transports") == tuple(sorted({name for name, _ in drawn}))
            assert set(plugins.entry_points("weft.transports")) == {name for name, _ in drawn}
        finally:
            plugins._group.cache_clear()
