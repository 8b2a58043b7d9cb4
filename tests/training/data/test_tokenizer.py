import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from weft.core.errors import UsageError
from weft.training.data.tokenizer import ByteTokenizer, open_tokenizer

# The smallest tokenizer.json: whole words, split at spaces.
WORDS = {
    "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
    "added_tokens": [{"id": 3, "content": "</s>", "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": True}],
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"?": 0, "warp": 1, "weft": 2, "</s>": 3}, "unk_token": "?"},
}  # fmt: skip


def test_bytes_are_tokens_and_a_file_ends_with_nul() -> None:
    assert ByteTokenizer().encode("hé".encode()).tolist() == [104, 195, 169, 0]


def test_a_missing_tokenizer_is_named_with_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"no tokenizer mine\.json in {tmp_path}"):
        open_tokenizer("mine.json", tmp_path)


def test_without_the_package_the_remedies_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(WORDS))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match="pip install tokenizers"):
        open_tokenizer("tokenizer.json", tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("tokenizers") is None, reason="the package tokenizers is not installed")
def test_a_given_tokenizer_is_used_with_its_end_of_text(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(WORDS))
    tokens = open_tokenizer("tokenizer.json", tmp_path).encode(b"weft warp \xff weft")
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == [2, 1, 0, 2, 3]
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UsageError, match=r"bad\.json is not a tokenizer\.json"):
        open_tokenizer("bad.json", tmp_path)
