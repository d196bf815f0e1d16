"""Runs on the Hugging Face hub or in a shared folder: pushed and pulled completely, and checked by their manifest.

    README.md       the card
    metrics.jsonl   of the training, and times.jsonl, if the run has them
    step_1200/      one checkpoint, as `checkpoint.save_checkpoint` wrote it

So a repository is a run folder with one step, and its older commits have the older steps. A pulled run is untrusted:
its file names are checked before anything is fetched, only files of the manifest are taken, and the run appears only
after every hash was checked. Imports no JAX, and the hub's client only for repositories.
"""

import os
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.files.folder_lock import lock_folder
from qrag_jax.files.manifest import (
    MANIFEST,
    check_inside,
    files_under,
    find_damage,
    listed_files,
    path_inside,
    verify_manifest,
)
from qrag_jax.files.new_folder import check_empty, check_replaceable, folder_beside, move_into, new_folder
from qrag_jax.files.reading import MAX_JSON_BYTES, check_size
from qrag_jax.types import Arg, InputError, UsageError

_CARD = "README.md"
_LOGS = ("metrics.jsonl", "times.jsonl")
# The manifest has no sizes of these files, and no search needs them: large ones are not taken.
_MAX_BESIDE = {_CARD: 2**24} | dict.fromkeys(_LOGS, 2**30)
_NEEDED = ("config.yaml", "metadata.json")  # of every checkpoint
_FOREIGN = frozenset({_CARD, ".gitattributes"})  # files that a new repository may have
_REPOSITORY = re.compile(r"(hf://)?([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(.+))?", re.ASCII)
_STEP = re.compile(r"step_(0|[1-9][0-9]{0,17})/manifest\.json")
_OWN = re.compile(r"step_\d+/")
_LOG_IN = "run `hf auth login`, or set HF_TOKEN"


@dataclass(frozen=True)
class Place:
    """A folder, or a repository of the hub with or without a revision (branch, tag or commit)."""

    folder: Path | None = None
    repository: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        if self.folder is not None:
            return str(self.folder)
        return f"{self.repository}@{self.revision}" if self.revision else str(self.repository)


@dataclass(frozen=True)
class _Source:
    """The files of a place: their names, and their `sizes` in bytes if known before they are fetched.

    `fetch` returns a local path of a file, `put` moves that file to another path.
    """

    origin: str
    names: frozenset[str]
    sizes: Callable[[str], int | None]
    fetch: Callable[[str], Path]
    put: Callable[[Path, Path], object]


def parse_place(text: str, *, is_new: bool = False) -> Place:
    """Parses a place: `owner/name[@revision]` is a repository; a folder starts with `/`, `.` or `~`.

    Args:
        is_new: the place will be created. Then a name whose first part is a local folder is refused, because it may
            mean a new folder in it and would become a public repository.
    """
    if text.startswith(("/", ".", "~")):
        return Place(folder=Path(os.path.expanduser(text)))
    match = _REPOSITORY.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is not a place to share; write owner/name for a repository of the hub, or a folder that starts "
            "with ./, / or ~"
        )
    scheme, repository, revision = match.groups()
    if scheme is None and Path(repository).exists():
        raise UsageError(
            f"{text!r} is also a folder here; write ./{repository} for the folder, hf://{text} for the repository"
        )
    owner = repository.partition("/")[0]
    if scheme is None and is_new and Path(owner).is_dir():
        raise UsageError(
            f"{text!r} may be a new folder in {owner}/ here, or a repository of the hub; write "
            f"./{repository} for the folder, hf://{text} for the repository"
        )
    return Place(repository=repository, revision=revision)


def run_files(folder: Path, step: int, card: str, run: Path | None = None) -> dict[str, Path | bytes]:
    """The files of a push by name: the card, the run's logs if they exist, and every file of the manifest.

    Args:
        run: folder of the logs; None leaves them out.
    """
    files: dict[str, Path | bytes] = {_CARD: card.encode()}
    if run is not None:
        files |= {name: check_inside(run, run / name) for name in _LOGS if (run / name).is_file()}
    names = [MANIFEST, *listed_files(folder)]
    return files | {f"step_{step}/{name}": check_inside(folder, folder / name) for name in names}


def push_run(
    place: Place,
    files: Mapping[str, Path | bytes],
    message: str,
    private: bool = False,
    endpoint: str | None = None,
) -> str:
    """Writes a run to a folder, completely or not at all, or to a repository, in one commit.

    Args:
        place: a folder that is empty or does not exist; or a repository, which is made if absent.
        files: from `run_files`.
        private: only the owner can see the repository.
        endpoint: of the hub; None takes HF_ENDPOINT, or huggingface.co.

    Returns:
        Its place: the folder, or the address of the commit.
    """
    if place.revision is not None:
        raise UsageError(f"{place}: a push goes to the main branch; leave @{place.revision} out")
    if place.folder is None:
        return _push_to_hub(place, files, message, private, endpoint)
    if private:
        belongs = (Arg("private"), " applies only to a repository; set the permissions of a folder yourself")
        raise UsageError(belongs, file=place, field="private")
    with new_folder(place.folder, "push") as run:
        for name, content in files.items():
            target = run / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                target.write_bytes(content)
            else:
                shutil.copyfile(content, target)
        for step in _steps(files).values():
            verify_manifest(run / step)
    return str(place.folder)


def pull_run(place: Place, out: Path, step: int | None = None, endpoint: str | None = None) -> tuple[int, str]:
    """Fetches a run into `out`, completely or not at all.

    If a download breaks off, it is kept next to `out` as `.pull-<name>`, and the next pull continues it.

    Args:
        place: of a pushed run, or any run folder.
        out: a folder that is empty or does not exist.
        step: which checkpoint, if there are several; None takes the newest.
        endpoint: of the hub; None takes HF_ENDPOINT, or huggingface.co.

    Returns:
        (step, source: the folder, or the repository at its commit).
    """
    check_empty(out)
    check_replaceable(out)
    beside = folder_beside(out, "pull")
    with lock_folder(beside, f"qrag pull into {out}"):
        return _pull(place, out, beside, step, endpoint)


def _pull(place: Place, out: Path, beside: Path, step: int | None, endpoint: str | None) -> tuple[int, str]:
    """See `pull_run`; no other process uses `beside`."""
    if place.folder is not None:
        source = _folder_source(place.folder)
    else:
        source = _hub_source(place, beside / "download", endpoint)
    number, folder = _choose(source, step)
    check_size(source.sizes(f"{folder}/{MANIFEST}") or 0, f"{source.origin}: {folder}/{MANIFEST}", MAX_JSON_BYTES)
    manifest = source.fetch(f"{folder}/{MANIFEST}")
    try:
        names = _wanted(source, folder, listed_files(manifest.parent))
    except InputError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise _refusal(source, beside, str(error).rpartition("; ")[0]) from error
    names += [name for name in sorted(_MAX_BESIDE) if name in source.names and _is_taken(source, name)]
    fetched = {name: source.fetch(name) for name in names}
    run = beside / "run"
    shutil.rmtree(run, ignore_errors=True)  # of a pull that was killed
    try:
        for name, path in fetched.items():
            target = path_inside(run, name, source.origin)
            target.parent.mkdir(parents=True, exist_ok=True)
            source.put(path, target)
        if fault := find_damage(run / folder):
            raise _refusal(source, beside, fault)
        move_into(run, out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return number, source.origin


def _refusal(source: _Source, beside: Path, fault: str) -> InputError:
    for folder in ("run", "download"):  # removed by now; use the names of the source
        fault = fault.replace(f"{beside / folder}{os.sep}", "")
    return InputError(f"{source.origin}: refused and not kept: {fault}; pull again, or have the run pushed again")


def _steps(names: Iterable[str]) -> dict[int, str]:
    """Step folders by number, from names that end in a manifest."""
    found = (match for match in map(_STEP.fullmatch, names) if match)
    return {int(match[1]): f"step_{match[1]}" for match in found}


def _choose(source: _Source, step: int | None) -> tuple[int, str]:
    steps = _steps(source.names)
    if not steps:
        raise InputError(
            f"{source.origin}: no checkpoint here (no step_<n>/{MANIFEST}); give a run that `qrag push` wrote"
        )
    if step is not None and step not in steps:
        there = ", ".join(map(str, sorted(steps)))
        raise UsageError(f"{source.origin}: no checkpoint of step {step}; choose from {there}")
    number = max(steps) if step is None else step
    return number, steps[number]


def _wanted(source: _Source, folder: str, listed: Collection[str]) -> list[str]:
    if unlisted := [name for name in _NEEDED if name not in listed]:
        raise InputError(
            f"{folder}/{MANIFEST}: does not list {unlisted[0]}, so it is no checkpoint; push the run again"
        )
    names = [f"{folder}/{name}" for name in (MANIFEST, *listed)]
    if absent := [name for name in names if name not in source.names]:
        raise InputError(f"{absent[0]}: missing, although the manifest lists it; push the run again")
    return names


def _is_taken(source: _Source, name: str) -> bool:
    """True if a card or log is small enough to take; warns if not."""
    size, most = source.sizes(name) or 0, _MAX_BESIDE[name]
    if size > most:
        warnings.warn(
            f"{source.origin}: {name} is left out: it has {size:,} bytes, and at most {most:,} are taken (the "
            "run is complete without it)",
            UserWarning,
            stacklevel=3,
        )
    return size <= most


def _folder_source(folder: Path) -> _Source:
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; give the folder of a run, or owner/name for a repository")
    names = frozenset(path.relative_to(folder).as_posix() for path in files_under(folder))
    # A snapshot in the hub's cache consists of links to the blobs of its repository.
    snapshots = Path(os.path.realpath(folder)).parent
    is_cached = snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--")
    root = snapshots.parent if is_cached else folder
    for path in folder.glob("step_*"):  # a step that cannot be read is not skipped in favour of an older one
        check_inside(root, path)

    def fetch(name: str) -> Path:
        return check_inside(root, folder / name)

    return _Source(str(folder), names, lambda name: fetch(name).stat().st_size, fetch, shutil.copyfile)


def _hub_source(place: Place, download: Path, endpoint: str | None) -> _Source:
    """The files of one commit, so a push in between cannot mix two."""
    from huggingface_hub import HfApi  # takes a second, and folders do not need it

    api, repository = HfApi(endpoint=endpoint), str(place.repository)
    with _hub_errors(f"{place}: nothing was pulled", place.revision):
        info = api.model_info(repository, revision=place.revision, files_metadata=True)
    sizes = {file.rfilename: file.size for file in info.siblings or ()}

    def fetch(name: str) -> Path:
        with _hub_errors(f"{place}: the download broke off and continues when you pull again", place.revision):
            return Path(api.hf_hub_download(repository, name, revision=info.sha, local_dir=download))

    return _Source(f"{repository}@{info.sha}", frozenset(sizes), sizes.get, fetch, os.replace)


def _push_to_hub(
    place: Place, files: Mapping[str, Path | bytes], message: str, private: bool, endpoint: str | None
) -> str:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token

    if get_token() is None:
        raise UsageError(
            f"{place}: a push needs a token; {_LOG_IN} with write access "
            "(https://huggingface.co/settings/tokens), or push to a folder"
        )
    api, repository = HfApi(endpoint=endpoint), str(place.repository)
    with _hub_errors(f"{place}: nothing was pushed"):
        api.create_repo(repository, private=private or None, exist_ok=True)
        info = api.model_info(repository)
    if private and not info.private:
        raise UsageError(f"{place}: exists and is public; make it private in its settings, or choose another name")
    there = {file.rfilename for file in info.siblings or ()}
    if there - _FOREIGN and not _steps(there):
        raise UsageError(
            f"{place}: has files that `qrag push` did not write ({min(there - _FOREIGN)}); choose another name"
        )
    stale = sorted(name for name in there - set(files) if name in _LOGS or _OWN.match(name))
    operations = [CommitOperationAdd(name, content) for name, content in files.items()]
    with _hub_errors(f"{place}: nothing was pushed"):
        commit = api.create_commit(
            repository,
            [*operations, *map(CommitOperationDelete, stale)],
            commit_message=message,
            parent_commit=info.sha,  # fails if there was another push in between
        )
    return str(commit.commit_url)


@contextmanager
def _hub_errors(what: str, revision: str | None = None) -> Iterator[None]:
    """Turns errors of the hub's client into errors that begin with `what`, the repository, and say what to do."""
    from huggingface_hub import errors

    try:
        yield
    except (OSError, ValueError, errors.EntryNotFoundError, errors.HTTPError) as error:  # pyright: ignore[reportPrivateImportUsage]
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of this machine: disk full, no permission
        kind, reason = _reason(error, revision)
        raise kind(f"{what}: {reason}") from error


def _reason(error: Exception, revision: str | None) -> tuple[type[InputError], str]:
    from huggingface_hub import errors

    chain = (error, error.__cause__)
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if any(isinstance(one, errors.OfflineModeIsEnabled) for one in chain):
        return UsageError, "HF_HUB_OFFLINE=1 forbids the network; unset it, or use a folder instead"
    if isinstance(error, errors.GatedRepoError):
        return UsageError, f"its owner must grant access; ask on its page, then {_LOG_IN}"
    if isinstance(error, errors.RevisionNotFoundError):
        return UsageError, f"it has no branch, tag or commit {revision}; check the name"
    if isinstance(error, errors.RepositoryNotFoundError):  # the hub does not say which of the two it is
        return UsageError, f"no such repository, or a private one that your token may not read; {_LOG_IN}"
    if status == 401:
        return UsageError, f"the hub does not accept your token; {_LOG_IN} with a new one"
    if status == 403:
        return UsageError, "your token may not write there; use one with write access, or your own name"
    first = " ".join(str(error).split("\n")[:2]).strip()
    if isinstance(error, ValueError) and status is None:  # a malformed name, or front matter that the hub refuses
        return UsageError, first
    return InputError, f"the hub could not be reached or failed ({type(error).__name__}: {first}); try again"
