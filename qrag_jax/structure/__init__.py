"""What asks a language model about documents: notes of questions and answers (SqRAG's index phase), propositions, points."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # names: __init__.pyi
