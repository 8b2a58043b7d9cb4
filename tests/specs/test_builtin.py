"""The built-in files: each loads, fits its schema, and survives being written and read again."""

import json
import tomllib

import jsonschema
import pytest

from weft.core.specfile import schema
from weft.core.toml import written
from weft.specs import JOBS, SCENARIOS, SITES, load_job, load_scenario, load_site
from weft.specs.files import KINDS, load_any

EVERY = [(library.kind, name) for library in (SITES, JOBS, SCENARIOS) for name in library.names()]


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_built_in_file_is_what_its_name_says(kind: str, name: str):
    found_kind, spec = load_any(name)
    assert (found_kind, spec.as_written()["name"]) == (kind, name)


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_a_built_in_file_fits_its_schema(kind: str, name: str):
    library = {library.kind: library for library in (SITES, JOBS, SCENARIOS)}[kind]
    table = tomllib.loads((library.folder / f"{name}.toml").read_text())
    jsonschema.validate(table, schema(KINDS[kind]))


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_what_is_shown_can_be_read_again(kind: str, name: str):
    spec = load_any(name)[1]
    table = tomllib.loads(written(spec.as_written()))
    assert KINDS[kind].model_validate(table) == spec


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_schema_is_a_schema(kind: str):
    described = schema(KINDS[kind])
    jsonschema.Draft202012Validator.check_schema(described)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"surely_unknown": 1}, described)
    assert json.dumps(described)


def test_the_sites_that_everybody_speaks_of_are_there():
    assert {"gb200-8x100g-131k", "gb200-4x200g-32k", "gb200-3tier-64k", "laptop"} <= set(SITES.names())
    assert load_site("laptop").gpu.kind == "CPU"
    assert load_job("tiny-gpt").batch.sequences % load_job("tiny-gpt").batch.micro == 0
    assert load_scenario("permutation").site == "laptop"
