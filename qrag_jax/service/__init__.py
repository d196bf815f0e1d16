"""What the verbs of `qrag` do, as functions: a frozen request in, a result out; they print nothing, know no flag."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # names: __init__.pyi
