"""The text of an EPUB book: its chapters in the order of reading."""

from collections.abc import Callable
from urllib.parse import unquote
from xml.etree import ElementTree

from qrag_jax.documents.converted import Converted, ReadOptions
from qrag_jax.documents.kinds import FileKind
from qrag_jax.documents.readers.zip_archive import Archive, member_name
from qrag_jax.types import InputError

_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
_PAGES = ("application/xhtml+xml", "text/html", "text/x-oeb1-document")
_ANY = "{*}"  # name space


def read_epub(raw: bytes) -> Converted:
    """The text of an EPUB book, without its table of contents."""
    from qrag_jax.documents.readers.html_as_markdown import markdown
    from qrag_jax.documents.readers.html_encoding import decoded

    archive = Archive(raw)
    chapters = _spine(archive)
    protected = _protected(archive)
    if any(name in protected for name in chapters):
        raise InputError("an EPUB book with copy protection (DRM), which cannot be read; get a copy without DRM")
    texts = [markdown(decoded(archive.read(name))[0]) for name in chapters]
    text = "\n\n".join(text for text in texts if text.strip())
    if not text:
        raise InputError("an EPUB book without text (only pictures); leave it out")
    return Converted(text)


def _spine(archive: Archive) -> list[str]:
    """Members with the chapters, in reading order."""
    rootfile = _xml(archive, _CONTAINER).find(f".//{_ANY}rootfile")
    package = (rootfile.get("full-path") if rootfile is not None else None) or ""
    root = _xml(archive, package)
    items = {item.get("id"): item for item in root.iterfind(f".//{_ANY}manifest/{_ANY}item")}
    names = []
    for reference in root.iterfind(f".//{_ANY}spine/{_ANY}itemref"):
        item = items.get(reference.get("idref"))
        if item is None:
            raise InputError(
                f"its reading order names {reference.get('idref')!r}, which is not in its list of files; "
                "get the file again"
            )
        if item.get("media-type") in _PAGES and "nav" not in (item.get("properties") or "").split():
            names.append(member_name(package, unquote(item.get("href") or "")))
    names = list(dict.fromkeys(names))  # a hostile book may repeat a chapter a million times
    if not names:
        raise InputError("an EPUB book without a chapter in its reading order; get the file again")
    return names


def _protected(archive: Archive) -> set[str]:
    """Encrypted members; fonts often are, which does no harm."""
    if _ENCRYPTION not in archive:
        return set()
    references = _xml(archive, _ENCRYPTION).iterfind(f".//{_ANY}CipherReference")
    return {member_name("", unquote(reference.get("URI") or "")) for reference in references}


def _xml(archive: Archive, name: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(archive.read_xml(name))
    except ElementTree.ParseError as error:
        raise InputError(f"{name[:100]!r} in it is not XML ({error}); get the file again") from error


def _load(_: ReadOptions) -> Callable[[bytes], Converted]:
    import qrag_jax.documents.readers.html_as_markdown
    import qrag_jax.documents.readers.html_encoding  # noqa: F401

    return read_epub


KIND = FileKind((".epub",), "an EPUB book", ("lxml", "webencodings", "chardet"), _load, member=_CONTAINER.encode())
