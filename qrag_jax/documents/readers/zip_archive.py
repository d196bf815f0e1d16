"""Untrusted zip archives: sizes are checked before anything is unpacked, and nothing is written to disk."""

import posixpath
import re
import zipfile
import zlib
from io import BytesIO

from qrag_jax.documents.kinds import MAX_DOCUMENT_BYTES
from qrag_jax.types import InputError

MAX_XML_BYTES = 16 * 10**6  # of all XML that becomes a tree, which takes about twenty times as much memory
_MAX_MEMBERS = 10_000
_MOST_OF_DIRECTORY = 4 * 2**20
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError, NotImplementedError, KeyError, RuntimeError)
_END = b"PK\x05\x06"
_DOCTYPE = re.compile(rb"<!DOCTYPE[^\[>]*>")
_ENTITIES = re.compile(rb"<!(?:DOCTYPE|ENTITY)")


class Archive:
    """A zip archive that is safe to read: few and small enough members, none twice."""

    def __init__(self, raw: bytes, may_be_encrypted: bool = False):
        """Checks the directory of an archive.

        Args:
            may_be_encrypted: accept an archive with encrypted members, which cannot be read.
        """
        end = raw.rfind(_END)
        size = int.from_bytes(raw[end + 12 : end + 16], "little")
        if end < 0 or size > _MOST_OF_DIRECTORY:
            raise InputError(
                f"a zip archive whose directory is missing or larger than {_MOST_OF_DIRECTORY:,} bytes; "
                "get the file again"
            )
        try:
            self._file = zipfile.ZipFile(BytesIO(raw))
        except _DAMAGED as error:
            raise InputError(f"a damaged zip archive ({error}); get the file again") from error
        members = self._file.infolist()
        self._members = {member.filename: member for member in members}
        if len(members) > _MAX_MEMBERS or len(self._members) < len(members):
            raise InputError(
                f"a zip archive with more than {_MAX_MEMBERS:,} members or a repeated name is hostile; leave it out"
            )
        if not may_be_encrypted and any(map(self.is_encrypted, self._members)):
            raise InputError("a zip archive with encrypted members; save it without a password")
        unpacked = sum(member.file_size for member in members)
        if unpacked > MAX_DOCUMENT_BYTES:
            raise InputError(
                f"{len(raw):,} bytes unpack to {unpacked:,}, more than the {MAX_DOCUMENT_BYTES:,} allowed; remove "
                "large parts, or split it"
            )

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def is_encrypted(self, name: str) -> bool:
        """True if a member needs a password."""
        return bool(self._members[name].flag_bits & 1)

    def size(self, name: str) -> int:
        """Unpacked size of a member, in bytes."""
        return self._members[name].file_size

    def names(self) -> list[str]:
        """Names of the members, in their order."""
        return list(self._members)

    def read(self, name: str) -> bytes:
        """A member, unpacked; never more than the directory says."""
        if name not in self._members:
            raise InputError(f"{name[:100]!r} is missing in it; get the file again")
        try:
            with self._file.open(self._members[name]) as member:
                return member.read(self.size(name))
        except _DAMAGED as error:
            raise InputError(f"{name[:100]!r} in it is damaged ({error}); get the file again") from error

    def read_xml(self, name: str, may_have_doctype: bool = False) -> bytes:
        """A member that is XML without entity declarations, so parsing cannot enlarge it.

        Args:
            may_have_doctype: accept a document type without declarations in it.
        """
        if name in self and self.size(name) > MAX_XML_BYTES:
            raise InputError(
                f"{name[:100]!r} in it has {self.size(name):,} bytes of XML, more than the {MAX_XML_BYTES:,} that are "
                "read; split the document"
            )
        content = self.read(name)
        checked = content.replace(b"\0", b"")  # UTF-16 too
        if _ENTITIES.search(_DOCTYPE.sub(b"", checked) if may_have_doctype else checked):
            raise InputError(f"{name[:100]!r} in it declares entities, so it may be hostile; leave it out")
        return content


def member_name(base: str, reference: str) -> str:
    """The member that a relative reference in another member means. It cannot leave the archive.

    Args:
        base: name of the member with the reference.
        reference: relative path, without a fragment.
    """
    return posixpath.normpath(posixpath.join(posixpath.dirname(base), reference))
