"""Hits, answers and documents as HTML without scripts, for the server, for files and for notebooks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # names: __init__.pyi
