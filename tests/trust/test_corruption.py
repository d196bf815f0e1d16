"""Test 3 of docs/reliability.md: whatever happened to the files of a checkpoint is found, or harms nothing."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from support.runs import assert_seeded, leaf_bytes, save_seeded, seeded_arrays
from support.tiers import of_tier

from qrag_jax.checkpoint import load_checkpoint, newest_valid_step
from qrag_jax.files.manifest import write_manifest
from qrag_jax.types import InputError

SEED = int(os.environ.get("TRUST_SEED", "0"))
NUM_FLIPS, NUM_CUTS, NUM_LOSSES = 300, 20, 20
FOUND, HARMLESS = "found", "harmless"


@dataclass(frozen=True)
class Harm:
    """What is done to the newest step, given its folder; `file` is what the fault must name, where one file is bad."""

    name: str
    do: Callable[[Path], object]
    file: str = ""


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A run with two whole steps that nobody touches, and a place beside it."""
    folder = tmp_path_factory.mktemp("corruption")
    for step in (1, 2):
        save_seeded(folder / "run", step, step)
    return folder


@pytest.fixture
def run(originals, tmp_path):
    shutil.copytree(originals / "run", tmp_path / "run")
    return tmp_path / "run"


def files_of(step: Path) -> list[str]:
    return sorted(path.relative_to(step).as_posix() for path in step.rglob("*") if path.is_file())


def outcome(run: Path, harm: Harm, all_arrays: bool = True) -> str:
    """Found: step 1 takes the place of step 2, and the caller is told why. Harmless: step 2, every bit of it."""
    groups = None if all_arrays else ()
    loaded = load_checkpoint(run, groups=groups)
    if loaded.step == 2:
        assert loaded.skipped == () and newest_valid_step(run) == (2, ()), harm.name
        assert_seeded(load_checkpoint(run, seeded_arrays(0)), 2)
        return HARMLESS
    (fault,) = loaded.skipped
    assert (loaded.step, loaded.folder) == (1, run / "step_1"), harm.name
    assert fault.startswith(f"{run / 'step_2' / harm.file}") and "\n" not in fault, (harm.name, fault)
    if all_arrays:
        assert_seeded(loaded, 1)
    step, (again,) = newest_valid_step(run)  # what `--resume` goes on from
    assert step == 1 and again.partition(": ")[0] == fault.partition(": ")[0], harm.name
    with pytest.raises(InputError) as refused:
        load_checkpoint(run, step=2, groups=groups)
    assert str(refused.value).startswith(fault.partition(": ")[0]), harm.name
    return FOUND


def outcomes(run: Path, harms: Iterable[Harm], **options: bool) -> Counter[str]:
    """What came of each harm, done to a whole run."""
    found: Counter[str] = Counter()
    step, copy = run / "step_2", run.parent / "whole"
    shutil.copytree(step, copy)
    for harm in harms:
        harm.do(step)
        found[outcome(run, harm, **options)] += 1
        _remove(step)
        shutil.copytree(copy, step)
    assert_seeded(load_checkpoint(run, step=2), 2)
    return found


def _remove(path: Path) -> None:
    path.unlink() if path.is_symlink() else shutil.rmtree(path)


def some(harms: Iterable[Harm], witness: int) -> list[Harm]:
    """As many as the tier has, spread over all."""
    every = list(harms)
    number = min(len(every), of_tier(witness, len(every)))
    return [every[i * len(every) // number] for i in range(number)]


# --- bits, ends and whole files


def flip(name: str, byte: int, bit: int) -> Harm:
    def do(step: Path) -> None:
        content = bytearray((step / name).read_bytes())
        content[byte] ^= 1 << bit
        (step / name).write_bytes(content)

    return Harm(f"bit {bit} of byte {byte} of {name}", do, name)


def cut(name: str, size: int) -> Harm:
    return Harm(f"{name} ends at {size}", lambda step: os.truncate(step / name, size), name)


def lose(name: str) -> Harm:
    return Harm(f"{name} is lost", lambda step: (step / name).unlink(), "" if name == "manifest.json" else name)


def test_flips_cuts_and_losses_are_all_found(run, figures):
    step, rng = run / "step_2", np.random.default_rng(SEED)
    names = files_of(step)
    sizes = {name: (step / name).stat().st_size for name in names}
    assert {"manifest.json", "metadata.json", "config.yaml", "files/seed"} < set(names)
    assert sum(name.startswith("arrays/") for name in names) >= 5
    num_flips = max(len(names), of_tier(0, NUM_FLIPS))
    weights = np.array([*sizes.values()]) / sum(sizes.values())
    flipped = [*names, *rng.choice(names, num_flips - len(names), p=weights)]  # one in every file, the rest by size
    harms = [flip(name, int(rng.integers(sizes[name])), int(rng.integers(8))) for name in flipped]
    cuts = [cut("manifest.json", sizes["manifest.json"] - 1)]  # the end of its last line
    cuts += [cut(name, int(rng.integers(sizes[name]))) for name in rng.choice(names, of_tier(3, NUM_CUTS) - 1)]
    losses = [lose(name) for name in rng.choice(names, of_tier(3, NUM_LOSSES))]
    for what, some_of_them in (("flips", harms), ("cuts", cuts), ("losses", losses)):
        shutil.rmtree(run.parent / "whole", ignore_errors=True)
        assert outcomes(run, some_of_them, all_arrays=False) == {FOUND: len(some_of_them)}
        figures(3, f"{what} in a checkpoint", len(some_of_them), "100% found, the file named, the older step read")


# --- files that nobody listed, and files that changed places

# Some are names of Orbax' own, of another format or process.
UNLISTED = (
    "notes.txt", ".DS_Store", "step_1", "files/more.json", "files/encoder/.hidden", "arrays/notes.txt",
    "arrays/checkpoint", "arrays/_sharding", "arrays/_CHECKPOINT_METADATA", "arrays/_METADATA.old", "arrays/.zarray",
    "arrays/commit_success.txt", "arrays/descriptor/descriptor.pbtxt", "arrays/array_metadatas/process_7",
    "arrays/ocdbt.process_7/manifest.ocdbt", "arrays/d/more", "arrays/manifest.ocdbt.__lock",
    "arrays/params.kernel/.zarray", "arrays/params.kernel/0.0",
)  # fmt: skip
CONTENTS = {
    "nothing": lambda step: b"",
    "noise": lambda step: np.random.default_rng(SEED).bytes(200),
    "text": lambda step: b"A note.\n",
    "an object": lambda step: b"{}",
    "a file of step 1": lambda step: (step.with_name("step_1") / "arrays" / "_METADATA").read_bytes(),
}


def unlisted(name: str, content: str) -> Harm:
    def do(step: Path) -> None:
        (step / name).parent.mkdir(parents=True, exist_ok=True)
        if not (step / name).exists():
            (step / name).write_bytes(CONTENTS[content](step))

    return Harm(f"{name} with {content}", do)


def swapped(one: str, other: str) -> Harm:
    def do(step: Path) -> None:
        (step / one).rename(step / "aside")
        (step / other).rename(step / one)
        (step / "aside").rename(step / other)

    return Harm(f"{one} and {other} swapped", do)


def of_the_other_step(name: str) -> Harm:
    """Data files have names of their own in each step."""

    def do(step: Path) -> None:
        older = step.with_name("step_1")
        others = [path for path in (older / name).parent.iterdir() if path.is_file()]
        shutil.copyfile(older / name if (older / name).exists() else others[0], step / name)

    return Harm(f"{name} of step 1", do)


def swap_steps(step: Path) -> None:
    """Each whole, under the other's name: the older one, under the newer name, is no newer one."""
    shutil.rmtree(step)
    shutil.copytree(step.with_name("step_1"), step)


def test_files_that_are_unlisted_or_swapped_are_found_or_harmless(run, figures):
    names = files_of(run / "step_2")
    harms = some((unlisted(*case) for case in product(UNLISTED, CONTENTS)), 6)
    found = outcomes(run, harms)
    assert found[FOUND] + found[HARMLESS] == len(harms)
    figures(3, "unlisted files", len(harms), f"{found[HARMLESS]} harmless, {found[FOUND]} found")
    swaps = [swapped(*pair) for pair in combinations(names, 2)] + [of_the_other_step(name) for name in names]
    harms = [*some(swaps, 5), Harm("step 1 under the name of step 2", swap_steps, "metadata.json")]
    shutil.rmtree(run.parent / "whole")
    found = outcomes(run, harms)
    assert found[FOUND] + found[HARMLESS] == len(harms) and found[FOUND]
    figures(3, "swapped files", len(harms), f"{found[FOUND]} found, {found[HARMLESS]} of the same content")


# --- links


def linked(name: str, way: str) -> Harm:
    """A file or folder of the step, as a link to somewhere, or something that is no file."""

    def do(step: Path) -> None:
        place, outside = step / name, step.parent.parent / "outside"
        shutil.rmtree(outside, ignore_errors=True)
        outside.mkdir()
        if way == "hard link":
            os.link(place, outside / "copy")
            return
        place.rename(outside / "moved")
        targets = {
            "outside": outside / "moved",
            "inside": step / "config.yaml",
            "step 1": step.with_name("step_1") / name,
            "nowhere": outside / "absent",
            "itself": place,
            "/dev/zero": Path("/dev/zero"),
        }
        if way == "pipe":
            os.mkfifo(place)
        elif way == "folder":
            place.mkdir()
        else:
            place.symlink_to(targets[way])

    return Harm(f"{name} is a link: {way}", do)


WAYS = ("outside", "inside", "step 1", "nowhere", "itself", "/dev/zero", "pipe", "folder", "hard link")


def test_links_are_found_or_harmless(run, figures):
    step = run / "step_2"
    names = files_of(step)
    folders = sorted(path.relative_to(step).as_posix() for path in step.rglob("*") if path.is_dir())
    harms = [linked(name, way) for name, way in product(names, WAYS)]
    harms += [linked(name, way) for name, way in product(folders, WAYS) if way not in ("pipe", "folder", "hard link")]
    harms = some(harms, 8)
    found = outcomes(run, harms)
    assert found[FOUND] + found[HARMLESS] == len(harms) and found[FOUND]
    figures(3, "links", len(harms), f"{found[FOUND]} found, {found[HARMLESS]} lead to what was there")


def test_a_step_that_is_a_link_is_read_and_goes_when_its_turn_comes(run, tmp_path):
    """Who has moved a step to a larger disk, and linked it, keeps it there."""
    elsewhere = tmp_path / "elsewhere"
    shutil.move(run / "step_2", elsewhere)
    (run / "step_2").symlink_to(elsewhere)
    (run / "step_3").symlink_to(run / "step_1")  # no newer step, whatever its name says
    loaded = load_checkpoint(run)
    assert_seeded(loaded, 2)
    assert loaded.skipped == (f"{run / 'step_3' / 'metadata.json'}: is of step 1",)
    save_seeded(run, 2, 4)
    save_seeded(run, 4, 4, keep=1)
    assert [path.name for path in run.iterdir()] == ["step_4"]
    assert_seeded(load_checkpoint(elsewhere), 2)


# --- manifests that are signed anew: every file is as it is listed

WRONG = (None, True, -1, 1.5, 10**30, "", "x", "<foo", "float32", "O", [], [None], [-1], [2**62, 0], {}, {"a": 1})
FIELDS = (
    ("format",), ("step",), ("versions",), ("groups",), ("leaves",), ("user",), ("groups", 0),
    *(("leaves", leaf) for leaf in ("params/kernel", "key", "step")),
    *(("leaves", leaf, "shape") for leaf in ("params/kernel", "constants/empty", "key", "step")),
    *(("leaves", leaf, "dtype") for leaf in ("params/kernel", "params/half", "constants/empty", "key", "step")),
    ("leaves", "params/kernel", "key_impl"), ("leaves", "key", "key_impl"), ("leaves", "params/kernel", "python"),
    ("leaves", "step", "python"), ("leaves", "params/kernel/more"), ("leaves", "params"), ("leaves", "params//kernel"),
    ("leaves", "other/leaf"), ("leaves", ""), ("leaves", "params/kernel", "shape", 0),
)  # fmt: skip


def signed_anew(harm: Harm) -> Harm:
    def do(step: Path) -> None:
        harm.do(step)
        write_manifest(step)

    return Harm(f"{harm.name}, signed", do)


def changed(field: tuple, value: object) -> Harm:
    """metadata.json says something else; `...` takes a field away."""

    def do(step: Path) -> None:
        record = json.loads((step / "metadata.json").read_text())
        inner = record
        for name in field[:-1]:
            inner = inner[name]
        if value is not ...:
            inner[field[-1]] = value
        elif isinstance(inner, list):
            del inner[field[-1]]
        else:
            inner.pop(field[-1], None)
        (step / "metadata.json").write_text(json.dumps(record))

    return Harm(f"{'.'.join(map(str, field))} = {value!r}", do)


def written(name: str, content: bytes) -> Harm:
    return Harm(f"{name} is {content[:20]!r}", lambda step: (step / name).write_bytes(content))


def outcome_of_signed(run: Path, harm: Harm) -> str:
    """As `outcome`, or refused by name; what is read is no other than what was saved, though it may be less."""
    try:
        loaded = load_checkpoint(run)
    except InputError as error:  # another format
        assert str(error).startswith(f"{run / 'step_2'}"), harm.name
        return FOUND
    if loaded.step == 1:
        return outcome(run, harm)
    there, saved = leaf_bytes(loaded.arrays), leaf_bytes(seeded_arrays(2))
    assert loaded.skipped == () and there.items() <= saved.items(), harm.name
    assert isinstance(loaded.metadata, dict) and isinstance(loaded.config, dict), harm.name
    return HARMLESS


def data_files(step: Path) -> set[str]:
    """Numbers, of which nothing but the manifest has a hash."""
    return {name for name in files_of(step) if "/d/" in name}


# Where a file is gone, Orbax leaves a future of its own behind.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_signed_anew_is_found_or_harmless(run, figures):
    step, rng = run / "step_2", np.random.default_rng(SEED)
    names, sizes = files_of(step), {name: (step / name).stat().st_size for name in files_of(step)}
    listed = [name for name in names if name != "manifest.json"]
    harms = [changed(field, value) for field, value in product(FIELDS, (*WRONG, ...))]
    harms += [written(name, content) for name in listed for content in (b"", b"{}", b"[]", b"\xff\xfe", b"a: [")]
    harms += [lose(name) for name in listed]
    harms += [cut(name, int(rng.integers(sizes[name]))) for name in listed]
    structure = [name for name in listed if name.startswith("arrays/") and name not in data_files(step)]
    harms += [flip(n, int(rng.integers(sizes[n])), int(rng.integers(8))) for n in rng.choice(structure, 100)]
    harms = some(map(signed_anew, harms), 8)
    shutil.copytree(step, run.parent / "whole")
    found: Counter[str] = Counter()
    for harm in harms:
        harm.do(step)
        found[outcome_of_signed(run, harm)] += 1
        shutil.rmtree(step)
        shutil.copytree(run.parent / "whole", step)
    assert found[FOUND] + found[HARMLESS] == len(harms) and found[FOUND]
    figures(3, "manifest hashed again", len(harms), f"{found[FOUND]} found, {found[HARMLESS]} harmless")
