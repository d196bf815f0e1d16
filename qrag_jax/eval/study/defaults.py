"""The strategies that a study compares where its config names none, and the config that fills them in.

254 tokens are the window of the embedded MiniLM, 256, without the two special tokens: no chunk but the whole document
is longer than what the encoder reads. The first config of each strategy makes chunks of about 128 tokens of prose, so
that where nothing can be chosen, strategies are compared at about the same size.
"""

from dataclasses import dataclass, field

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig
from qrag_jax.chunking.strategies.clusters import DbscanConfig, LinkageConfig
from qrag_jax.eval.study.config import StudyConfig

MOST_TOKENS = 254  # of a chunk: MiniLM's window without [CLS] and [SEP]


def _breakpoint(percentile: float, max_tokens: int) -> ChunkConfig:
    return ChunkConfig("breakpoint", max_tokens, breakpoint=BreakpointConfig("percentile", percentile))


def _linkage(max_sentences: int, max_tokens: int) -> ChunkConfig:
    return ChunkConfig("linkage", max_tokens, linkage=LinkageConfig(max_sentences=max_sentences))


def _dbscan(eps: float, max_tokens: int) -> ChunkConfig:
    return ChunkConfig("dbscan", max_tokens, dbscan=DbscanConfig(eps=eps))


# A middle size and a small one for every strategy, as F1 of a few evidence sentences falls with the size of chunks; no
# more, as each config is a pass over the corpus. Prose has about 22 tokens a sentence: of five sentences a break is at
# the 80th percentile, six in a cluster are 130 tokens.
DEFAULT_STRATEGIES: dict[str, tuple[ChunkConfig, ...]] = {
    "fixed": (ChunkConfig("fixed", 128), ChunkConfig("fixed", 64)),
    "recursive": (ChunkConfig("recursive", 128), ChunkConfig("recursive", 64)),
    "breakpoint": (_breakpoint(80.0, MOST_TOKENS), _breakpoint(60.0, 64)),
    "clustering": (_linkage(6, MOST_TOKENS), _linkage(3, 64), _dbscan(0.25, 64)),
    "late": (ChunkConfig("late", 128), ChunkConfig("late", 64)),
    "headings": (ChunkConfig("headings", 128, min_tokens=32), ChunkConfig("headings", 64, min_tokens=16)),
    "document": (ChunkConfig("document"),),
}


@dataclass(frozen=True)
class DefaultStudy(StudyConfig):
    """`StudyConfig` with strategies of its own, for configs and command lines that name tasks only.

    A config that names strategies replaces all of these, never some.
    """

    strategies: dict[str, tuple[ChunkConfig, ...]] = field(default_factory=lambda: dict(DEFAULT_STRATEGIES))
