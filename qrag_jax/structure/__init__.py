"""What asks a language model about documents: notes (SqRAG's index phase, propositions), points, benchmarks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # names: __init__.pyi
