"""Retrievers and their environment: the retrieval MDP, policies, and the BM25 baseline."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # names: __init__.pyi
