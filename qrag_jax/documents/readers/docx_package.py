"""Parts of a DOCX document, found by their relations."""

from posixpath import split

from lxml.etree import _Element as Element  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

from qrag_jax.documents.readers.office_story import read_tree
from qrag_jax.documents.readers.zip_archive import MAX_XML_BYTES, Archive, member_name
from qrag_jax.types import InputError


class Package:
    """The archive of a document; parts become trees at their first use."""

    def __init__(self, raw: bytes):
        """Refuses more XML than fits into memory as trees, and XML with entities."""
        self.archive = Archive(raw)
        parts = [name for name in self.archive.names() if name.endswith((".xml", ".rels")) and "/theme/" not in name]
        if (size := sum(map(self.archive.size, parts))) > MAX_XML_BYTES:
            raise InputError(
                f"{len(raw):,} bytes contain {size:,} bytes of XML, more than the {MAX_XML_BYTES:,} that are read; "
                "split the document"
            )
        for name in parts:
            self.archive.read_xml(name)
        self._relations: dict[str, dict[str, tuple[str, str]]] = {}
        self._shown: set[str] = set()
        self.main = self._only("", "officeDocument", "word/document.xml")

    def tree(self, name: str) -> Element | None:
        """The root of a part; None without such a part."""
        return read_tree(self.archive, name) if name in self.archive else None

    def of_main(self, kind: str) -> str:
        """The member that the main part relates to as `kind`, such as `styles`."""
        return self._only(self.main, kind, f"word/{kind}.xml")

    def once(self, part: str, relation: str | None) -> str:
        """The member that a relation of a part means; "" if there is none, or at the second time."""
        name = self._of(part).get(relation or "", ("", ""))[1]
        if name in self._shown or name not in self.archive:
            return ""
        self._shown.add(name)
        return name

    def _only(self, part: str, kind: str, usual: str) -> str:
        found = (target for name, target in self._of(part).values() if name == kind and target in self.archive)
        return next(found, usual)

    def _of(self, part: str) -> dict[str, tuple[str, str]]:
        """Ids of the relations of a part -> (kind, member)."""
        if part not in self._relations:
            folder, name = split(part)
            root = self.tree(f"{folder}/_rels/{name}.rels".lstrip("/"))
            self._relations[part] = {
                one.get("Id", ""): (one.get("Type", "").rpartition("/")[2], _target(part, one.get("Target", "")))
                for one in (() if root is None else root)
                if one.get("TargetMode") != "External"
            }
        return self._relations[part]


def _target(part: str, target: str) -> str:
    return target.lstrip("/") if target.startswith("/") else member_name(part, target)
