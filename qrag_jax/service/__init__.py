"""What the command line does, as functions: a frozen dataclass in, a result out; nothing is printed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # names: __init__.pyi
