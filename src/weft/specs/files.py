"""The kinds of file, and the built-in ones of each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.core.errors import UsageError
from weft.core.spec import Spec
from weft.core.specfile import Library, Pointer, load, read_table, validate
from weft.specs.campaign import CampaignSpec
from weft.specs.capacity import CapacitySpec
from weft.specs.faults import FaultsSpec
from weft.specs.gpus import DATA_SHEET, with_own_efficiency
from weft.specs.huggingface import read_model
from weft.specs.job import JobSpec
from weft.specs.policy import PolicySpec
from weft.specs.scenario import ScenarioSpec
from weft.specs.site import SiteSpec

_BUILT_IN = Path(__file__).parent / "builtin"

SITES = Library("site", _BUILT_IN / "sites")
JOBS = Library("job", _BUILT_IN / "jobs")
SCENARIOS = Library("scenario", _BUILT_IN / "scenarios")
POLICIES = Library("policy", _BUILT_IN / "policies")
CAMPAIGNS = Library("campaign", _BUILT_IN / "campaigns")
CAPACITIES = Library("capacity", _BUILT_IN / "capacities")

_LIBRARIES = {library.kind: library for library in (SITES, JOBS, SCENARIOS, POLICIES, CAMPAIGNS, CAPACITIES)}

KINDS: dict[str, type[Spec]] = {
    "site": SiteSpec, "job": JobSpec, "scenario": ScenarioSpec, "faults": FaultsSpec, "policy": PolicySpec,
    "campaign": CampaignSpec, "capacity": CapacitySpec,
}  # fmt: skip
"""What people write; a faults file breaks a training on purpose and has no built-in ones."""

MODEL_CONFIG = Pointer("model", "config", lambda folder, name: read_model(folder / name))
"""A job may take its model's dimensions from a Hugging Face config.json."""


def _read_weights(folder: Path, name: str) -> dict[str, Any]:
    whole = (folder / name).resolve()
    if not whole.is_dir():
        raise UsageError(f"there is no folder {folder / name}; a Hugging Face model's folder is wanted")
    return {**read_model(whole / "config.json"), "weights": str(whole)}


MODEL_WEIGHTS = Pointer("model", "from", _read_weights)
"""A job may begin with the weights of a Hugging Face model."""

_POINTERS = {"job": (MODEL_CONFIG, MODEL_WEIGHTS), "site": (DATA_SHEET,)}


def load_site(reference: str) -> SiteSpec:
    """Return the site called `reference`: a built-in name or the path of a file."""
    _refuse_another_kind(reference, "site")
    site = load(reference, SiteSpec, SITES, (DATA_SHEET,))
    # A built-in name is no path: whatever the current folder holds is not beside it.
    return site if reference in SITES.names() else with_own_efficiency(site, Path(reference).parent)


def load_job(reference: str) -> JobSpec:
    """Return the job called `reference`: a built-in name or the path of a file."""
    _refuse_another_kind(reference, "job")
    return _with_its_tokenizer(load(reference, JobSpec, JOBS, _POINTERS["job"]))


def load_scenario(reference: str) -> ScenarioSpec:
    """Return the scenario called `reference`: a built-in name or the path of a file."""
    _refuse_another_kind(reference, "scenario")
    return load(reference, ScenarioSpec, SCENARIOS)


def load_policy(reference: str) -> PolicySpec:
    """Return the policy called `reference`: a built-in name or the path of a file."""
    _refuse_another_kind(reference, "policy")
    return load(reference, PolicySpec, POLICIES)


def load_campaign(reference: str) -> CampaignSpec:
    """Return the campaign called `reference`: a built-in name or the path of a file."""
    _refuse_another_kind(reference, "campaign")
    return load(reference, CampaignSpec, CAMPAIGNS)


def load_capacity(reference: str) -> CapacitySpec:
    """Return the capacity file called `reference`: a built-in name or the path of a file."""
    _refuse_another_kind(reference, "capacity")
    return load(reference, CapacitySpec, CAPACITIES)


def load_any(reference: str) -> tuple[str, Spec]:
    """Return the kind and the spec of a file of any kind, found by the names built in and the keys it has."""
    for kind, library in _LIBRARIES.items():
        if reference in library.names():
            return kind, _load_kind(reference, kind)
    table = read_table(reference)
    kind = _kind_of(table)
    if kind not in _LIBRARIES:
        return kind, validate(table, KINDS[kind], reference)
    return kind, _load_kind(reference, kind)


def _load_kind(reference: str, kind: str) -> Spec:
    found = load(reference, KINDS[kind], _LIBRARIES[kind], _POINTERS.get(kind, ()))
    return _with_its_tokenizer(found) if isinstance(found, JobSpec) else found


def _with_its_tokenizer(job: JobSpec) -> JobSpec:
    """Return `job` with the tokenizer of the weights that it begins with, unless it names another."""
    found = Path(job.model.weights) / "tokenizer.json"
    if not job.model.weights or "tokenizer" in job.data.model_fields_set or not found.is_file():
        return job
    return job.model_copy(update={"data": job.data.model_copy(update={"tokenizer": str(found)})})


def _refuse_another_kind(reference: str, wanted: str) -> None:
    """Refuse a built-in name, or a file built on one, of another kind: the list of its mistakes would mislead."""
    if reference in _LIBRARIES[wanted].names():
        return
    path = Path(reference)
    base = read_table(reference).get("extends") if path.suffix == ".toml" and path.is_file() else reference
    if base in _LIBRARIES[wanted].names():
        return
    for kind, library in _LIBRARIES.items():
        if base in library.names():
            raise UsageError(f"{reference} is a {kind}; a {wanted} is wanted here")


def kind_of_file(path: Path) -> str:
    """Return the kind that a file's keys are most like, whether or not it is right."""
    return _kind_of(read_table(str(path)))


def _kind_of(table: Mapping[str, Any]) -> str:
    for kind, library in _LIBRARIES.items():
        if table.get("extends") in library.names():
            return kind
    # The share of a kind's keys decides between equals: a file of faults alone is no scenario.
    return max(KINDS, key=lambda kind: _likeness(table, KINDS[kind]))


def _likeness(table: Mapping[str, Any], kind: type[Spec]) -> tuple[int, float]:
    met = len(table.keys() & kind.model_fields.keys())
    return met, met / len(kind.model_fields)
