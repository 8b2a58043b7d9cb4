"""What a training learns from: a corpus on disk, named by its content, and a stream of batches named by the step.

A batch is a pure function of (corpus, seed, step, micro-batch): there is no loader state to save, and nothing depends
on the number of ranks.
"""

from weft.training.data.corpus import Corpus, open_corpus
from weft.training.data.corpus_manifest import CorpusManifest
from weft.training.data.permutation import Permutation
from weft.training.data.prefetch import prefetch
from weft.training.data.stream import BatchStream

__all__ = ["BatchStream", "Corpus", "CorpusManifest", "Permutation", "open_corpus", "prefetch"]
