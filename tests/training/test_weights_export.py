"""Training that begins with Hugging Face's weights, and what is written back."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.training.ranks import corpus_in, trained
from torch.nn import functional

from weft.core.errors import FailedError, SpecError, UsageError
from weft.specs import load_job
from weft.training.metrics.step_line import from_bits
from weft.training.run_dir import RunRecord
from weft.training.weights_export import export_weights

TEXT = "Grüße, \tweft! 🧵\n"


def model_in(folder: Path, **changes: Any) -> Any:
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=512, bos_token_id=7, **changes,
    )  # fmt: skip
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return model


def job_from(folder: Path, more: str = "", weights: str = "llama") -> str:
    text = f"""
name = "on"
steps = 2
[model]
from = "{weights}"
{more}
[data]
corpus = "{corpus_in(folder)}"
[batch]
sequences = 4
micro = 2
length = 32
[plan]
"""
    (folder / "job.toml").write_text(text)
    return str(folder / "job.toml")


@pytest.fixture
def run(tmp_path: Path) -> RunRecord:
    model_in(tmp_path / "llama")
    trained(load_job(job_from(tmp_path)), tmp_path / "runs")
    return RunRecord(tmp_path / "runs" / "on-1")


def test_the_first_loss_is_that_of_the_weights_and_training_goes_on_from_there(tmp_path: Path) -> None:
    model = model_in(tmp_path / "llama")
    seen: list[torch.Tensor] = []
    job = load_job(job_from(tmp_path))
    _, bits = trained(job, tmp_path / "runs")
    from weft.core.seeds import Seed
    from weft.training.data import BatchStream, open_corpus

    stream = BatchStream(open_corpus(job.data, tmp_path), job.batch, Seed(job.seed), held_out=job.data.held_out)
    for index in range(2):
        tokens = stream.micro_batch(0, index)
        with torch.no_grad():
            logits = model(tokens[:, :-1]).logits
        seen.append(functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))
    assert from_bits(bits[0]) == pytest.approx(float(sum(seen)) / 2, abs=1e-6)
    assert from_bits(bits[1]) < from_bits(bits[0])


def test_a_run_is_written_as_transformers_reads_it(run: RunRecord, tmp_path: Path) -> None:
    made = export_weights(run, tmp_path / "out")
    assert (made.step, made.tokenizer, made.skipped) == (2, True, ())
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    model, report = loaded
    assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert (model.config.bos_token_id, model.config.max_position_embeddings) == (7, 512)
    first: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    assert not torch.equal(model.lm_head.weight, first.lm_head.weight)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    assert ids == list(TEXT.encode())
    assert tokenizer.decode(ids) == TEXT


def test_weights_go_on_where_the_export_ended(run: RunRecord, tmp_path: Path) -> None:
    export_weights(run, tmp_path / "out", "bfloat16")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    job = load_job(job_from(tmp_path, weights="out"))
    # The tokenizer of the weights is the job's unless it names another.
    assert job.data.tokenizer == str(tmp_path / "out" / "tokenizer.json")
    result, _ = trained(job, tmp_path / "more")
    again = export_weights(RunRecord(tmp_path / "more" / result["run"]), tmp_path / "again")
    assert again.tokenizer


def test_what_cannot_be_exported_is_said_before_anything_is_written(run: RunRecord, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("here")
    with pytest.raises(UsageError, match="not empty"):
        export_weights(run, tmp_path / "full")
    for path in (run.folder / "checkpoints").glob("step-*/*.distcp"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FailedError, match="no complete checkpoint"):
        export_weights(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_none_is_refused_at_the_line_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"job\.toml:5  model\.from\n.*there is no folder"):
        load_job(job_from(tmp_path))
    model_in(tmp_path / "llama", attention_bias=True)
    with pytest.raises(SpecError, match=r"model\.from\n.*attention_bias = true is not supported"):
        load_job(job_from(tmp_path))


def test_damaged_weights_end_the_training_with_one_sentence(tmp_path: Path) -> None:
    model_in(tmp_path / "llama")
    file = tmp_path / "llama" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(UsageError, match="is not a whole safetensors file"):
        trained(load_job(job_from(tmp_path)), tmp_path / "runs")


def test_dimensions_beside_the_weights_win_and_are_held_against_them(tmp_path: Path) -> None:
    model_in(tmp_path / "llama")
    with pytest.raises(UsageError, match="does not hold the model"):
        trained(load_job(job_from(tmp_path, more="layers = 1")), tmp_path / "runs")
