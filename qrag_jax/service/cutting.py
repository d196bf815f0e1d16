"""Options of cutting, as flags and forms have them: the name of a strategy, a size and a source of boundaries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.strategies.hierarchy import HierarchyConfig
from qrag_jax.errors import Arg
from qrag_jax.index.methods import DEFAULT_CHUNKING
from qrag_jax.names import CHUNKERS
from qrag_jax.types import UsageError

TREE, LEVELS = "tree", "levels"
OF_POINTS = ("points", "tagger")
OF_TREES = (*OF_POINTS, "sizes", "parents", "compressor")  # options of strategies that make trees


@dataclass(frozen=True)
class CutOptions:
    """Options of cutting; None is not said.

    Attributes:
        strategy: of `CHUNKERS`, or tree.
        max_tokens: of a chunk.
        points, tagger: of strategies with trees of sections: what finds them.
        sizes: of levels: spans of so many tokens in place of sections.
        parents, compressor: of levels: how nodes above leaves get vectors.
    """

    strategy: str | None = None
    max_tokens: int | None = None
    points: str | None = None
    tagger: str | None = None
    sizes: Sequence[int] | None = None
    parents: str | None = None
    compressor: str | None = None

    @property
    def given(self) -> list[str]:
        """The names of the options that are set."""
        return [name for name in self.__dataclass_fields__ if getattr(self, name) is not None]


def chunking_of(options: CutOptions, implied: str = "") -> ChunkConfig:
    """The config of these options.

    Args:
        implied: strategy where options of `OF_TREES` are given and none is named; empty is the default.

    Raises:
        UsageError: options that do not belong together.
    """
    given = [name for name in OF_TREES if name in options.given]
    name = options.strategy or (implied if given and implied else DEFAULT_CHUNKING.strategy)
    for field in given:
        owners = CHUNKERS.choices("points") if field in OF_POINTS else (LEVELS,)
        if name not in owners:
            belongs = Arg("strategy", " or ".join(owners))
            raise UsageError(("belongs to ", belongs, "; choose that, or leave it out"), field=field)
    if options.sizes and (options.points or options.tagger):
        reason = f"levels of {list(options.sizes)} tokens have no sections; leave one of both out"
        raise UsageError(reason, field="points" if options.points else "tagger")
    points = options.points or ("tagger" if options.tagger else HierarchyConfig.points)
    if options.tagger and points != "tagger":
        raise UsageError(f"belongs to points by tagger, not by {points}; leave one of both out", field="tagger")
    own: dict[str, Any] = {"points": points} if name in CHUNKERS.choices("points") else {}
    own |= {"sizes": tuple(options.sizes)} if options.sizes else {}
    return ChunkConfig(
        "headings" if name == TREE else name,
        max_tokens=options.max_tokens or (None if options.sizes else DEFAULT_CHUNKING.max_tokens),
        **({name: CHUNKERS.load(name).config(**own)} if own else {}),
    )
