"""The members of an EPUB book: its list of files, its reading order, its chapters."""

import re
from collections import Counter
from collections.abc import Mapping
from html.entities import html5
from unicodedata import normalize
from urllib.parse import unquote

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs
from lxml.etree import _Element as Element  # pyright: ignore[reportAttributeAccessIssue]

from qrag_jax.documents.readers.html_as_markdown import page_markdown
from qrag_jax.documents.readers.html_encoding import decoded
from qrag_jax.documents.readers.html_writer import count_words
from qrag_jax.documents.readers.zip_archive import MAX_XML_BYTES, Archive, member_name
from qrag_jax.types import InputError

_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
_SVG = "image/svg+xml"
_PAGES = ("application/xhtml+xml", "text/html", "text/x-oeb1-document", _SVG)
_PAGE_SUFFIXES = (".xhtml", ".html", ".htm")
_MAX_FALLBACKS = 8  # one after the other
_ENTITY = re.compile(r"&(\w{2,31};)")
_IN_XML = frozenset(("amp;", "lt;", "gt;", "quot;", "apos;"))
_EMPTY = re.compile(r"<(?!(?:br|hr|img|input|meta|link|area|base|col|embed|source|track|wbr|param)\b)"
                    r"([A-Za-z][^\s<>/]*)([^<>]*?)/>")  # fmt: skip


class Book:
    """The members of a book.

    Attributes:
        title: empty if there is none.
        left_out: as in `Converted`, and zeros.
    """

    def __init__(self, archive: Archive) -> None:
        """Reads the list of files."""
        self.left_out: Counter[str] = Counter()
        self._archive = archive
        self._names = {_folded(name): name for name in reversed(archive.names())}
        self._package = self._find_package()
        self._root = self._xml(self._package)
        title = self._root.find(".//{*}metadata//{*}title")
        self.title = "" if title is None else " ".join("".join(title.itertext()).split())
        self._contents: set[str] = set()
        self._encrypted: set[str | None] = set()
        if _ENCRYPTION in archive:
            references = self._xml(_ENCRYPTION).iterfind(".//{*}CipherReference")
            self._encrypted = {self._member("", reference.get("URI")) for reference in references}

    def spine(self) -> list[str]:
        """Members with the chapters, in reading order; counts pages outside of it."""
        items = {item.get("id"): item for item in self._root.iterfind(".//{*}manifest/{*}item")}
        names: dict[str, None] = {}  # a hostile book may repeat a chapter a million times
        references = dict.fromkeys(part.get("idref") for part in self._root.iterfind(".//{*}spine/{*}itemref"))
        for reference in references:
            item = _read(items, reference)
            if item is not None and not _is_page(item):
                is_picture = (item.get("media-type") or "").startswith("image/")
                self.left_out["pictures" if is_picture else "chapters in other formats"] += 1
            elif item is None or (name := self._member(self._package, item.get("href"))) is None:
                self.left_out["missing chapters"] += 1
            else:
                names[name] = None
                if _is_contents(item):
                    self._contents.add(name)
        if not references:
            raise InputError("an EPUB book without a chapter in its reading order; get the file again")
        pages = [item for item in items.values() if _is_page(item) and not _is_contents(item)]
        others = [item.get("href") for item in pages if item.get("media-type") != _SVG]  # else a figure
        others = {self._member(self._package, reference) for reference in others} - {None, *names}
        self.left_out["pages outside of the reading order"] = len(others)
        return list(names)

    def chapter(self, name: str) -> str | None:
        """The text of a chapter; counts what it lacks."""
        if name in self._encrypted or self._archive.is_encrypted(name):
            self.left_out["encrypted chapters"] += 1
            return None
        try:
            html, wrong = decoded(self._archive.read(name), is_xml=True)
            page = page_markdown(_as_html(html))
        except InputError:
            self.left_out["damaged chapters"] += 1
            return None
        self.left_out.update(wrong)
        self.left_out.update(page.left_out)
        if name in self._contents and not page.left_out["words of navigation"]:  # it has nothing else
            self.left_out["words of navigation"] += count_words(page.text)
            return None
        return page.text

    def _find_package(self) -> str:
        rootfile = self._xml(_CONTAINER).find(".//{*}rootfile")
        found = self._member("", None if rootfile is None else rootfile.get("full-path"))
        names = [found] if found else [name for name in self._archive.names() if name.lower().endswith(".opf")]
        if not names:
            raise InputError("an EPUB book whose list of files (.opf) is missing; get the file again")
        return names[0]

    def _member(self, base: str, reference: str | None) -> str | None:
        """The member that a reference means, maybe in another case or form of Unicode; None if it is missing."""
        path = (reference or "").strip().replace("\\", "/")
        tried = [member_name(base, one) for one in (unquote(path), path, unquote(path.partition("#")[0]))]
        exact = [name for name in tried if name in self._archive]
        return next(iter(exact + [self._names[key] for name in tried if (key := _folded(name)) in self._names]), None)

    def _xml(self, name: str) -> Element:
        content = self._archive.read_xml(name, may_have_doctype=True)
        parser = etree.XMLParser(resolve_entities=False, no_network=True, recover=True, remove_comments=True)
        if (root := etree.fromstring(content, parser) if content.strip() else None) is None:
            raise InputError(f"{name[:100]!r} in it is not XML; get the file again")
        return root


def _folded(name: str) -> str:
    return normalize("NFC", name).casefold()


def _read(items: Mapping[str | None, Element], reference: str | None) -> Element | None:
    """The item that is read for one in the reading order: itself, or a page that may replace it."""
    item = items.get(reference)
    for _ in range(_MAX_FALLBACKS):
        if item is None or _is_page(item) or not item.get("fallback"):
            break
        item = items.get(item.get("fallback"))
    return item


def _is_page(item: Element) -> bool:
    """True if an item of the list of files is a page; some books give pages a wrong type."""
    name = (item.get("href") or "").partition("#")[0].lower()
    return item.get("media-type") in _PAGES or name.endswith(_PAGE_SUFFIXES)


def _is_contents(item: Element) -> bool:
    return "nav" in (item.get("properties") or "").split()


def _as_html(page: str) -> str:
    """A page of XHTML as HTML, in which an empty `<title/>` would never end."""
    text = _ENTITY.sub(lambda found: found[0] if found[1] in _IN_XML else html5.get(found[1], found[0]), page)
    parser = etree.XMLParser(encoding="utf-8", no_network=True, remove_comments=True, remove_pis=True)
    try:
        root = etree.fromstring(text.encode() if len(text) < MAX_XML_BYTES else b"", parser)
    except etree.XMLSyntaxError:
        return _EMPTY.sub(r"<\1\2></\1>", page)
    for element in root.iter(etree.Element):
        element.tag = etree.QName(element).localname
    return etree.tostring(root, encoding="unicode", method="html")
