"""The notes of an index, and their recall on labelled sets: `qrag notes`."""

from collections.abc import Sequence
from dataclasses import dataclass

from qrag_jax.annotate.ask_chunks import Estimate, Estimated, Reading
from qrag_jax.annotate.note_readers import NoteReading, ReaderTools, make_note_reader
from qrag_jax.eval.notes.note_scores import NoteScores, check_modes, score_notes
from qrag_jax.eval.notes.note_sets import STORIES, MakeNoteTask, read_babi_task, read_multihop_task
from qrag_jax.index.load import load_noted_index
from qrag_jax.index.settings import read_settings
from qrag_jax.names import NOTE_MODES
from qrag_jax.search.note_search import NotedCorpus, NoteSearch
from qrag_jax.service.indexing import NOBODY, NotesWatch
from qrag_jax.types import UsageError

BABI = "babi"


@dataclass(frozen=True)
class NotesEvalRequest:
    """Questions to measure notes on, the reader of the notes, and the modes that use them.

    Attributes:
        kind: of `names.MULTIHOP_SETS`, or babi.
        path: of its file.
        reading: how the notes are written.
        distractors: file of further passages; not for babi.
        filler, chunk_sentences, num_chunks: for babi: text to hide stories in, sentences of a chunk, chunks of a story.
        num_questions: number to draw by the seed; None uses all.
        modes, ks, search: how notes are used, and the numbers of chunks to look at.
        encoder: minilm, a folder or a hub id.
        estimates: raise `Estimated` instead of asking a language model.
    """

    kind: str
    path: str
    reading: NoteReading
    distractors: str | None = None
    filler: str = STORIES
    chunk_sentences: int = 4
    num_chunks: int = 15
    num_questions: int | None = None
    modes: tuple[str, ...] = NOTE_MODES
    ks: tuple[int, ...] = (2, 4, 5, 10)
    search: NoteSearch = NoteSearch()
    encoder: str = "minilm"
    seed: int = 0
    estimates: bool = False


@dataclass(frozen=True)
class NotesScored:
    """The recall of notes.

    Attributes:
        readings: the cost of a language model; empty for other readers.
        window: tokens of a text that the encoder reads.
    """

    scores: NoteScores
    readings: Sequence[Reading]
    window: int


def index_notes(folder: str) -> NotedCorpus:
    """The notes of an index, with their chunks.

    Raises:
        UsageError: the index has no notes.
    """
    if not read_settings(folder).has_notes:
        remedy = f"write them with `qrag index add {folder} PATHS... --notes mentions`"
        raise UsageError("has no notes", file=folder, remedy=remedy)
    return load_noted_index(folder)


def evaluate_notes(request: NotesEvalRequest, watch: NotesWatch = NOBODY) -> NotesScored:
    """Measures the share of questions whose gold chunks are all among the first k, for every mode.

    All modes use the same questions.

    Raises:
        Estimated: the request asks only for an estimate.
    """
    check_modes(request.modes, request.ks)
    make_task = _read_task(request)  # reports a bad file before a model is loaded
    from qrag_jax.models.encoder.embedder import make_embedder
    from qrag_jax.models.encoder.weights import load_encoder

    embed = make_embedder(load_encoder(request.encoder))
    task = make_task(embed.count_tokens)
    watch.note(task.about)
    reading = request.reading
    reader = make_note_reader(reading, ReaderTools(embed, embed.count_tokens, watch.answered))
    if reader.estimate is not None:
        expected = sum((reader.estimate(pool.documents, pool.chunks) for pool in task.pools), Estimate())
        if request.estimates:
            raise Estimated(reading.reader, expected)
        watch.expected(expected)
    scores = score_notes(
        task.name,
        task.pools,
        reader.read,
        embed,
        embed.count_tokens,
        reader_name=f"{reading.reader}, wrong {reading.wrong_share:g}" if reading.wrong_share else reading.reader,
        modes=request.modes,
        ks=request.ks,
        search=request.search,
        seed=request.seed,
        window=embed.window,
        progress=watch.stage("ask"),
    )
    return NotesScored(scores, reader.readings, embed.window)


def _read_task(request: NotesEvalRequest) -> MakeNoteTask:
    number, seed = request.num_questions, request.seed
    if request.kind == BABI:
        sizes = {"num_chunks": request.num_chunks, "chunk_sentences": request.chunk_sentences}
        return read_babi_task(request.path, request.filler, num_questions=number, seed=seed, **sizes)
    more = request.distractors
    return read_multihop_task(request.kind, request.path, distractors=more, num_questions=number, seed=seed)
