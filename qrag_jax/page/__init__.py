"""Hits, answers and documents as HTML without scripts, for the server, for files and for notebooks.

Form(indexes=(), question="", index=None, mode="search")        # what the question form shows
start_page(form, message="") -> str                             # the form alone
search_page(form, {index: Found}) -> Iterator[str]
ask_start(form) -> str; ask_passages(answer, index) -> str; ask_end(answer, message="") -> str    # one page, in turn
document_page(document, spans, sentence, index=None) -> Iterator[str]
read_spans("0-12,20-31") -> ((0, 12), (20, 31))                 # `at` and `spans` in the address of a document
login_page(reason="", next_="/") -> str
trace_page(results, document, title="qrag") -> str              # one file: questions, results, their documents
style() -> str                                                  # /style.css
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # names: __init__.pyi
