"""Options of cutting as flags give them: the name of a strategy, sizes and a source of boundaries."""

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
    """Options of cutting; None means not given.

    Attributes:
        strategy: of `CHUNKERS`, or tree.
        max_tokens: of a chunk.
        points, tagger: for strategies with trees of sections: the source of boundaries, and its tagger.
        sizes: for levels: spans of N tokens instead of sections.
        parents, compressor: for levels: how nodes above the leaves get vectors.
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
        """The names of the options that are given."""
        return [name for name in self.__dataclass_fields__ if getattr(self, name) is not None]


def chunking_of(options: CutOptions, implied: str = "") -> ChunkConfig:
    """The chunking config of these options.

    Args:
        implied: strategy to use if options of `OF_TREES` are given and no strategy; empty is the default strategy.

    Raises:
        UsageError: options that do not go together.
    """
    given = [name for name in OF_TREES if name in options.given]
    name = options.strategy or (implied if given and implied else DEFAULT_CHUNKING.strategy)
    for field in given:
        owners = CHUNKERS.choices("points") if field in OF_POINTS else (LEVELS,)
        if name not in owners:
            belongs = Arg("strategy", " or ".join(owners))
            raise UsageError(("works only with ", belongs, "; choose that strategy, or drop this option"), field=field)
    if options.sizes and (options.points or options.tagger):
        field = "points" if options.points else "tagger"
        fault = f"levels of {list(options.sizes)} tokens have no sections; drop "
        raise UsageError((fault, Arg(field), " or ", Arg("sizes")), field=field)
    points = options.points or ("tagger" if options.tagger else HierarchyConfig.points)
    if options.tagger and points != "tagger":
        fault = f"works only with boundaries by tagger, not by {points}; drop "
        raise UsageError((fault, Arg("tagger"), " or ", Arg("points")), field="tagger")
    own: dict[str, Any] = {"points": points} if name in CHUNKERS.choices("points") else {}
    own |= {"sizes": tuple(options.sizes)} if options.sizes else {}
    return ChunkConfig(
        "headings" if name == TREE else name,
        max_tokens=options.max_tokens or (None if options.sizes else DEFAULT_CHUNKING.max_tokens),
        **({name: CHUNKERS.load(name).config(**own)} if own else {}),
    )
