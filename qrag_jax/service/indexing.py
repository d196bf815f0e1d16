"""Updates an index from its files: `qrag index build`, `add` and `remove`."""

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
from qrag_jax.names import BuildEngine, NoteReaderName, ParentsName, StoreName, VectorsName
from qrag_jax.service.cutting import LEVELS, TREE, CutOptions, chunking_of
from qrag_jax.types import Chunk, Document, EncoderOptions, NoteReader, ReadNotes, UsageError, Watch


@dataclass(frozen=True)
class NotesRequest:
    """How the notes of an index are written.

    Attributes:
        notes: of `names.INDEX_NOTES`; None: as in the index, or the default of a new one.
        reading: how a language model writes notes.
        given: names of the options of `reading` that were given; only notes by a language model take them.
        estimates: estimate the cost of notes by a language model, and ask nothing.
    """

    notes: NoteReaderName | None = None
    reading: NoteReading = NoteReading(LLM)
    given: tuple[str, ...] = ()
    estimates: bool = False


@dataclass(frozen=True)
class UpdateRequest:
    """The files and settings of an index to update.

    Attributes:
        folder: of the index.
        paths: files and folders.
        mirror: remove documents whose files are gone, and create the index if there is none.
        retriever: run that cuts and embeds, instead of `encoder` and `cut`.
        encoder: minilm, a folder or a hub id. If `encoder`, `retriever` and `cut` give nothing: as in the index.
        cut: how documents are cut.
        notes: how notes are written.
        store: searches the vectors; None: as in the index, or `sqlite` for a new one.
        uri: address of the server of the store; None: as in the index.
        late: store the vectors of tokens too; False: as in the index.
        vectors: what a search compares first; None: as in the index, or float32 for a new one.
        encoding, strict, verify, num_workers, engine: as in `Plan`.
        shard, num_shards: the shard to build, and the number of shards; None builds the whole index.
    """

    folder: Path
    paths: tuple[str, ...]
    mirror: bool = False
    retriever: str | None = None
    encoder: str | None = None
    cut: CutOptions = CutOptions()
    reads: EncoderOptions = EncoderOptions()
    notes: NotesRequest = NotesRequest()
    store: StoreName | None = None
    uri: str | None = None
    late: bool = False
    vectors: VectorsName | None = None
    encoding: str | None = None
    strict: bool = False
    verify: bool = False
    num_workers: int = 0
    engine: BuildEngine = "processes"
    shard: int | None = None
    num_shards: int | None = None


@dataclass(frozen=True)
class NotesWatch(Watch):
    """A watch that also receives the estimate and the cost of notes by a language model.

    Attributes:
        expected: called with the estimate before the model is asked.
        read: called with the cost afterwards.
    """

    expected: Callable[[Estimate], None] = lambda estimate: None
    read: Callable[[Sequence[Reading]], None] = lambda readings: None


NOBODY = NotesWatch()


@dataclass(frozen=True)
class Updated:
    """The result of an update.

    Attributes:
        found: the files of the paths.
        changes: of the index; None if the shard was already finished.
    """

    found: Found
    changes: Changes | None

    @property
    def is_complete(self) -> bool:
        """False if a file that was named itself could not be read, or a document is older than its file."""
        if self.changes is None:
            return True
        asked_for = {file.id for file in self.found.files if file.named}.union(self.changes.kept)
        return not any(one.id in asked_for for one in self.changes.failed)


def update(request: UpdateRequest, watch: NotesWatch = NOBODY) -> Updated:
    """Updates an index from files; see `index.update.update_index`.

    Raises:
        Estimated: the request asks only for an estimate of notes by a language model; all other work is done.
    """
    folder = request.folder
    if not request.mirror:
        index_folder(folder)
    settings = make_settings(request)
    found, lies_inside = outside(find_files(request.paths), request.paths, folder)
    if lies_inside:
        watch.note(f"note: {folder} is inside the folders to read; the index itself is left out")
    make = make_maker(settings)
    plan = Plan(
        mirror=request.mirror,
        encoding=request.encoding,
        strict=request.strict,
        verify=request.verify,
        num_workers=request.num_workers,
        engine=request.engine,
        waits=watch.note,
        progress=watch.stage("documents"),
        note_progress=watch.stage("notes"),
        read_notes=_note_reader(request.notes, settings, make, watch),
        keeps_notes=request.notes.notes is None,
        says=watch.note,
    )
    if request.shard is None or request.num_shards is None:
        return Updated(found, update_index(folder, request.paths, found, settings, make, plan))
    shards = (request.shard, request.num_shards)
    return Updated(found, build_shard(folder, request.paths, found, settings, make, plan, *shards))


def remove(
    folder: Path, paths: Sequence[str], notes: NotesRequest = NotesRequest(), watch: NotesWatch = NOBODY
) -> tuple[str, ...]:
    """Removes the documents of paths from an index and returns their names; see `index.remove.remove_documents`."""
    settings = read_settings(index_folder(folder))
    settings = replace(settings, notes=_setting(notes, folder, settings.notes) or settings.notes)
    make = make_maker(settings)
    read_notes = _note_reader(notes, settings, make, watch)
    return remove_documents(folder, paths, make=make, read_notes=read_notes, waits=watch.note)


def make_settings(request: UpdateRequest) -> IndexSettings:
    """The settings of a request. An existing index keeps its settings if the request gives none.

    Raises:
        UsageError: settings that do not go together.
    """
    named = {"retriever": request.retriever, "encoder": request.encoder}
    given = [name for name, value in named.items() if value is not None] + request.cut.given + [*request.reads.given]
    there = read_settings(request.folder) if is_index(request.folder) else None
    notes = _setting(request.notes, request.folder, None if there is None else there.notes)
    store = request.store or ("sqlite" if there is None else there.store)
    uri = request.uri or (there.uri if there is not None and there.store == store else "")
    late = request.late or (there is not None and there.late)
    vectors = request.vectors or (there.vectors if there is not None else "float32")
    if not given and there is not None:
        return replace(there, notes=notes or there.notes, store=store, uri=uri, late=late, vectors=vectors)
    if request.retriever is not None and len(given) > 1:
        reason = ("does not work with ", Arg("retriever"), ": a run reads sentences, with its own encoder")
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
        uri=uri,
        reads=request.reads,
        late=late,
        vectors=vectors,
    )


def _setting(request: NotesRequest, folder: Path, there: NotesSetting | None) -> NotesSetting | None:
    """The setting of the notes; None: as in the index, or the default of a new one."""
    name = request.notes or (there.reader if there is not None else "")
    if name != LLM:
        if request.given:
            belongs = (f", but notes of {folder} are by {name or 'mentions'}; add ", Arg("notes", LLM))
            reason = ("works only with ", Arg("notes", LLM), *belongs, ", or drop this option")
            raise UsageError(reason, field=request.given[0])
        return NotesSetting(request.notes) if request.notes else None
    asked = _setting_of(request.reading)
    if request.notes is None and asked != there:
        assert there is not None
        anew, without = Arg("notes", LLM), Arg("notes", "mentions")
        raise UsageError(
            (
                f"its notes are by {there.model} ({there.options}), but {asked.model} ({asked.options}) was given; "
                "give the same model, options and prompts; or add ", anew, " to write all notes again; or add ",
                without, " or ", Arg("notes", "none"), " to do without a language model",
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
    """A reader of notes by a language model, which is loaded when notes are written; None for other readers."""
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
