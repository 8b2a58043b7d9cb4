"""GPU types: the catalogue finds its own, says what is near, and a folder beside a site file adds to it."""

from pathlib import Path

import pytest

from weft.core.errors import SpecError, UsageError
from weft.core.toml import written
from weft.planning.cost_model.machine import machine_of
from weft.specs import load_site
from weft.specs.files import load_any
from weft.specs.gpus import GPUS, gpu_kinds, gpu_type, gpu_type_named

SITE = """extends = "h100-400g-16k"
name = "own"

[gpu]
kind = "X1000"
"""


def described(folder: Path, **more: float) -> Path:
    """Write a type X1000 into `folder`/gpus and a site of it into `folder`."""
    table = gpu_type("H100").as_written()
    table |= {"name": "x1000"}
    table["gpu"] |= {"kind": "X1000", "memory": "1000 GB", "source": "a dream"}
    table["efficiency"] |= more
    (folder / "gpus").mkdir()
    (folder / "gpus" / "x1000.toml").write_text(written(table))
    (folder / "site.toml").write_text(SITE)
    return folder / "site.toml"


@pytest.mark.parametrize("name", GPUS.names())
def test_a_type_of_the_catalogue_is_found_in_any_case_of_letters(name: str):
    kind = gpu_type_named(name).gpu.kind
    assert gpu_type(kind) == gpu_type(kind.lower()) == gpu_type(kind.upper())
    assert kind in gpu_kinds()


@pytest.mark.parametrize("name", GPUS.names())
def test_no_share_of_a_data_sheet_is_more_than_the_whole(name: str):
    share = gpu_type_named(name).efficiency
    assert all(0 < value <= 1 for value in (share.matmul, share.attention, share.memory, share.link, share.nic))


@pytest.mark.parametrize(("asked", "said"), [("h101", "did you mean 'H100'"), ("abacus", "known are")])
def test_an_unknown_type_is_refused_with_what_would_do(asked: str, said: str):
    with pytest.raises(UsageError, match=said) as caught:
        gpu_type(asked)
    assert f"gpus/{asked}.toml beside the site file" in str(caught.value)


def test_a_type_beside_the_site_file_gives_its_data_sheet_and_its_efficiency(tmp_path: Path):
    site = load_site(str(described(tmp_path, matmul=0.5)))
    assert site.gpu.kind == "X1000"
    assert site.gpu.memory == 10**12
    assert site.efficiency is not None
    assert site.efficiency.matmul == 0.5
    assert machine_of(site).efficiency.matmul == 0.5


def test_what_the_site_file_says_itself_wins(tmp_path: Path):
    path = described(tmp_path)
    share = gpu_type("H100").efficiency.as_written() | {"matmul": 0.25}
    path.write_text(SITE + 'memory = "2 TB"\n\n' + written({"efficiency": share}))
    site = load_site(str(path))
    assert site.gpu.memory == 2 * 10**12
    assert site.efficiency is not None
    assert site.efficiency.matmul == 0.25


def test_a_type_that_is_named_by_like_lends_its_efficiency_alone(tmp_path: Path):
    path = described(tmp_path, matmul=0.5)
    path.write_text(SITE.replace('"X1000"', '"Y1"\nlike = "X1000"'))
    site = load_site(str(path))
    assert site.gpu.kind == "Y1"
    assert site.gpu.memory == load_site("h100-400g-16k").gpu.memory
    assert machine_of(site).efficiency.matmul == 0.5


def test_what_is_checked_is_what_is_loaded(tmp_path: Path):
    path = described(tmp_path)
    kind, spec = load_any(str(path))
    assert (kind, spec.as_written()["gpu"]) == ("site", load_site(str(path)).gpu.as_written())


def test_a_mistake_in_the_type_is_told_with_its_file_and_key(tmp_path: Path):
    path = described(tmp_path)
    own = tmp_path / "gpus" / "x1000.toml"
    own.write_text(own.read_text().replace('memory = "1000 GB"', 'memory = "1000 m"'))
    with pytest.raises(SpecError, match=r"x1000\.toml"):
        load_site(str(path))


def test_a_folder_beside_the_user_changes_no_built_in_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = load_site("h100-400g-16k")
    described(tmp_path, matmul=0.5)
    (tmp_path / "gpus" / "x1000.toml").rename(tmp_path / "gpus" / "h100.toml")
    monkeypatch.chdir(tmp_path)
    assert load_site("h100-400g-16k") == before


def test_a_saved_site_says_all_that_its_folder_said(tmp_path: Path):
    site = load_site(str(described(tmp_path, matmul=0.5)))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "saved.toml").write_text(written(site.as_written()))
    assert load_site(str(tmp_path / "elsewhere" / "saved.toml")) == site
