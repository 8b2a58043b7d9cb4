"""The bill of materials: every part of the built fabric is on it once, and its sums are those of its lines."""

import numpy as np
import pytest
from hypothesis import given, settings

from weft.fabric.bill import bill_of, cables_of, module_counts
from weft.fabric.graph.shape import links_per_optic, shape_of
from weft.fabric.graph.topology import NO_OPTIC, build
from weft.specs import SITES, load_site
from weft.specs.fabric import FabricSpec


@given(...)
@settings(max_examples=50)
def test_the_bill_has_a_nic_for_each_host_and_every_switch(spec: FabricSpec):
    bill, topology = bill_of(spec), build(spec)
    assert bill.count("nic") == topology.nics
    assert bill.count("switch") == len(topology.switches.tier)
    for tier in range(spec.tiers):
        line = next(line for line in bill.lines if (line.part, line.place) == ("switch", f"t{tier}"))
        assert line.count == int((topology.switches.tier == tier).sum())


@given(...)
@settings(max_examples=50)
def test_each_end_of_a_stage_has_the_modules_that_its_links_use(spec: FabricSpec):
    topology, shape, lanes = build(spec), shape_of(spec), links_per_optic(spec)
    links = topology.links
    for stage, cable in enumerate(cables_of(spec)):
        rows = links.stage == stage
        counts = module_counts(shape, stage, lanes)
        if cable.medium == "optical":
            used = [len(np.unique(column[rows])) for column in (links.lower_optic, links.upper_optic)]
            assert list(counts) == used
        else:
            assert (links.lower_optic[rows] == NO_OPTIC).all()


@given(...)
@settings(max_examples=50)
def test_copper_needs_no_optics_and_glass_no_copper(spec: FabricSpec):
    bill = bill_of(spec)
    mediums = {cable.medium for cable in cables_of(spec)}
    assert (bill.count("optic") > 0) == (bill.count("fibre") > 0) == ("optical" in mediums)
    assert (bill.count("copper") > 0) == ("copper" in mediums)


@pytest.mark.parametrize("name", SITES.names())
def test_the_sums_are_those_of_the_lines(name: str):
    bill = bill_of(load_site(name).fabric)
    rows = bill.as_json()
    assert sum(row["power_w"] for row in rows) == pytest.approx(bill.power_mw / 1000)
    assert sum(row["price_usd"] for row in rows) == pytest.approx(bill.price_cents / 100)
    assert sum(row["failures_fit"] for row in rows) == bill.failures_fit
    assert all(row["source"] for row in rows)


@pytest.mark.parametrize("part", ["switch", "nic", "optic"])
def test_a_part_that_draws_more_adds_as_much_as_there_are_of_it(part: str):
    spec = load_site("gb200-8x100g-131k").fabric
    one = getattr(spec.parts, part)
    changed = spec.model_copy(
        update={"parts": spec.parts.model_copy(update={part: one.model_copy(update={"power": one.power + 1000})})}
    )
    before, after = bill_of(spec), bill_of(changed)
    assert after.power_mw - before.power_mw == 1000 * before.count(part)
