import json
from dataclasses import replace

import pytest

from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.core.specfile import validate
from weft.fabric.explain import TOPICS, ClosedFormCheck, explain
from weft.fabric.explain.base import shown, shown_pair
from weft.fabric.explain.figures import figures_of
from weft.fabric.theory.estimate import Estimate
from weft.specs import SITES, SiteSpec, load_site

SITE = "gb200-8x100g-131k"


def one_tier() -> SiteSpec:
    table = load_site("laptop").as_written()
    table["fabric"].update(tiers=1)
    return validate(table, SiteSpec, "one-tier")


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("site", SITES.names())
def test_every_formula_agrees_with_its_simulation_on_every_site(topic: str, site: str) -> None:
    explanation = explain(topic, load_site(site), Seed(0))
    assert explanation.checks
    assert [check for check in explanation.checks if check.verdict == "disagrees"] == []
    assert all(text for text in (explanation.title, explanation.decision, explanation.surprise))
    assert explanation.paragraphs
    assert explanation.sources
    for panel in explanation.panels:
        assert all(len(series.x) == len(series.y) for series in panel.series)


@pytest.mark.parametrize("topic", TOPICS)
def test_same_seed_same_bytes(topic: str) -> None:
    site = load_site("laptop")
    first, again, other = (json.dumps(explain(topic, site, Seed(n)).as_json(), allow_nan=False) for n in (7, 7, 8))
    assert first == again
    assert first != other


def test_a_wrong_closed_form_is_called_wrong() -> None:
    check = explain("spraying", load_site("laptop"), Seed(0)).checks[0]
    assert check.closed is not None
    assert check.verdict == "agrees"
    assert replace(check, closed=check.closed * 3).verdict == "disagrees"
    assert replace(check, closed=None).verdict == "simulated only"


@pytest.mark.parametrize(("wrong", "meant"), [("spray", "spraying"), ("static", "static-routing"), ("plane", "planes")])
def test_a_topic_that_does_not_exist_names_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(UsageError, match=meant):
        explain(wrong, load_site("laptop"), Seed(0))


@pytest.mark.parametrize("topic", ["spraying", "static-routing"])
def test_one_tier_has_nothing_to_spray_over_or_to_route(topic: str) -> None:
    with pytest.raises(UsageError, match="one tier"):
        explain(topic, one_tier(), Seed(0))


@pytest.mark.parametrize("topic", ["planes", "lossy", "tail"])
def test_other_topics_work_on_one_tier(topic: str) -> None:
    assert {check.verdict for check in explain(topic, one_tier(), Seed(0)).checks} == {"agrees"}


def test_the_figures_of_the_published_fabric() -> None:
    figures = figures_of(load_site(SITE))
    assert figures.round_trip_us == pytest.approx(13.08, abs=0.01)
    assert (figures.values, figures.values_per_plane) == (256, 32)
    assert figures.rotation_us == pytest.approx(10.9, abs=0.05)
    assert round(figures.in_flight) == 307
    assert round(figures.plane_in_flight) == 38


def test_four_planes_take_half_as_many_entropy_values() -> None:
    figures = figures_of(load_site("gb200-4x200g-32k"))
    assert (figures.values, figures.values_per_plane, figures.shape.paths) == (128, 32, 128)


def test_planes_shows_the_published_comparison() -> None:
    cells = {row[0]: row[1:] for row in explain("planes", load_site(SITE), Seed(0)).table.rows}
    assert cells["NICs reached"] == ("131,072", "65,536")
    assert cells["switches per 1,024 NICs"] == ("48", "80")
    assert cells["a NIC port down: share of that NIC"] == ("12.5 %", "100 %")


def test_values_are_shown_to_the_digit_that_their_error_leaves() -> None:
    assert shown_pair(Estimate(0.12345678, 0.0012, 10), "share") == ("12.35 %", "± 0.12")
    assert shown_pair(Estimate(2.0, 0.0, 10), "packets") == ("2 packets", "0")
    assert shown(0.125, "share") == "12.5 %"
    assert shown(1e-9, "share") == "1.00e-07 %"


def test_a_check_is_plain_data() -> None:
    check = ClosedFormCheck("q", "f", "x", 1.0, Estimate(1.0, 0.1, 10))
    assert check.as_json()["verdict"] == "agrees"
    assert check.as_json()["simulated"] == {"value": 1.0, "standard_error": 0.1, "trials": 10}
