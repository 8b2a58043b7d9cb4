"""Tokens to experts and back: what the routing table says is what is sent, and what is wrong with one is named."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.netsim.workload.experts import expert_flows
from weft.specs.scenario import TrafficSpec

TABLES = st.dictionaries(st.tuples(st.integers(0, 7), st.integers(0, 7)), st.integers(0, 500), min_size=1)


def flows_of(folder: Path, lines: list[str], hosts: int = 64):
    file = folder / "routing.csv"
    file.write_text("\n".join(lines) + "\n")
    spec = TrafficSpec(pattern="experts", routing=str(file), stride=3)
    return spec, expert_flows(spec, hosts)


@given(TABLES)
def test_every_token_goes_to_its_expert_and_comes_back_once_all_are_there(
    tmp_path_factory: pytest.TempPathFactory, table: dict[tuple[int, int], int]
) -> None:
    lines = ["source,destination,tokens", *(f"{a},{b},{n}" for (a, b), n in table.items())]
    far = {(3 * a, 3 * b): n for (a, b), n in table.items() if a != b and n}
    if not far:
        with pytest.raises(UsageError, match="no tokens from one rank to another"):
            flows_of(tmp_path_factory.mktemp("t"), lines)
        return
    spec, flows = flows_of(tmp_path_factory.mktemp("t"), lines)
    to = {(f.source, f.destination): f.size // spec.token for f in flows if f.name.startswith("to:")}
    back = {(f.destination, f.source): f.size // spec.token for f in flows if f.name.startswith("back:")}
    assert to == back == far
    for flow in flows:
        if flow.name.startswith("back:"):
            (there,) = flow.after
            waited = {flows[n].source for n in flows[there].after}
            assert waited == {a for a, b in far if b == flow.source}


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["source,target,tokens", "0,1,2"], "has no column 'destination'"),
        (["source,destination,tokens", "0,1,x"], "routing.csv:2: '0,1,x' are not three whole numbers"),
        (["source,destination,tokens", "0,99,1"], "names rank 99, which is NIC 297; there are 64"),
    ],
)
def test_a_table_that_cannot_be_used_is_named(tmp_path: Path, lines: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        flows_of(tmp_path, lines)


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        expert_flows(TrafficSpec(pattern="experts", routing=str(tmp_path / "none.csv")), 8)
