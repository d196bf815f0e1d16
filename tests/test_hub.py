import json
import os
from pathlib import Path

import pytest
from support.stub_hub import reachable_hub

from qrag_jax.files.manifest import files_under, write_manifest
from qrag_jax.hub import _MAX_BESIDE, Place, parse_place, pull_run, push_run, run_files
from qrag_jax.types import InputError, UsageError

REPOSITORY = Place(repository="alice/qa2")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with reachable_hub(tmp_path, monkeypatch) as stub:
        yield stub


def make_step(folder, config="seed: 0\n", step=7):
    """A step folder as checkpoints have it, of plain files."""
    path = folder / f"step_{step}"
    (path / "arrays" / "d").mkdir(parents=True)
    (path / "files").mkdir()
    (path / "arrays" / "d" / "0a").write_bytes(bytes(range(256)) * 8)
    (path / "files" / "tokenizer.json").write_text("{}\n")
    (path / "config.yaml").write_text(config)
    (path / "metadata.json").write_text("{}\n")
    write_manifest(path)
    return path


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files_under(folder)}


def push(where, folder, endpoint=None, step=7, logs=True, **options):
    run = folder / f"run_of_{step}"
    made = make_step(run, step=step) if not run.exists() else run / f"step_{step}"
    if logs:
        (run / "metrics.jsonl").write_text('{"data": {}}\n')
        (run / "times.jsonl").write_text('{"step": 7, "seconds": 1.5}\n')
    return push_run(where, run_files(made, step, "# card\n", run), "a push", endpoint=endpoint, **options)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("alice/qa2", Place(repository="alice/qa2")),
        ("hf://alice/qa2", Place(repository="alice/qa2")),
        ("alice/qa2@v1.0", Place(repository="alice/qa2", revision="v1.0")),
        ("alice/qa2@refs/pr/3", Place(repository="alice/qa2", revision="refs/pr/3")),
    ],
)
def test_a_repository(text, place):
    assert parse_place(text) == place
    assert str(place) == text.removeprefix("hf://")


@pytest.mark.parametrize("text", ["./alice/qa2", "../x", "/mnt/x", "."])
def test_a_folder(text):
    place = parse_place(text)
    assert (str(place.folder), place.repository) == (text.removeprefix("./"), None)


def test_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/alice")
    assert str(parse_place("~/shared")) == "/home/alice/shared"


@pytest.mark.parametrize("text", ["", "alice", "alice/", "/".join("abc"), "alice/qa2@", "a b/c", "https://x.org/a/b"])
def test_no_place(text):
    with pytest.raises(UsageError, match="is not a place to share; write owner/name"):
        parse_place(text)


def test_a_name_that_is_a_folder_here_too(tmp_path):
    (tmp_path / "runs" / "qa2").mkdir(parents=True)
    with pytest.raises(UsageError, match="write ./runs/qa2 for the folder, hf://runs/qa2 for the repository"):
        parse_place("runs/qa2")
    assert parse_place("hf://runs/qa2") == Place(repository="runs/qa2")


def test_a_new_name_below_a_folder_that_is_here_may_be_either(tmp_path):
    """It would be a repository that everybody sees, where a folder was meant."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"write ./shared/qa2 for the folder, hf://shared/qa2 for the repository"):
        parse_place("shared/qa2", is_new=True)
    for text in ("hf://shared/qa2", "file/qa2", "alice/qa2"):
        assert parse_place(text, is_new=True) == Place(repository=text.removeprefix("hf://"))
    assert parse_place("./shared/qa2", is_new=True).folder is not None
    assert parse_place("shared/qa2") == Place(repository="shared/qa2")  # to be read: nothing is made


@pytest.mark.parametrize("kind", ["folder", "hub"])
def test_what_is_pushed_is_pulled(tmp_path, hub, kind):
    place = Place(folder=tmp_path / "shared" / "qa2") if kind == "folder" else REPOSITORY
    address = push(place, tmp_path, hub.endpoint)
    expected = contents(tmp_path / "run_of_7") | {"README.md": b"# card\n"}
    if kind == "folder":
        assert address == str(place) and contents(place.folder) == expected
    else:
        assert address == f"{hub.endpoint}/alice/qa2/commit/{hub.sha('alice/qa2')}"
        assert hub.files("alice/qa2") == expected | {".gitattributes": b"*.bin filter=lfs\n"}
    (tmp_path / "empty").mkdir()  # allowed
    for out in ("empty", "deep/er"):
        step, origin = pull_run(place, tmp_path / out, endpoint=hub.endpoint)
        assert (step, contents(tmp_path / out)) == (7, expected)
        assert origin == (str(place) if kind == "folder" else f"alice/qa2@{hub.sha('alice/qa2')}")
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith((".pull-", ".push-"))]


@pytest.mark.parametrize("kind", ["folder", "hub"])
def test_a_card_or_a_log_that_no_run_has_is_left_where_it_is(tmp_path, hub, kind, monkeypatch):
    place = Place(folder=tmp_path / "shared") if kind == "folder" else REPOSITORY
    push(place, tmp_path, hub.endpoint)
    monkeypatch.setitem(_MAX_BESIDE, "README.md", 7)  # "# card\n" has 7
    monkeypatch.setitem(_MAX_BESIDE, "metrics.jsonl", 12)
    hub.requests.clear()
    with pytest.warns(UserWarning, match=r"metrics\.jsonl is left out: it has 13 bytes, and at most 12") as caught:
        pull_run(place, tmp_path / "out", endpoint=hub.endpoint)
    assert len(caught) == 1
    assert {"README.md", "times.jsonl"} <= contents(tmp_path / "out").keys()
    assert "metrics.jsonl" not in contents(tmp_path / "out")
    assert not any("metrics.jsonl" in request for request in hub.requests)  # not even begun


@pytest.mark.parametrize("kind", ["folder", "hub"])
def test_a_manifest_that_no_run_has_is_not_fetched(tmp_path, hub, kind, monkeypatch):
    place = Place(folder=tmp_path / "shared") if kind == "folder" else REPOSITORY
    push(place, tmp_path, hub.endpoint)
    monkeypatch.setattr("qrag_jax.hub.MAX_JSON_BYTES", 100)
    with pytest.raises(InputError, match=r"step_7/manifest\.json: has more than 100 bytes, too many for such a file"):
        pull_run(place, tmp_path / "out", endpoint=hub.endpoint)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "step_7/config.yaml"])
def test_no_link_out_of_a_run_is_pushed(tmp_path, name):
    run = tmp_path / "run_of_7"
    make_step(run)
    (tmp_path / "id_rsa").write_text("seed: 0\n")  # to the byte what the manifest lists
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "id_rsa")
    with pytest.raises(InputError, match=f"{name}: is a link out of .*/id_rsa, and such links are not followed"):
        push(Place(folder=tmp_path / "shared"), tmp_path, logs=False)
    assert not (tmp_path / "shared").exists()


def test_a_link_within_a_run_is_pushed_as_a_file(tmp_path):
    make_step(tmp_path / "run_of_7")
    (tmp_path / "run_of_7" / "log").write_text("{}\n")
    (tmp_path / "run_of_7" / "metrics.jsonl").symlink_to("log")
    push(Place(folder=tmp_path / "shared"), tmp_path, logs=False)
    assert (tmp_path / "shared" / "metrics.jsonl").read_text() == "{}\n"
    assert not (tmp_path / "shared" / "metrics.jsonl").is_symlink()


@pytest.mark.parametrize("name", ["README.md", "times.jsonl", "step_7/files/tokenizer.json", "step_7/manifest.json"])
def test_no_link_out_of_a_shared_folder_is_pulled(tmp_path, name):
    place = Place(folder=tmp_path / "shared")
    push(place, tmp_path)
    (place.folder / name).rename(tmp_path / "elsewhere")
    (place.folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"{name}: is a link out of "):
        pull_run(place, tmp_path / "out")
    assert not [path for path in tmp_path.iterdir() if path.name in ("out", ".pull-out")]


def test_a_newest_step_that_is_a_link_is_no_reason_to_pull_an_older_one(tmp_path):
    shared = tmp_path / "run_of_7"
    make_step(shared)
    make_step(tmp_path / "elsewhere", step=9)
    (shared / "step_9").symlink_to(tmp_path / "elsewhere" / "step_9")
    with pytest.raises(InputError, match="step_9: is a link out of "):
        pull_run(Place(folder=shared), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_snapshot_in_the_cache_of_the_hub_is_pulled(tmp_path):
    """All its files are links to the blobs beside the snapshots; a link out of the repository is still refused."""
    cache = tmp_path / "models--alice--qa2"
    snapshot = cache / "snapshots" / "abc"
    push(Place(folder=snapshot), tmp_path)
    (cache / "blobs").mkdir()
    for number, path in enumerate(path for path in sorted(snapshot.rglob("*")) if path.is_file()):
        path.rename(cache / "blobs" / str(number))
        path.symlink_to(cache / "blobs" / str(number))
    assert pull_run(Place(folder=snapshot), tmp_path / "out")[0] == 7
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    (cache / "blobs" / "0").rename(tmp_path / "elsewhere")
    (cache / "blobs" / "0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a link out of "):
        pull_run(Place(folder=snapshot), tmp_path / "again")


@pytest.mark.parametrize("name", ["config.yaml", "metadata.json"])
def test_a_manifest_without_a_file_that_every_checkpoint_has_is_refused(tmp_path, hub, name):
    push(REPOSITORY, tmp_path, hub.endpoint)
    (tmp_path / "run_of_7" / "step_7" / name).unlink()
    write_manifest(tmp_path / "run_of_7" / "step_7")
    hub.files("alice/qa2")["step_7/manifest.json"] = (tmp_path / "run_of_7" / "step_7" / "manifest.json").read_bytes()
    with pytest.raises(InputError, match=f"does not list {name}"):
        pull_run(REPOSITORY, tmp_path / "out", endpoint=hub.endpoint)
    assert not (tmp_path / "out").exists()


def test_only_what_the_manifest_lists_is_taken(tmp_path, hub):
    push(REPOSITORY, tmp_path, hub.endpoint)
    hub.files("alice/qa2").update({"step_7/arrays/evil.pkl": b"x", "step_7/extra": b"x", "setup.py": b"x"})
    pull_run(REPOSITORY, tmp_path / "out", endpoint=hub.endpoint)
    assert set(contents(tmp_path / "out")) == set(contents(tmp_path / "run_of_7")) | {"README.md"}
    assert not any(text.endswith(("pkl", "extra", "setup.py", ".gitattributes")) for text in hub.requests)


def test_a_push_replaces_the_step_that_was_there(tmp_path, hub):
    push(REPOSITORY, tmp_path, hub.endpoint)
    first = hub.sha("alice/qa2")
    push(REPOSITORY, tmp_path, hub.endpoint, step=12, logs=False)
    assert {name.partition("/")[0] for name in hub.files("alice/qa2")} == {".gitattributes", "README.md", "step_12"}
    assert pull_run(REPOSITORY, tmp_path / "new", endpoint=hub.endpoint)[0] == 12
    old = Place(repository="alice/qa2", revision=first)
    assert pull_run(old, tmp_path / "old", endpoint=hub.endpoint) == (7, f"alice/qa2@{first}")
    assert contents(tmp_path / "old" / "step_7") == contents(tmp_path / "run_of_7" / "step_7")


def test_one_of_several_steps(tmp_path):
    make_step(tmp_path / "run", step=9)
    make_step(tmp_path / "run", step=10)
    place = Place(folder=tmp_path / "run")
    assert pull_run(place, tmp_path / "newest")[0] == 10
    assert pull_run(place, tmp_path / "older", step=9)[0] == 9
    assert [path.name for path in (tmp_path / "older").iterdir()] == ["step_9"]
    with pytest.raises(UsageError, match="no checkpoint of step 8; choose from 9, 10"):
        pull_run(place, tmp_path / "none", step=8)


def flip(content):
    return bytes([content[0] ^ 1]) + content[1:]


@pytest.mark.parametrize("kind", ["folder", "hub"])
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("arrays/d/0a", flip, "step_7/arrays/d/0a: changed since it was written"),
        ("arrays/d/0a", lambda content: content[:-1], "step_7/arrays/d/0a: 2047 bytes"),
        ("config.yaml", lambda content: None, "step_7/config.yaml: missing"),
        ("manifest.json", lambda content: content[:40], "step_7/manifest.json: not valid JSON"),
        ("manifest.json", lambda content: b'{"files": {}}', "step_7/manifest.json: lists no files"),
    ],
)
def test_damage_is_refused_and_named(tmp_path, hub, kind, name, change, message):
    place = Place(folder=tmp_path / "shared") if kind == "folder" else REPOSITORY
    push(place, tmp_path, hub.endpoint)
    name = f"step_7/{name}"
    files = hub.files("alice/qa2") if kind == "hub" else contents(place.folder)
    damaged = change(files[name])
    if kind == "hub":
        files.pop(name) if damaged is None else files.update({name: damaged})
    else:
        path = place.folder / name
        path.unlink() if damaged is None else path.write_bytes(damaged)
    with pytest.raises(InputError) as caught:
        pull_run(place, tmp_path / "out", endpoint=hub.endpoint)
    assert not isinstance(caught.value, UsageError)
    text = str(caught.value)
    assert message in text and "refused and not kept" in text and ".pull-" not in text
    assert text.endswith("pull again, or have the run pushed again")
    assert not (tmp_path / "out").exists() and not (tmp_path / ".pull-out").exists()


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "a/../../evil", "a\\..\\evil", "C:/evil", ""])
def test_no_name_leads_out_of_the_folder(tmp_path, hub, name):
    push(REPOSITORY, tmp_path, hub.endpoint)
    manifest = json.loads(hub.files("alice/qa2")["step_7/manifest.json"])
    manifest["files"][name] = {"bytes": 1, "sha256": "0"}
    hub.files("alice/qa2")["step_7/manifest.json"] = json.dumps(manifest).encode()
    hub.files("alice/qa2")[f"step_7/{name}"] = b"x"
    before = set(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="is not a file name under the checkpoint"):
        pull_run(REPOSITORY, tmp_path / "out", endpoint=hub.endpoint)
    assert set(tmp_path.rglob("*")) == before
    assert not any("evil" in request for request in hub.requests)


def test_a_download_that_broke_off_goes_on(tmp_path, hub):
    push(REPOSITORY, tmp_path, hub.endpoint)
    hub.failing.add("/files/tokenizer.json")
    with pytest.raises(
        InputError, match="alice/qa2: the download broke off and continues when you pull again: the hub"
    ):
        pull_run(REPOSITORY, tmp_path / "out", endpoint=hub.endpoint)
    assert not (tmp_path / "out").exists() and (tmp_path / ".pull-out").is_dir()
    hub.failing.clear()
    hub.requests.clear()
    pull_run(REPOSITORY, tmp_path / "out", endpoint=hub.endpoint)
    fetched = {request.rpartition("/")[2] for request in hub.requests if request.startswith("GET /alice")}
    assert "tokenizer.json" in fetched and "0a" not in fetched
    assert contents(tmp_path / "out") == contents(tmp_path / "run_of_7") | {"README.md": b"# card\n"}
    assert not (tmp_path / ".pull-out").exists()


@pytest.mark.parametrize("verb", ["push", "pull"])
def test_a_folder_that_holds_anything_is_refused(tmp_path, verb):
    push(Place(folder=tmp_path / "shared"), tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    for name, message in (("full", "is not empty"), ("full/mine", "is a file")):
        with pytest.raises(UsageError, match=f"{name}: {message}; give a folder that is empty"):
            if verb == "push":
                push(Place(folder=tmp_path / name), tmp_path)
            else:
                pull_run(Place(folder=tmp_path / "shared"), tmp_path / name)
    assert contents(tmp_path / "full") == {"mine": b"mine"}


@pytest.mark.parametrize("out", [".", "../here", "../link"])
def test_folders_whose_place_no_other_can_take(tmp_path, monkeypatch, out):
    """A pull of gigabytes ended in an error of the system, or left the shell in a folder that was removed."""
    push(Place(folder=tmp_path / "shared"), tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UsageError, match="is the current folder|is a link"):
        pull_run(Place(folder=tmp_path / "shared"), Path(out))
    assert os.listdir(".") == os.listdir(tmp_path / "empty") == []


def test_a_file_that_changes_while_it_is_pushed(tmp_path):
    step = make_step(tmp_path / "run")
    files = run_files(step, 7, "# card\n")
    (step / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(InputError, match="config.yaml: changed since it was written"):
        push_run(Place(folder=tmp_path / "shared"), files, "a push")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_refusals_of_a_push(tmp_path, hub, monkeypatch):
    def refused(place, **options):
        with pytest.raises(UsageError) as caught:
            push(place, tmp_path, hub.endpoint, **options)
        return str(caught.value)

    assert "bob/qa2: nothing was pushed: your token may not write there" in refused(Place(repository="bob/qa2"))
    assert "leave @v1 out" in refused(Place(repository="alice/qa2", revision="v1"))
    assert "private applies only to a repository" in refused(Place(folder=tmp_path / "x"), private=True)
    assert "nothing was pushed" in refused(Place(repository="alice/..qa2"))
    hub.repositories["alice/other"] = [{"README.md": b"", "model.safetensors": b""}]
    text = refused(Place(repository="alice/other"))
    assert "did not write (model.safetensors); choose another name" in text
    hub.repositories["alice/open"] = [{"README.md": b""}]
    assert "exists and is public" in refused(Place(repository="alice/open"), private=True)
    monkeypatch.setenv("HF_TOKEN", "hf_revoked")
    assert "the hub does not accept your token; run `hf auth login`" in refused(REPOSITORY)
    monkeypatch.delenv("HF_TOKEN")
    hub.requests.clear()
    assert "alice/qa2: a push needs a token; run `hf auth login`, or set HF_TOKEN" in refused(REPOSITORY)
    assert hub.requests == [] and set(hub.repositories) == {"alice/other", "alice/open"}


def test_a_private_repository(tmp_path, hub, monkeypatch):
    push(REPOSITORY, tmp_path, hub.endpoint, private=True)
    assert hub.private == {"alice/qa2"}
    pull_run(REPOSITORY, tmp_path / "mine", endpoint=hub.endpoint)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UsageError, match="no such repository, or a private one that your token may not read"):
        pull_run(REPOSITORY, tmp_path / "theirs", endpoint=hub.endpoint)


def test_front_matter_that_the_hub_refuses(tmp_path, hub):
    files = run_files(make_step(tmp_path), 7, "---\nlicense: nonsense\n---\n")
    with pytest.raises(UsageError, match='nothing was pushed: Invalid metadata in README.md. - "license" must be one'):
        push_run(REPOSITORY, files, "a push", endpoint=hub.endpoint)
    assert list(hub.files("alice/qa2")) == [".gitattributes"]


def test_refusals_of_a_pull(tmp_path, hub):
    hub.gated.add("alice/closed")
    hub.repositories["alice/bert"] = [{"model.safetensors": b"", "step_x/manifest.json": b""}]

    def refused(kind, place, endpoint=hub.endpoint):
        with pytest.raises(InputError) as caught:
            pull_run(place, tmp_path / "out", endpoint=endpoint)
        assert type(caught.value) is kind
        return str(caught.value)

    text = refused(UsageError, Place(repository="alice/absent"))
    assert "alice/absent: nothing was pulled: no such repository" in text
    assert "ask on its page" in refused(UsageError, Place(repository="alice/closed"))
    text = refused(UsageError, Place(repository="alice/bert", revision="v9"))
    assert "alice/bert@v9: nothing was pulled: it has no branch, tag or commit v9" in text
    assert "no checkpoint here (no step_<n>/manifest.json)" in refused(InputError, Place(repository="alice/bert"))
    assert "absent: no such folder" in refused(UsageError, Place(folder=tmp_path / "absent"))
    text = refused(InputError, REPOSITORY, "http://127.0.0.1:9")  # nobody listens there
    assert "alice/qa2: nothing was pulled: the hub could not be reached or failed (" in text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["push", "pull"])
def test_offline(tmp_path, hub, monkeypatch, verb):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="alice/qa2: nothing was pu..ed: HF_HUB_OFFLINE=1 forbids the network; unset"):
        if verb == "push":
            push(REPOSITORY, tmp_path, hub.endpoint)
        else:
            pull_run(REPOSITORY, tmp_path / "out", endpoint=hub.endpoint)
    assert hub.requests == []
