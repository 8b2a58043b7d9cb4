"""A run's weights for others: the newest whole checkpoint as a folder that `transformers` loads, tokenizer included."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.core.errors import FailedError, UsageError
from weft.core.input_files import read_bytes
from weft.planning.cost_model.parameter_shapes import shapes
from weft.specs.huggingface import config_of, read_config
from weft.specs.job import JobSpec
from weft.training.checkpoint.manifest import TensorEntry
from weft.training.checkpoint.store import CheckpointStore
from weft.training.data.corpus_files import list_corpus
from weft.training.model.huggingface import Beside, check_free, save_weights
from weft.training.run_dir import RunRecord

_KEPT = ("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range")
_TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
    "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json",
)  # fmt: skip
_LARGEST_FILE_BYTES = 256 * 2**20
_BYTES, _PRINTED = 256, 256
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class ExportedWeights(NamedTuple):
    """What was written."""

    step: int
    """Steps done in the checkpoint."""
    parameters: int
    """Parameters of the model."""
    skipped: tuple[str, ...]
    """Newer checkpoints that are damaged."""
    tokenizer: bool
    """Whether a tokenizer is among the files."""


def export_weights(record: RunRecord, folder: Path, dtype: str = "float32") -> ExportedWeights:
    """Write the newest whole checkpoint of a run of the built-in model to the new folder `folder`."""
    job = record.job()
    own = record.provenance().get("model")
    if own is not None:
        raise UsageError(f"{record.name} trained {own}, a model of its own, whose names only its code knows")
    check_free(folder)
    config_of(job.model, job.batch.length)  # raises before anything is read where Hugging Face has no such model
    files = _tokenizer_files(job)
    if not record.checkpoints():
        raise FailedError(f"{record.name} has no complete checkpoint to export; train until the first one is stored")
    store = CheckpointStore(record.folder / "checkpoints")
    made: dict[str, Tensor] = {}

    def make(stored: Mapping[str, TensorEntry]) -> dict[str, Any]:
        for name, shape in shapes(job.model).items():
            entry = stored.get(f"model.{name}")
            if entry is None or tuple(entry.shape) != shape:
                raise FailedError(f"{name} is not in it as {shape}")
            made[name] = torch.empty(shape, dtype=getattr(torch, entry.dtype.removeprefix("torch.")))
        return {"model": made}

    loaded = store.load(make)
    before = read_config(Path(job.model.weights) / "config.json") if job.model.weights else {}
    more = {key: before[key] for key in _KEPT if key in before}
    if job.data.tokenizer == "bytes" and files:
        more = {**more, "eos_token_id": 0}
    longest = max(job.batch.length, before.get("max_position_embeddings") or 0)
    typed = {name: tensor.to(_TYPES[dtype]) for name, tensor in made.items()}
    save_weights(typed, job.model, folder, length=longest, beside=Beside(more, files))
    count = sum(tensor.numel() for tensor in made.values())
    return ExportedWeights(loaded.step, count, tuple(str(one) for one in loaded.skipped), "tokenizer.json" in files)


def _tokenizer_files(job: JobSpec) -> dict[str, bytes]:
    """Return the files of the job's tokenizer, by name; none where it learned from token files."""
    if job.data.tokenizer == "bytes":
        return {} if _learns_tokens(job) else _byte_tokenizer(job)
    places = [Path(job.data.corpus) / job.data.tokenizer, Path(job.data.tokenizer)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise UsageError(f"the run's tokenizer {job.data.tokenizer} is not there any more; put it back")
    # Beside a tokenizer in a corpus lie texts, whatever they are called.
    names = () if job.data.corpus == str(found.parent) else _TOKENIZER
    beside = {name: found.parent / name for name in names if name != "tokenizer.json"}
    files = {name: read_bytes(path, _LARGEST_FILE_BYTES) for name, path in beside.items() if path.is_file()}
    return {**_loadable(job), **files, "tokenizer.json": read_bytes(found, _LARGEST_FILE_BYTES)}


def _learns_tokens(job: JobSpec) -> bool:
    try:
        return list_corpus(job.data.corpus, Path()).tokens
    except UsageError:
        return job.model.vocabulary != _BYTES  # the corpus is gone; bytes have 256 tokens


def _loadable(job: JobSpec) -> dict[str, bytes]:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": job.batch.length}
    settings["clean_up_tokenization_spaces"] = False
    return {"tokenizer_config.json": json.dumps(settings, indent=2).encode()}


def _byte_tokenizer(job: JobSpec) -> dict[str, bytes]:
    """Return a tokenizer.json by which every byte is the token of its value, as `data.tokenizer = "bytes"` has it.

    The byte level of `tokenizers` shows bytes as printable characters: those of Latin-1 that print as themselves, the
    others in order from U+0100 on.
    """
    printed = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(_BYTES) if byte not in printed]
    vocabulary = {chr(byte if byte in printed else _PRINTED + hidden.index(byte)): byte for byte in range(_BYTES)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    nothing: list[str] = []
    model = {"type": "BPE", "vocab": vocabulary, "merges": nothing, "dropout": None, "unk_token": None,
             "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
             "byte_fallback": False}  # fmt: skip
    document = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": nothing, "normalizer": None,
                "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model}  # fmt: skip
    return {**_loadable(job), "tokenizer.json": json.dumps(document, ensure_ascii=False).encode()}
