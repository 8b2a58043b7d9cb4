"""The page of compared policies: each pair has a row, and a row says what its interval says."""

from verification.compared_policies import PAGE, PAIRS, line_of, page


def test_the_page_has_a_row_for_every_pair():
    written = PAGE.read_text()
    for pair in PAIRS:
        assert f"| {pair.first} | {pair.second} | {pair.figure} |" in written


def test_a_difference_is_as_expected_the_other_way_or_none():
    pair = PAIRS[0]
    row = {"first": 0.5, "second": 0.6, "difference": 0.1, "low": 0.05, "high": 0.15, "differs": True}
    assert "as expected" in line_of(pair, row)
    assert "the other way" in line_of(pair, {**row, "difference": -0.1})
    assert "holds 0" in line_of(pair, {**row, "differs": False})
    assert page([(pair, row)]).count("\n|") == 3
