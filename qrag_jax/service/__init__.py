"""The verbs of `qrag` as functions: each takes a frozen request, returns a result, prints nothing and knows no flag."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # names: __init__.pyi
