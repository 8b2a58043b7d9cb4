"""The kinds of file, and the built-in ones of each."""

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from weft.core.errors import UsageError
from weft.core.spec import Spec
from weft.core.specfile import Library, Pointer, load, read_table, validate

if TYPE_CHECKING:
    from weft.specs.campaign import CampaignSpec
    from weft.specs.capacity import CapacitySpec
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


class _Kinds(Mapping[str, type[Spec]]):
    """The type of every kind of file, imported when it is asked for."""

    _HOMES: ClassVar[Mapping[str, str]] = {
        "site": "site:SiteSpec", "job": "job:JobSpec", "scenario": "scenario:ScenarioSpec",
        "faults": "faults:FaultsSpec", "policy": "policy:PolicySpec", "campaign": "campaign:CampaignSpec",
        "capacity": "capacity:CapacitySpec",
    }  # fmt: skip

    @override
    def __getitem__(self, kind: str) -> type[Spec]:
        module, _, name = self._HOMES[kind].partition(":")
        return getattr(importlib.import_module(f"weft.specs.{module}"), name)

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._HOMES)

    @override
    def __len__(self) -> int:
        return len(self._HOMES)


KINDS: Mapping[str, type[Spec]] = _Kinds()
"""What people write; a faults file breaks a training on purpose and has no built-in ones."""


def _read_config(folder: Path, name: str) -> dict[str, Any]:
    from weft.specs.huggingface import read_model

    return read_model(folder / name)


MODEL_CONFIG = Pointer("model", "config", _read_config)
"""A job may take its model's dimensions from a Hugging Face config.json."""


def _read_weights(folder: Path, name: str) -> dict[str, Any]:
    whole = (folder / name).resolve()
    if not whole.is_dir():
        raise UsageError(f"there is no folder {folder / name}; a Hugging Face model's folder is wanted")
    return {**_read_config(whole, "config.json"), "weights": str(whole)}


MODEL_WEIGHTS = Pointer("model", "from", _read_weights)
"""A job may begin with the weights of a Hugging Face model."""


def _pointers(kind: str) -> tuple[Pointer, ...]:
    """Return which tables of a kind of file may stand in files of another format."""
    if kind == "job":
        return MODEL_CONFIG, MODEL_WEIGHTS
    if kind == "site":
        from weft.specs.gpus import DATA_SHEET

        return (DATA_SHEET,)
    return ()


def _load(reference: str, kind: str) -> Any:
    _refuse_another_kind(reference, kind)
    return load(reference, KINDS[kind], _LIBRARIES[kind], _pointers(kind))


def load_site(reference: str) -> "SiteSpec":
    """Return the site called `reference`: a built-in name or the path of a file."""
    from weft.specs.gpus import with_own_efficiency

    site = _load(reference, "site")
    # A built-in name is no path: whatever the current folder holds is not beside it.
    return site if reference in SITES.names() else with_own_efficiency(site, Path(reference).parent)


def load_job(reference: str) -> "JobSpec":
    """Return the job called `reference`: a built-in name or the path of a file."""
    return _with_its_tokenizer(_load(reference, "job"))


def load_scenario(reference: str) -> "ScenarioSpec":
    """Return the scenario called `reference`: a built-in name or the path of a file."""
    return _load(reference, "scenario")


def load_policy(reference: str) -> "PolicySpec":
    """Return the policy called `reference`: a built-in name or the path of a file."""
    return _load(reference, "policy")


def load_campaign(reference: str) -> "CampaignSpec":
    """Return the campaign called `reference`: a built-in name or the path of a file."""
    return _load(reference, "campaign")


def load_capacity(reference: str) -> "CapacitySpec":
    """Return the capacity file called `reference`: a built-in name or the path of a file."""
    return _load(reference, "capacity")


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
    if kind == "job":
        return load_job(reference)
    return load(reference, KINDS[kind], _LIBRARIES[kind], _pointers(kind))


def _with_its_tokenizer(job: "JobSpec") -> "JobSpec":
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
