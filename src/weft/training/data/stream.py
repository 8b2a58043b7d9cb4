"""The batches of a training: (seed, step, micro-batch) names the tokens, whatever the number of ranks.

The corpus is cut into windows of one sequence and its next token, which do not overlap. A fixed shuffle of them
gives its first share to evaluation; it belongs to the corpus and the length, not to the run's seed, so runs with
different seeds are judged on the same text, and a run that goes on with another seed has not learned it. The rest is
trained on in an order shuffled anew for each epoch: each window is seen once before any is seen twice. Held-out windows
are scattered, so their neighbours in the same file are learned: where files repeat themselves, evaluation is easier
than new text would be.
"""

import numpy as np
import torch
from torch import Tensor

from weft.core.errors import UsageError
from weft.core.seeds import Seed, mix
from weft.specs.job import BatchSpec
from weft.training.data.corpus import Corpus
from weft.training.data.permutation import Permutation


class BatchStream:
    """The data of one run; it has no state but the present epoch's order, which is kept for speed."""

    def __init__(self, corpus: Corpus, batch: BatchSpec, seed: Seed, *, held_out: float = 0.0) -> None:
        """Cut `corpus` into windows for `batch`; `held_out` is the share that only evaluation sees."""
        self.corpus = corpus
        self.batch = batch
        self._root, self._seed = seed, seed.branch("order")
        self._window = batch.length + 1
        windows = len(corpus) // self._window
        needed = 2 if held_out else 1
        if windows < needed:
            raise UsageError(
                f"the corpus {corpus.manifest.name} has {len(corpus)} tokens, but {needed * self._window} are needed: "
                f"{needed} x (length + 1){', one for evaluation' if held_out else ''}; add text or shorten `length`"
            )
        self.held_out_windows = min(windows - 1, max(1, round(held_out * windows))) if held_out else 0
        """Windows that only evaluation sees."""
        self.windows = windows - self.held_out_windows
        """Windows that are trained on."""
        # One root for all: the split is a property of the text and of the length.
        self._split = Permutation(windows, Seed(0).branch("held out", corpus.manifest.digest, batch.length))
        self._epoch = (0, self._order(0))

    @property
    def micro_batches(self) -> int:
        """Return the number of micro-batches in a step."""
        return self.batch.sequences // self.batch.micro

    def micro_batch(self, step: int, index: int) -> Tensor:
        """Return the tokens of micro-batch `index` of `step`, int64 `[micro, length + 1]`."""
        return self._read(self.windows_of(step, index))

    def torch_seed(self, step: int, index: int) -> int:
        """Return the seed of torch's random numbers (dropout) while micro-batch `index` of `step` is computed.

        It depends on nothing else, so a micro-batch that another rank computes again draws the same.
        """
        # torch takes signed seeds: the lowest bit is dropped to stay below 2^63.
        return mix(self._root.branch("dropout", step).word(), index) >> 1

    def windows_of(self, step: int, index: int) -> list[int]:
        """Return the numbers of the corpus windows that micro-batch `index` of `step` holds."""
        assert step >= 0, f"step {step}"
        assert 0 <= index < self.micro_batches, f"micro-batch {index} of {self.micro_batches}"
        first = step * self.batch.sequences + index * self.batch.micro
        return [self._trained(sample) for sample in range(first, first + self.batch.micro)]

    def held_out(self, index: int) -> Tensor:
        """Return evaluation's micro-batch `index`, int64 `[micro, length + 1]`; the windows come round again."""
        return self._read(self.held_out_windows_of(index))

    def held_out_windows_of(self, index: int) -> list[int]:
        """Return the numbers of the corpus windows that evaluation's micro-batch `index` holds."""
        if not self.held_out_windows:
            raise UsageError("nothing is held out for evaluation; write a share above 0 as `held_out` in [data]")
        first = index * self.batch.micro
        return [self._split[sample % self.held_out_windows] for sample in range(first, first + self.batch.micro)]

    def _trained(self, sample: int) -> int:
        epoch, place = divmod(sample, self.windows)
        # Threads that ask for different epochs each take the order that they made, so none sees another's.
        known, order = self._epoch
        if known != epoch:
            order = self._order(epoch)
            self._epoch = (epoch, order)
        return self._split[self.held_out_windows + order[place]]

    def _order(self, epoch: int) -> Permutation:
        return Permutation(self.windows, self._seed.branch(epoch))

    def _read(self, windows: list[int]) -> Tensor:
        return torch.from_numpy(np.stack([self.corpus.read(n * self._window, self._window) for n in windows]))
