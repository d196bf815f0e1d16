"""`qrag llm bench` with tiny decoders; no second is asserted."""

import json

import pytest
from support.talkers import tiny_talker

from qrag_jax.cli.llm import _clock, _format
from qrag_jax.cli.main import main
from qrag_jax.models.decoder.bench import Round, Speed, Work
from qrag_jax.models.decoder.weights import save_decoder
from qrag_jax.service.llm_bench import Benched, build_values

SMALL = "--prompt_tokens 20 --answer_tokens 5 --rounds 2 --rows 1,2 --no_compile_cache".split()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "head_dim": 8, "num_layers": 1}  # which blocks can hold
    folder, talker = tmp_path_factory.mktemp("talker"), tiny_talker(**sizes)
    save_decoder(folder, talker.config, talker.params, talker.tokenizer)
    return str(folder)


def test_json_has_speeds_memory_and_a_build(model, capsys):
    assert main(["llm", "bench", model, *SMALL, "--chunks", "100", "--storage", "int8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["source"] == model and found["model"].startswith("local:")
    assert found["storage"] == "int8" and found["model"].split(":")[2] == "int8-float32"
    assert [(one["rows"], one["prompt_tokens"], one["answer_tokens"]) for one in found["speeds"]] == [
        (1, 20, 5),
        (2, 20, 5),
    ]
    for one in found["speeds"]:
        for name in ("read_tokens_per_second", "write_tokens_per_second"):
            assert len(one[name]["rounds"]) == 2 and min(one[name]["rounds"]) > 0
            assert min(one[name]["rounds"]) <= one[name]["median"] <= max(one[name]["rounds"])
    build = found["build"]
    assert (build["num_chunks"], build["rows"]) == (100, 2) and build["seconds"] > 0
    assert (build["tokens_read"], build["tokens_written"]) == (2000, 500)
    assert found["load_seconds"] > 0 and found["num_parameters"] > 0 and "peak_memory_bytes" in found


def test_what_is_printed():
    rounds = Round(2.0, 3.0), Round(4.0, 2.0), Round(8.0, 1.0)
    one, eight = (Speed(Work(rows, 512, 65), Round(10.0, 5.0), rounds) for rows in (1, 8))
    benched = Benched(
        "mine.gguf", "local:ab", "file", "cpu", 135 * 10**6, 3.21, (700 * 10**6, 1200 * 10**6), (one, eight)
    )
    text = _format(benched, 20_000)
    assert text.splitlines() == [
        "mine.gguf: 135 million parameters, file, cpu",
        "load      3.2 s; the first rounds took 18.0 s longer (compiling)",
        "memory    0.70 GB after loading, 1.20 GB at most, without Python and JAX",
        "speed     tokens/s of all rows, median of 3 (range); prompts of 512, answers of 65 tokens",
        "  1 row   read 128.0 (64.0 to 256.0), write 32.0 (21.3 to 64.0)",
        "  8 rows  read 1,024.0 (512.0 to 2,048.0), write 256.0 (170.7 to 512.0)",
        # 2,500 rounds of 6 seconds
        "build     20,000 chunks, 8 at a time: about 4:10 (hours:minutes), 10,240,000 tokens read, 1,300,000 written",
    ]
    assert build_values(one, 3)["seconds"] == 18
    assert "memory" not in _format(Benched("m", "m", "int8", "cpu", 1, 1.0, None, (one,)), 1)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.5, "0:01"), (60.0, "0:01"), (61.0, "0:02"), (4_442_520.0, "1,234:02")]
)
def test_hours_and_minutes(seconds, shown):
    assert _clock(seconds) == shown


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["MODEL", "--storage", "file"],
            "storage 'file' works only with .gguf files: choose float32, bfloat16 or int8",
        ),
        (["http://127.0.0.1:8080/v1"], "bench measures models on this machine, not servers"),
        (["MODEL", "--prompt_tokens", "95"], "together 159, and the model's window is 96"),
    ],
)
def test_what_cannot_be_measured_is_refused(argv, message, model, capsys):
    assert main(["llm", "bench", *(model if word == "MODEL" else word for word in argv)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


def test_a_model_beyond_memory_is_refused_before_it_is_loaded(model, capsys, monkeypatch):
    monkeypatch.setattr("qrag_jax.models.decoder.memory.available_bytes", lambda: 50_000)
    monkeypatch.setattr("qrag_jax.service.llm_bench.LocalGenerator", lambda *what, **more: pytest.fail())
    assert main(["llm", "bench", model, *SMALL]) == 2
    error = capsys.readouterr().err
    assert "of cache" in error and "GB of memory are available: a model that fits with that cache has at most" in error
