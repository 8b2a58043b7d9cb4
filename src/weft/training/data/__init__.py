"""What a training learns from: a corpus on disk, named by its content, and a stream of batches named by the step.

A batch is a pure function of (corpus, seed, step, micro-batch): there is no loader state to save, and nothing depends
on the number of ranks.
"""

from weft.training.data.corpus import Corpus, open_corpus
from weft.training.data.manifest import Manifest
from weft.training.data.order import Permutation
from weft.training.data.prefetch import prefetch
from weft.training.data.stream import Stream

__all__ = ["Corpus", "Manifest", "Permutation", "Stream", "open_corpus", "prefetch"]
