import json
from pathlib import Path

import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.specs.job import DataSpec
from weft.training.data.corpus import open_corpus
from weft.training.data.documents import documents_of

TEXTS = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=9)


@settings(max_examples=25, deadline=None)
@given(texts=TEXTS)
def test_rows_of_every_form_are_the_same_documents(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("rows")
    (folder / "a.jsonl").write_text("\n".join(json.dumps({"body": text, "id": 1}) for text in texts) + "\n\n")
    polars.DataFrame({"body": texts, "id": [1] * len(texts)}).write_parquet(folder / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert list(documents_of(folder / name, "body")) == [text.encode() for text in texts]


def test_documents_are_packed_with_their_end_markers_and_named_by_their_column(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "one", "other": "1"}\n{"text": "two", "other": "2"}\n')
    corpus = open_corpus(DataSpec(corpus=str(file)), tmp_path / "cache")
    assert bytes(corpus.read(0, len(corpus)).tolist()) == b"one\0two\0"
    other = open_corpus(DataSpec(corpus=str(file), column="other"), tmp_path / "cache")
    assert bytes(other.read(0, len(other)).tolist()) == b"1\0" + b"2\0"
    assert corpus.manifest.digest != other.manifest.digest


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"text": "a"}\n{"body": "b"}\n', r"a\.jsonl:2 has no text called 'text'"),
        (b'{"text": 3}\n', r"a\.jsonl:1 has no text called 'text'"),
        (b'{"text": "a"}\n{"te', r"a\.jsonl:2 is not JSON"),
        (b"[1]\n", r"a\.jsonl:1 has no text"),
    ],
)
def test_a_row_without_its_text_is_named(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(UsageError, match=said):
        open_corpus(DataSpec(corpus=str(tmp_path / "a.jsonl")), tmp_path / "cache")


def test_a_parquet_file_that_is_none_or_lacks_the_column_is_named(tmp_path: Path) -> None:
    polars.DataFrame({"body": ["a"], "text": [1]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(UsageError, match=r"has no text called 'text' \(there are body\)"):
        open_corpus(DataSpec(corpus=str(tmp_path / "a.parquet")), tmp_path / "cache")
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    with pytest.raises(UsageError, match="cannot be read as Parquet"):
        open_corpus(DataSpec(corpus=str(tmp_path / "a.parquet")), tmp_path / "cache")
