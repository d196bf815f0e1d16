"""Retrieval over long documents in JAX. Importing the package imports no JAX; public names load on first use."""

import lazy_loader

__version__ = "0.1.0a1"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # names: __init__.pyi
