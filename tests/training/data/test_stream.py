from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.specs.job import BatchSpec
from weft.training.data import BatchStream, Corpus, CorpusManifest
from weft.training.data.corpus_manifest import Source


def corpus_of(tokens: int, text: str = "one") -> Corpus:
    """A corpus in which every token tells its place."""
    files = (Source("a.bin", 4 * tokens, tokens, text),)
    manifest = CorpusManifest("made", "tokens", "uint32", tokens, tokens - 1, files)
    return Corpus(manifest, Path(), (np.arange(tokens, dtype=np.uint32),), np.zeros(1, dtype=np.int64))


@st.composite
def streams(draw: st.DrawFn) -> BatchStream:
    micro, count, length = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(1, 9))
    tokens = draw(st.integers(2 * (length + 1), 600))
    batch = BatchSpec(sequences=micro * count, micro=micro, length=length)
    held_out = draw(st.sampled_from([0.0, 0.05, 0.5]))
    return BatchStream(corpus_of(tokens), batch, Seed(draw(st.integers(0, 99))), held_out=held_out)


def samples(stream: BatchStream, steps: int) -> list[int]:
    return [
        window
        for step in range(steps)
        for index in range(stream.micro_batches)
        for window in stream.windows_of(step, index)
    ]


@given(streams())
@settings(deadline=None)
def test_every_window_is_seen_once_an_epoch(stream: BatchStream) -> None:
    seen = samples(stream, 3 + 2 * stream.windows // stream.batch.sequences)
    one, two = seen[: stream.windows], seen[stream.windows : 2 * stream.windows]
    assert len(set(one)) == stream.windows
    assert set(one) == set(two)


@given(streams())
@settings(deadline=None)
def test_no_token_is_both_trained_on_and_held_out(stream: BatchStream) -> None:
    if not stream.held_out_windows:
        return
    steps = 1 + stream.windows // stream.batch.sequences
    trained = {
        int(token)
        for step in range(steps)
        for index in range(stream.micro_batches)
        for token in stream.micro_batch(step, index).flatten()
    }
    rounds = 1 + stream.held_out_windows // stream.batch.micro
    held = {int(token) for index in range(rounds) for token in stream.held_out(index).flatten()}
    assert not trained & held
    windows = len(stream.corpus) // (stream.batch.length + 1)
    assert len(trained | held) == windows * (stream.batch.length + 1)


@given(st.integers(0, 99), st.integers(0, 50), st.integers(1, 4), st.data())
@settings(deadline=None)
def test_a_batch_is_named_by_its_step_whatever_the_ranks_and_the_history(
    seed: int, step: int, ranks: int, data: st.DataObject
) -> None:
    batch = BatchSpec(sequences=12, micro=2, length=3)
    stream = BatchStream(corpus_of(300), batch, Seed(seed), held_out=0.1)
    whole = [stream.micro_batch(step, index) for index in range(stream.micro_batches)]
    # Each rank has its own stream, takes its own part, in any order, and may have seen anything before.
    parts: dict[int, torch.Tensor] = {}
    for rank in range(ranks):
        own = BatchStream(stream.corpus, stream.batch, Seed(seed), held_out=0.1)
        own.micro_batch(data.draw(st.integers(0, 100)), 0)
        mine = list(range(rank, stream.micro_batches, ranks))
        for index in data.draw(st.permutations(mine)):
            parts[index] = own.micro_batch(step, index)
    assert all(torch.equal(whole[index], parts[index]) for index in range(stream.micro_batches))


def test_tokens_are_consecutive_rows_of_the_corpus() -> None:
    stream = BatchStream(corpus_of(400), BatchSpec(sequences=8, micro=4, length=9), Seed(1))
    rows = stream.micro_batch(3, 1)
    assert rows.shape == (4, 10)
    assert rows.dtype == torch.int64
    for row, window in zip(rows, stream.windows_of(3, 1), strict=True):
        assert row.tolist() == list(range(10 * window, 10 * window + 10))


def test_the_order_follows_the_seed_and_the_epoch_but_the_split_does_not() -> None:
    batch = BatchSpec(sequences=5, micro=5, length=3)
    one, two = (BatchStream(corpus_of(800), batch, Seed(root), held_out=0.1) for root in (1, 2))
    assert samples(one, 38) != samples(two, 38)
    assert set(samples(one, 36)) == set(samples(two, 36))
    assert samples(one, 36) != samples(one, 72)[180:]
    assert torch.equal(one.held_out(0), two.held_out(0))
    other = BatchStream(corpus_of(800, "two"), batch, Seed(1), held_out=0.1)
    assert not torch.equal(one.held_out(0), other.held_out(0))


def test_the_share_that_is_held_out_is_the_one_asked_for() -> None:
    stream = BatchStream(corpus_of(10_000), BatchSpec(sequences=4, micro=2, length=9), Seed(1), held_out=0.05)
    assert (stream.held_out_windows, stream.windows) == (50, 950)
    assert torch.equal(stream.held_out(0), stream.held_out(25))


def test_a_corpus_shorter_than_a_window_is_refused_with_the_remedy() -> None:
    batch = BatchSpec(sequences=1, micro=1, length=99)
    with pytest.raises(UsageError, match=r"made has 99 tokens, but 100 are needed.*shorten `length`"):
        BatchStream(corpus_of(99), batch, Seed(0))
    with pytest.raises(UsageError, match=r"200 are needed: 2 x \(length \+ 1\), one for evaluation"):
        BatchStream(corpus_of(199), batch, Seed(0), held_out=0.01)
    assert BatchStream(corpus_of(100), batch, Seed(0)).micro_batch(7, 0).tolist() == [list(range(100))]


def test_asking_for_what_is_not_held_out_names_the_key() -> None:
    stream = BatchStream(corpus_of(100), BatchSpec(sequences=1, micro=1, length=9), Seed(0))
    with pytest.raises(UsageError, match="`held_out` in"):
        stream.held_out(0)
