"""An index brought up to date with its files: `qrag index build`, `add` and `remove`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from qrag_jax.annotate.ask_chunks import Estimate, Estimated, Reading
from qrag_jax.annotate.chunk_questions import READER as LLM
from qrag_jax.annotate.chunk_questions import llm_prompts_sha256
from qrag_jax.annotate.note_readers import NoteReading, ReaderTools, make_note_reader
from qrag_jax.documents.read import Found, find_files
from qrag_jax.errors import Arg
from qrag_jax.index.build import index_settings, make_maker
from qrag_jax.index.folder import index_folder, is_index
from qrag_jax.index.prepare import MakeMaker
from qrag_jax.index.remove import outside, remove_documents
from qrag_jax.index.settings import IndexSettings, NotesSetting, read_settings
from qrag_jax.index.shards import build_shard
from qrag_jax.index.update import Changes, Plan, update_index
from qrag_jax.names import NoteReaderName, ParentsName, StoreName
from qrag_jax.service.cutting import LEVELS, TREE, CutOptions, chunking_of
from qrag_jax.types import Chunk, Document, NoteReader, ReadNotes, UsageError, Watch


@dataclass(frozen=True)
class NotesRequest:
    """The writer of the notes of an index.

    Attributes:
        notes: of `names.INDEX_NOTES`; None is whoever does, or the default of a new index.
        reading: how a language model writes them.
        given: what was said of `reading`: it belongs to notes by a language model alone.
        estimates: say what these take at most, and ask nothing.
    """

    notes: NoteReaderName | None = None
    reading: NoteReading = NoteReading(LLM)
    given: tuple[str, ...] = ()
    estimates: bool = False


@dataclass(frozen=True)
class UpdateRequest:
    """Files that an index is to have, and its settings.

    Attributes:
        folder: of the index.
        paths: files and folders.
        mirror: what is no more in them goes; the index need not be there yet.
        retriever: run that cuts and embeds, in place of `encoder` and `cut`.
        encoder: minilm, a folder or a hub id; None, as `retriever` and `cut` with nothing said: as the index has it.
        cut: how documents are cut.
        notes: who writes notes.
        store: finds the nearest vectors; None: as the index has it, and `memory` for a new one.
        encoding, strict, num_workers: as of `Plan`.
        shard, num_shards: which part of how many; None makes all of it.
    """

    folder: Path
    paths: tuple[str, ...]
    mirror: bool = False
    retriever: str | None = None
    encoder: str | None = None
    cut: CutOptions = CutOptions()
    notes: NotesRequest = NotesRequest()
    store: StoreName | None = None
    encoding: str | None = None
    strict: bool = False
    num_workers: int = 0
    shard: int | None = None
    num_shards: int | None = None


@dataclass(frozen=True)
class NotesWatch(Watch):
    """Also listens to the estimate and the cost of notes by a language model.

    Attributes:
        expected: told what they take at most, before it is asked.
        read: told what they took.
    """

    expected: Callable[[Estimate], None] = lambda estimate: None
    read: Callable[[Sequence[Reading]], None] = lambda readings: None


NOBODY = NotesWatch()


@dataclass(frozen=True)
class Updated:
    """The result of an update.

    Attributes:
        found: of the paths.
        changes: None where a shard was finished before.
    """

    found: Found
    changes: Changes | None

    @property
    def is_complete(self) -> bool:
        """False where a file that was named itself could not be read, or a document is older than its file."""
        if self.changes is None:
            return True
        asked_for = {file.id for file in self.found.files if file.named}.union(self.changes.kept)
        return not any(one.id in asked_for for one in self.changes.failed)


def update(request: UpdateRequest, watch: NotesWatch = NOBODY) -> Updated:
    """Brings an index up to date with files; see `index.update.update_index`.

    Raises:
        Estimated: only what notes by a language model take was asked for; all else is done.
    """
    folder = request.folder
    if not request.mirror:
        index_folder(folder)
    settings = make_settings(request)
    found, lies_inside = outside(find_files(request.paths), request.paths, folder)
    if lies_inside:
        watch.note(f"note: {folder} lies in what is read, and is left out itself")
    make = make_maker(settings)
    plan = Plan(
        mirror=request.mirror,
        encoding=request.encoding,
        strict=request.strict,
        num_workers=request.num_workers,
        waits=watch.note,
        progress=watch.stage("documents"),
        note_progress=watch.stage("notes"),
        read_notes=_note_reader(request.notes, settings, make, watch),
        keeps_notes=request.notes.notes is None,
    )
    if request.shard is None or request.num_shards is None:
        return Updated(found, update_index(folder, request.paths, found, settings, make, plan))
    shards = (request.shard, request.num_shards)
    return Updated(found, build_shard(folder, request.paths, found, settings, make, plan, *shards))


def remove(
    folder: Path, paths: Sequence[str], notes: NotesRequest = NotesRequest(), watch: NotesWatch = NOBODY
) -> tuple[str, ...]:
    """Takes the documents of paths out of an index, and gives their names; see `index.remove.remove_documents`."""
    settings = read_settings(index_folder(folder))
    settings = replace(settings, notes=_setting(notes, folder, settings.notes) or settings.notes)
    make = make_maker(settings)
    read_notes = _note_reader(notes, settings, make, watch)
    return remove_documents(folder, paths, make=make, read_notes=read_notes, waits=watch.note)


def make_settings(request: UpdateRequest) -> IndexSettings:
    """The settings that a request says; those of the index, where it is there and nothing is said.

    Raises:
        UsageError: what is said does not belong together.
    """
    named = {"retriever": request.retriever, "encoder": request.encoder}
    given = [name for name, value in named.items() if value is not None] + request.cut.given
    there = read_settings(request.folder) if is_index(request.folder) else None
    notes = _setting(request.notes, request.folder, None if there is None else there.notes)
    store = request.store or (there.store if there is not None else "memory")
    if not given and there is not None:
        return replace(there, notes=notes or there.notes, store=store)
    if request.retriever is not None and len(given) > 1:
        reason = ("not with ", Arg("retriever"), ": a run reads sentences, with its own encoder")
        raise UsageError(reason, field=given[1])
    cut = request.cut
    return index_settings(
        request.retriever,
        request.encoder or "minilm",
        chunking_of(cut, implied=LEVELS),
        tree=cut.strategy == TREE,
        notes=notes or (there and there.notes),
        tagger=cut.tagger,
        parents=cast("ParentsName | None", cut.parents or (cut.compressor and "compressor")),
        compressor=cut.compressor,
        store=store,
    )


def _setting(request: NotesRequest, folder: Path, there: NotesSetting | None) -> NotesSetting | None:
    """Who is to write the notes; None is whoever does, or the default of a new index."""
    name = request.notes or (there.reader if there is not None else "")
    if name != LLM:
        if request.given:
            belongs = (f", and notes of {folder} are by {name or 'mentions'}; say ", Arg("notes", LLM))
            reason = ("belongs to ", Arg("notes", LLM), *belongs, " too, or leave it out")
            raise UsageError(reason, field=request.given[0])
        return NotesSetting(request.notes) if request.notes else None
    asked = _setting_of(request.reading)
    if request.notes is None and asked != there:
        assert there is not None
        anew, without = Arg("notes", LLM), Arg("notes", "mentions")
        raise UsageError(
            (
                f"its notes were asked of {there.model} ({there.options}), the flags name {asked.model} "
                f"({asked.options}): name the same one with its flags and prompts, or say ", anew,
                " to have them written anew, or ", without, " or none",
            ),
            file=folder,
        )  # fmt: skip
    return asked


def _setting_of(reading: NoteReading) -> NotesSetting:
    """The setting of an index whose notes a language model writes."""
    asking, llm = reading.questions, reading.llm
    options = f"{asking.num_questions} questions a chunk, {asking.most_relevant} to each, answers of at most "
    options += f"{asking.max_answer_tokens} tokens, temperature {llm.temperature:g}"
    return NotesSetting(LLM, f"{llm.llm} {llm.llm_model or ''}".strip(), options, llm_prompts_sha256(asking))


def _note_reader(
    request: NotesRequest, settings: IndexSettings, make: MakeMaker, watch: NotesWatch
) -> NoteReader | None:
    """The reader that is to be handed in, whose model is loaded when notes are to be written; None where the settings
    say all of it."""
    if settings.notes.reader != LLM:
        return None

    def read(documents: Sequence[Document], chunks: Sequence[Chunk]) -> ReadNotes:
        maker = make()
        reader = make_note_reader(request.reading, ReaderTools(maker.embed, maker.count, watch.answered))
        assert reader.estimate is not None
        expected = reader.estimate(documents, chunks)
        if request.estimates:
            raise Estimated(LLM, expected)
        watch.expected(expected)
        found = reader.read(documents, chunks)
        watch.read(reader.readings)
        return found

    return read
