"""The verbs of `qrag` as functions. Each takes a frozen request, returns a result, and prints nothing."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # names: __init__.pyi
