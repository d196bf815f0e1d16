"""The text of an EPUB book: its chapters in the order of reading."""

from collections.abc import Callable

from qrag_jax.documents.converted import Converted, ReadOptions
from qrag_jax.documents.kinds import FileKind
from qrag_jax.documents.readers.zip_archive import Archive
from qrag_jax.types import InputError


def read_epub(raw: bytes) -> Converted:
    """The text of an EPUB book below its title, without its table of contents.

    Chapters that are missing, encrypted or damaged are counted.
    """
    from qrag_jax.documents.readers.epub_book import Book
    from qrag_jax.documents.readers.html_as_markdown import Page, with_title

    book = Book(Archive(raw, may_be_encrypted=True))
    texts = [book.chapter(name) for name in book.spine()]
    left_out = +book.left_out
    if text := "\n\n".join(filter(None, texts)):
        return Converted(with_title(Page(text, book.title)), left_out=dict(left_out))
    if left_out["encrypted chapters"]:
        raise InputError("an EPUB book with copy protection (DRM), which cannot be read; get a copy without DRM")
    if lost := [f"{number:,} {kind}" for kind, number in left_out.items() if kind.endswith("chapters")]:
        raise InputError(f"an EPUB book without a chapter that can be read ({', '.join(lost)}); get the file again")
    raise InputError("an EPUB book without text (only pictures); leave it out")


def _load(_: ReadOptions) -> Callable[[bytes], Converted]:
    import qrag_jax.documents.readers.epub_book  # noqa: F401

    return read_epub


KIND = FileKind(
    (".epub",), "an EPUB book", ("lxml", "webencodings", "chardet"), _load, member=b"META-INF/container.xml", version=2
)
