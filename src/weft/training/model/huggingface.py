"""Weights in Hugging Face's form: config.json, and safetensors in one file or in several with an index.

Files are named as `transformers` names them and hold its tensors under its names (`huggingface_names`), so that its
`from_pretrained` takes the folder. They are read tensor by tensor, so that a rank reads only what it holds. The
translation of config.json itself is `weft.specs.huggingface`; the tokenizer is `huggingface_export`'s.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from weft.core.errors import FailedError, UsageError
from weft.core.input_files import json_of, read_bytes
from weft.planning.cost_model.parameter_shapes import shapes
from weft.specs.huggingface import config_of, model_spec, read_config
from weft.specs.job import ModelSpec
from weft.training.model.huggingface_names import Part, StoredPlace, stored_places
from weft.training.model.weights import canonical

LARGEST_FILE_BYTES = 5 * 10**9
"""Size from which weights are cut into several files; the default of `save_pretrained`."""
_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_READ = ("F64", "F32", "BF16", "F16")
_PREFIXES = ("model.", "transformer.")
# Tables that older versions of `transformers` stored and that follow from the config.
_DERIVED = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias")


class StoredWeights:
    """The weights in a folder, checked by their names, shapes and types, and read one by one."""

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        """Open every file; raises where they do not hold exactly the model `spec`."""
        self._folder, self._spec = folder, spec
        config = read_config(folder / "config.json")
        if config.get("quantization_config") is not None:
            raise UsageError(f"{folder}/config.json has quantization_config; weft reads weights that are not quantised")
        self._files = {_bare(name): (file, name) for file in _files(folder) for name in _names(file)}
        self._places: dict[str, list[tuple[StoredPlace, Part]]] = {}
        problems: list[str] = []
        known = set[str]()
        for place in stored_places(spec, interleaved=bool(config.get("rope_interleave", True))):
            known.add(_bare(place.name))
            problems += self._problems(place)
            for part in place.parts:
                self._places.setdefault(part.name, []).append((place, part))
        problems += self._left_over(known)
        if problems:
            raise UsageError(f"{folder} does not hold the model of its config.json: it " + _some(problems, "; it "))

    def tensor(self, name: str) -> Tensor:
        """Return the whole parameter called `name` in weft, in fp32."""
        pieces = [place.inward(self._stored(place), part) for place, part in self._places[name]]
        stacked = self._places[name][0][1].expert is not None
        whole = torch.stack(pieces) if stacked else pieces[0]
        return whole.to(torch.float32).contiguous()

    def state(self) -> dict[str, Tensor]:
        """Return all parameters, a tied output included."""
        state = {name: self.tensor(name) for name in shapes(self._spec)}
        if self._spec.tied:
            state["head.weight"] = state["embed.weight"]
        return state

    def _stored(self, place: StoredPlace) -> Tensor:
        file, name = self._files[_bare(place.name)]
        try:
            with safe_open(file, framework="pt") as opened:
                return opened.get_tensor(name)
        except (OSError, SafetensorError, RuntimeError) as error:
            raise UsageError(f"{file}: {name} cannot be read: {error}") from None

    def _problems(self, place: StoredPlace) -> Iterator[str]:
        found = self._files.get(_bare(place.name))
        if found is None:
            yield f"lacks {place.name}"
            return
        file, name = found
        with safe_open(file, framework="pt") as opened:
            piece = opened.get_slice(name)
            shape, dtype = tuple(piece.get_shape()), piece.get_dtype()
        if shape != place.shape:
            yield f"has {place.name} as {shape}, not {place.shape}"
        elif dtype not in _READ:
            yield f"has {place.name} as {dtype}, and quantised weights are not read"

    def _left_over(self, known: set[str]) -> list[str]:
        """Return what nothing of the model takes: a model with other parts would be computed otherwise."""
        left = [name for bare, (_, name) in self._files.items() if bare not in known and not name.endswith(_DERIVED)]
        if self._spec.tied:
            left = [name for name in left if name != "lm_head.weight"]
        beyond = f"layers.{self._spec.layers}."
        if self._spec.latent is not None:
            # DeepSeek's further modules, which predict more tokens, stand behind the last layer.
            left = [name for name in left if not _bare(name).startswith(beyond)]
        return [f"has {name}, which the model does not" for name in left]


def load_weights(folder: Path) -> tuple[ModelSpec, dict[str, Tensor]]:
    """Return the model and the state that lie in `folder` in Hugging Face's form."""
    spec = model_spec(read_config(folder / "config.json"), str(folder / "config.json"))
    return spec, StoredWeights(folder, spec).state()


class Beside(NamedTuple):
    """What goes into a folder of weights besides what the model itself says."""

    config: Mapping[str, Any] = MappingProxyType({})
    """Further keys of config.json."""
    files: Mapping[str, bytes] = MappingProxyType({})
    """Further files, by name."""


def save_weights(
    state: Mapping[str, Tensor],
    spec: ModelSpec,
    folder: Path,
    *,
    length: int,
    largest_file_bytes: int = LARGEST_FILE_BYTES,
    beside: Beside | None = None,
) -> None:
    """Write the whole `state` of a decoder to the new folder `folder`, which appears whole or not at all.

    `length` is the longest text the model is meant for. Weights keep their type.
    """
    more = beside or Beside()
    tensors = dict(_outward(state, spec))
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    config = {**more.config, **config_of(spec, length), "torch_dtype": dtype}
    check_free(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
        try:
            part.chmod(0o755)
            (part / "config.json").write_text(json.dumps(config, indent=2) + "\n")
            for name, content in more.files.items():
                (part / name).write_bytes(content)
            _save_files(tensors, part, largest_file_bytes)
            part.replace(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise FailedError(f"weights cannot be written to {folder}: {error}") from None


def check_free(folder: Path) -> None:
    """Refuse a folder for weights that has something in it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty; name a new folder for the weights")


def _outward(state: Mapping[str, Tensor], spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
    bare = {canonical(name, spec): tensor for name, tensor in state.items()}
    missing = [name for name in shapes(spec) if name not in bare]
    if missing:
        raise FailedError(f"the state lacks {_some(missing)}; weights are written from a whole model, not a stage")
    for place in stored_places(spec):
        pieces = [bare[part.name].detach().cpu() for part in place.parts]
        chosen = (
            piece if part.expert is None else piece[part.expert]
            for piece, part in zip(pieces, place.parts, strict=True)
        )
        # A copy: the format refuses tensors that share memory.
        yield place.name, place.outward(list(chosen)).clone(memory_format=torch.contiguous_format)


def _files(folder: Path) -> list[Path]:
    """Return the files that hold the weights, as `transformers` chooses them."""
    if (folder / _WHOLE).is_file():
        return [folder / _WHOLE]
    if (folder / _INDEX).is_file():
        try:
            named = sorted(set(json_of(read_bytes(folder / _INDEX))["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(f"{folder / _INDEX} is not an index of safetensors files") from None
        missing = [name for name in named if not (folder / str(name)).is_file()]
        if missing:
            raise UsageError(f"{folder} lacks {_some(missing)}, which its index names")
        return [folder / name for name in named]
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise UsageError(f"{folder} holds no .safetensors file; weights in other forms cannot be read")
    return found


def _names(file: Path) -> list[str]:
    try:
        with safe_open(file, framework="pt") as opened:
            return list(opened.keys())
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{file} is not a whole safetensors file: {error}") from None


def _bare(name: str) -> str:
    """Return a name without the prefix that files of the bare decoder leave out."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _save_files(tensors: Mapping[str, Tensor], folder: Path, largest_file_bytes: int) -> None:
    groups: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if groups[-1] and size + tensor.nbytes > largest_file_bytes:
            groups.append({})
            size = 0
        groups[-1][name] = tensor
        size += tensor.nbytes
    if len(groups) == 1:
        save_file(groups[0], folder / _WHOLE, metadata={"format": "pt"})
        return
    places: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        save_file(group, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(group, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index: dict[str, Any] = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _some(names: list[str], joint: str = ", ", shown: int = 4) -> str:
    rest = len(names) - shown
    return joint.join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")
