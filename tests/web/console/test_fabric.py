"""The fabric's map agrees with the walk through the tables, for every kind of part and any site."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from weft.fabric.graph.shape import shape_of
from weft.specs import SITES, load_site
from weft.web.console.fabric_maps import affected, path_shown, scenarios_of, shape_shown

SMALL = ("laptop", "bed-64x400g", "leaf-spine-400g")


@st.composite
def broken_fabrics(draw: st.DrawFn) -> tuple[str, list[str], int, int, int]:
    name = draw(st.sampled_from(SMALL))
    shape = shape_of(load_site(name).fabric)
    parts = [f"link0-p{plane}-i{nic}" for plane in range(shape.planes) for nic in range(shape.hosts)]
    parts += [f"t0-p{plane}-i{index}" for plane in range(shape.planes) for index in range(shape.t0)]
    parts += [f"t1-p{plane}-i{index}" for plane in range(shape.planes) for index in range(shape.t1)]
    down = draw(st.lists(st.sampled_from(parts), max_size=4, unique=True))
    source = draw(st.integers(0, shape.hosts - 1))
    other = draw(st.integers(0, shape.hosts - 1).filter(lambda nic: nic != source))
    return name, down, source, other, draw(st.integers(0, max(1, shape.planes * shape.paths) - 1))


@settings(max_examples=40, deadline=None)
@given(broken_fabrics())
def test_a_packet_dies_where_the_map_says_so(drawn: tuple[str, list[str], int, int, int]):
    name, down, source, other, ev = drawn
    site = load_site(name)
    shape = shape_of(site.fabric)
    masks = [0] * shape.hosts
    found = affected(site, down)
    for first, count, mask in found["runs"]:
        masks[first : first + count] = [mask] * count
    assert found["nics_affected"] == sum(mask > 0 for mask in masks)
    assert found["nics_by_plane"] == [sum(mask >> plane & 1 for mask in masks) for plane in range(shape.planes)]
    shown = path_shown(site, source, other, str(ev % shown_evs(name)), down)
    whole = path_shown(site, source, other, str(ev % shown_evs(name)), [])
    plane = next(hop["plane"] for hop in whole["hops"] if hop["plane"] is not None)
    ends_lost = (masks[source] | masks[other]) >> plane & 1
    switches = [hop["node"] for hop in whole["hops"] if hop["tier"] == "t1"]
    assert shown["arrived"] == (not ends_lost and not set(switches) & set(down))
    # Without faults it ends where it should.
    assert whole["arrived"]
    assert whole["hops"][-1]["index"] == other


def shown_evs(name: str) -> int:
    return int(shape_shown(load_site(name))["evs"])


@pytest.mark.parametrize("site", SITES.names())
def test_every_site_has_a_map(client: TestClient, site: str):
    shape = client.get("/api/fabric", params={"site": site}).json()
    assert shape["nics"] == load_site(site).fabric.gpus
    found = client.get("/api/fabric/affected", params={"site": site, "down": "t0-p0-i0"}).json()
    assert found["nics_by_plane"][0] == min(shape["down"], shape["nics"])


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"down": "nothing-like-this"}, "nothing-like-this"), ({"down": ",".join(["t0-p0-i0"] * 99)}, "at most 64"),
    ],
)  # fmt: skip
def test_parts_that_are_not_there_are_refused(client: TestClient, query: dict[str, str], words: str):
    answer = client.get("/api/fabric/affected", params={"site": "laptop", **query})
    assert answer.status_code == 400
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    "query",
    [{"src": "-1", "dst": "1"}, {"src": "1", "dst": "1"}, {"src": "0", "dst": "9999999"}, {"src": "x", "dst": "1"},
     {"src": "0", "dst": "1", "ev": "p99-u0"}, {"src": "0", "dst": "1", "ev": "9" * 40}],
)  # fmt: skip
def test_paths_that_there_are_not_are_refused(client: TestClient, query: dict[str, str]):
    answer = client.get("/api/fabric/path", params={"site": "laptop", **query})
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_a_kept_series_is_offered_and_other_files_are_not(tmp_path: Path):
    (tmp_path / "kept.jsonl").write_text(
        "".join(
            f'{{"transport":"{name}","time_us":{at},"rate_bps":1000}}\n' for name in ("mrc", "roce") for at in (1, 2)
        )
    )
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n[]\n')
    (tmp_path / "broken.jsonl").write_text("{")
    found = scenarios_of("gb200-8x100g-131k", [tmp_path])
    assert [each["name"] for each in found["series"]] == ["kept.jsonl"]
    assert set(found["series"][0]["transports"]) == {"mrc", "roce"}
    assert any(each["faults"] for each in found["scenarios"])
