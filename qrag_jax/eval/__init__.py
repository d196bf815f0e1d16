"""Measures, intervals, records and reports: NumPy, str and files; nothing here imports JAX."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # names: __init__.pyi
