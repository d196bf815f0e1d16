"""Reads files as documents: which files are read, by which reader, and what is left out. Does not use JAX."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # names: __init__.pyi
