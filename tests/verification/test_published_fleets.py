"""The page of published fleets is what the program makes, and its verdicts can be missed."""

import pytest
from verification.published_fleets import FIGURES, PAGE, page, verdict


def test_a_figure_outside_its_range_is_a_miss():
    figure = FIGURES[1]
    assert verdict(figure, 0.91, 0.93) == "met"
    assert verdict(figure, 0.7, 0.85) == "missed"


def test_the_page_has_a_row_for_every_figure_and_says_why_one_is_missed():
    text = page([(figure, 0.5, 0.5, 0.5) for figure in FIGURES], 1)
    assert text.count("missed") >= len(FIGURES) - 2
    written = PAGE.read_text()
    for figure in FIGURES:
        assert f"| `{figure.scenario}` | {figure.what} | {figure.published} |" in written


@pytest.mark.parametrize("figure", FIGURES[:2], ids=lambda figure: figure.what)
def test_the_page_is_true_of_a_seed(figure):
    from weft.campaign.seeds_in_parallel import Question, answered
    from weft.specs import load_campaign, load_site

    document = answered(Question(load_site(figure.site), load_campaign(figure.scenario)), 3)
    found = figure.simulated(document)
    assert found == pytest.approx((figure.low + figure.high) / 2, rel=0.25)
