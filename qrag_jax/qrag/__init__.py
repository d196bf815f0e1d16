"""Q-RAG: retrieval in several steps as a decision process, its search, and the trained retriever."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # names: __init__.pyi
