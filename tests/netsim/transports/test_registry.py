"""Transports by name: weft's own, RoCE with several queue pairs, and those of other distributions."""

from typing import Any

import pytest

from weft.core import plugins
from weft.core.errors import UsageError
from weft.netsim.transports import registry
from weft.netsim.transports.mrc import Mrc
from weft.netsim.transports.registry import NAMES, transport_named
from weft.specs.rivals import MOST_QUEUE_PAIRS, TransportsSpec

SPEC = TransportsSpec()


@pytest.mark.parametrize("name", NAMES)
def test_every_own_transport_is_found_and_says_its_name(name):
    found = transport_named(name, SPEC)
    assert found.name.partition(":")[0] == name
    frames = found.frames(4096)
    assert frames.payload == 4096
    assert frames.header > 0
    assert all(0 < size < frames.full for size in frames.control.values())
    assert found.queue_pairs == 1
    assert isinstance(found.trimming, bool)


@pytest.mark.parametrize("count", [1, 2, 8, MOST_QUEUE_PAIRS])
def test_roce_takes_a_number_of_queue_pairs(count):
    found = transport_named(f"roce:{count}", SPEC)
    assert (found.name, found.queue_pairs) == (f"roce:{count}", count)


@pytest.mark.parametrize("name", ["roce:0", f"roce:{MOST_QUEUE_PAIRS + 1}", "roce:-1", "roce:x", "roce:1.5"])
def test_a_number_that_is_none_is_refused_with_what_may_be_written(name):
    with pytest.raises(UsageError, match=f"write roce:1 to roce:{MOST_QUEUE_PAIRS}"):
        transport_named(name, SPEC)


@pytest.mark.parametrize("name", ["tcp", "", "mrc:2", "MRC", "roc"])
def test_a_name_that_nobody_has_is_answered_with_those_there_are(name):
    with pytest.raises(UsageError, match="there are mrc, uet, random, roce, reps, adaptive"):
        transport_named(name, SPEC)


def test_a_transport_of_another_distribution_is_called_with_the_scenarios_parameters(monkeypatch: pytest.MonkeyPatch):
    called: list[Any] = []

    def factory(spec: TransportsSpec) -> Mrc:
        called.append(spec)
        return Mrc(spec.mrc, name="mine")

    def entry_point(group: str, name: str) -> object | None:
        return factory if (group, name) == (registry.GROUP, "mine") else None

    monkeypatch.setattr(plugins, "entry_point", entry_point)
    monkeypatch.setattr(plugins, "names", lambda _group: ("mine",))
    assert transport_named("mine", SPEC).name == "mine"
    assert called == [SPEC]
    with pytest.raises(UsageError, match="adaptive, mine"):
        transport_named("yours", SPEC)


def test_links_are_denied_to_mrc_alone():
    found = transport_named("mrc", SPEC, frozenset({3, 4}))
    assert isinstance(found, Mrc)
    assert found.denied == {3, 4}
