"""Language models with one protocol (`types.TextGenerator`), and a journal of finished calls."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # names: __init__.pyi
