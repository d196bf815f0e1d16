"""A diary and notes on a garden, and a question about them, for tests of the verbs that search."""

from pathlib import Path

QUESTION = "Where is the milk?"
DIARY = "Mary went to the kitchen. Mary picked up\nthe milk there.\n\nIt rained all day long.\n"
NOTES = "# Notes\r\n\r\nJohn travelled to the garden.\r\nJohn went back to the hallway.\r\n"


def write_diary_and_notes(folder: Path, diary: str = "diary.txt") -> list[str]:
    """`diary.txt`, or another name for it, and `notes/b.md`; gives their paths in the folder, as a user names them."""
    (folder / "notes").mkdir()
    (folder / diary).write_text(DIARY)
    (folder / "notes" / "b.md").write_bytes(NOTES.encode())
    return [diary, "notes"]
