"""Search in one step over a corpus in memory, and answers from its hits. Does not use JAX."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # names: __init__.pyi
