"""Small files that become large ones, each met in a process of its own: `python bombs.py NAME FOLDER MEGABYTES`.

Prints one line of JSON: what came of it, the peak of memory and the CPU seconds of reading. Memory is counted from when
the bomb has been made. More than the limit and three gigabytes is not given, so that no bomb takes the machine along.
"""

import gzip
import json
import resource
import struct
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # of a script, only its own folder is there
from support import bombs as tiny_bombs  # noqa: E402

MB = 10**6
_PIECE = 16 * MB
_NEVER_MORE = 3_000  # MB above the limit


@dataclass(frozen=True)
class Bomb:
    """A hostile file.

    Attributes:
        make: into an empty folder; told how many megabytes it is to become.
        read: reads it as its users do; gives how much it has seen where that is streamed.
        is_streamed: it is legal and must be read; else it must be refused.
        share: of these megabytes, the limit that is asked for.
        seconds: of CPU time, the most that it may take.
    """

    make: Callable[[Path, int], object]
    read: Callable[[Path], object]
    is_streamed: bool = False
    share: float = 1 / 16
    seconds: int = 20


def _packed(path: Path, pieces: Iterable[bytes], megabytes: int) -> None:
    """A .gz of members that repeat: as long as wanted, made of one."""
    piece = gzip.compress(b"".join(pieces), 9)
    size = len(gzip.decompress(piece))
    with path.open("wb") as file:
        for _ in range(max(1, megabytes * MB // size)):
            file.write(piece)


def _zeros_gz(folder: Path, megabytes: int) -> None:
    _packed(folder / "a.txt.gz", [bytes(min(_PIECE, megabytes * MB))], megabytes)


def _read_text(folder: Path) -> object:
    from qrag_jax.files.text_files import read_text_file

    return read_text_file(folder / "a.txt.gz", "a text")


def _one_line_gz(folder: Path, megabytes: int) -> None:
    with (folder / "a.jsonl.gz").open("wb") as file:
        file.write(gzip.compress(b'{"question": "'))
        piece = gzip.compress(b"x" * MB)
        for _ in range(megabytes):
            file.write(piece)


def _read_lines(folder: Path) -> object:
    from qrag_jax.files.text_files import read_json_lines

    return sum(1 for _ in read_json_lines(next(folder.glob("a.jsonl*")), "rows"))


def _many_lines_gz(folder: Path, megabytes: int) -> None:
    line = b'{"text": "' + b"Rye is a grass. " * 60 + b'"}\n'
    _packed(folder / "a.jsonl.gz", [line * 1_000], megabytes)


def _text(folder: Path, megabytes: int) -> None:
    with (folder / "a.txt").open("wb") as file:
        for _ in range(megabytes):
            file.write(b"Rye is a grass. " * (MB // 16))


def _read_documents(folder: Path) -> object:
    from qrag_jax.documents.read import read_files

    return len(read_files(folder))


def _read_stdin(folder: Path) -> object:
    from qrag_jax.documents.read import read_files

    with (folder / "a.txt").open() as file:
        sys.stdin = file
        return len(read_files("-"))


def _endless(folder: Path, megabytes: int) -> None:
    (folder / "a.txt").symlink_to("/dev/zero")


def _read_endless(folder: Path) -> object:
    from qrag_jax.documents.read import read_files

    with (folder / "a.txt").open() as file:
        sys.stdin = file
        return len(read_files("-", "utf-16"))


def _many_texts(folder: Path, megabytes: int) -> None:
    """Each within the limit, all together far above."""
    for number in range(32):
        with (folder / f"{number}.txt").open("wb") as file:
            for _ in range(megabytes // 32):
                file.write(b"Rye is a grass. " * (MB // 16))


def _yaml_aliases(folder: Path, megabytes: int) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 10) + "]" for n in range(1, 40)]
    (folder / "a.yaml").write_text("\n".join(lines))


def _yaml_keys(folder: Path, megabytes: int) -> None:
    (folder / "a.yaml").write_text("".join(f"k{n}: 1\n" for n in range(100_000))[: 2**20 - 10])


def _yaml_depth(folder: Path, megabytes: int) -> None:
    (folder / "a.yaml").write_text("[" * 500_000 + "]" * 500_000)


def _read_yaml(folder: Path) -> object:
    from qrag_jax.config import load_config
    from qrag_jax.eval.study.config import StudyConfig

    return load_config(StudyConfig, folder / "a.yaml")


def _json_depth(folder: Path, megabytes: int) -> None:
    (folder / "a.json").write_bytes(b"[" * (megabytes // 10) * MB)


def _json_values(folder: Path, megabytes: int) -> None:
    """Three bytes on the disk, 64 in memory."""
    (folder / "a.json").write_bytes(b'{"a": [' + b"[]," * (megabytes // 10 * MB // 3) + b"[]]}")


def _read_json(folder: Path) -> object:
    from qrag_jax.files.whole_file import read_json

    return len(read_json(folder / "a.json"))


def _parquet(folder: Path, column: object) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": column}), folder / "a.parquet", store_schema=False)


def _parquet_dictionary(folder: Path, megabytes: int) -> None:
    import pyarrow as pa

    indices = pa.array([0] * megabytes, pa.int32())
    _parquet(folder, pa.DictionaryArray.from_arrays(indices, pa.array(["x" * MB])))


def _parquet_nested(folder: Path, megabytes: int) -> None:
    """One row, whose list has a long text many times."""
    import pyarrow as pa

    texts = pa.DictionaryArray.from_arrays(pa.array([0] * megabytes, pa.int32()), pa.array(["x" * MB]))
    _parquet(folder, pa.ListArray.from_arrays(pa.array([0, megabytes], pa.int32()), texts))


def _parquet_runs(folder: Path, megabytes: int) -> None:
    import numpy as np

    _parquet(folder, np.zeros(megabytes * MB // 8, np.int64))


def _read_parquet(folder: Path) -> object:
    from qrag_jax.files.parquet import read_parquet

    return read_parquet(folder / "a.parquet").num_rows


def _arrow(folder: Path, megabytes: int, is_stream: bool, num_batches: int, compression: str | None) -> None:
    import numpy as np
    import pyarrow as pa

    batch = pa.record_batch({"v": np.zeros(megabytes * MB // 8 // num_batches, np.int64)})
    new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with new(folder / "a.arrow", batch.schema, options=options) as out:
        for _ in range(num_batches):
            out.write_batch(batch)


def _read_arrow(folder: Path) -> object:
    from qrag_jax.files.parquet import read_arrow

    return read_arrow(folder / "a.arrow").num_rows


def _sealed_tree(folder: Path, megabytes: int) -> None:
    import hashlib

    _arrow(folder, megabytes, True, 1, "zstd")
    content = (folder / "a.arrow").read_bytes()
    (folder / "a.arrow").write_bytes(content + b"qrag_jax sha256 " + hashlib.sha256(content).digest())


def _read_trees(folder: Path) -> object:
    from qrag_jax.chunking.tree.tree_files import load_trees

    return len(load_trees(folder / "a.arrow"))


def _npy(folder: Path, megabytes: int) -> None:
    """A header that promises what is not there."""
    import numpy as np

    with (folder / "v.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (megabytes * MB, 1024)}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(4_096))


def _read_npy(folder: Path) -> object:
    from qrag_jax.files.vector_files import read_vectors

    return read_vectors(folder / "v.npy").shape


def _gguf_count(folder: Path, megabytes: int) -> None:
    """As many metadata fields as there could be, and one text that takes all memory."""
    (folder / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60) + bytes(100))


def _gguf_texts(folder: Path, megabytes: int) -> None:
    """Texts of two letters: ten bytes on the disk, sixty in memory."""
    count = megabytes * MB // 10
    with (folder / "m.gguf").open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1))
        file.write(struct.pack("<Q1sIIQ", 1, b"a", 9, 8, count))
        piece = (struct.pack("<Q", 2) + b"ab") * (MB // 10)
        for _ in range(megabytes):
            file.write(piece)


def _read_gguf(folder: Path) -> object:
    from qrag_jax.models.gguf.file import read_gguf

    return len(read_gguf(folder / "m.gguf").metadata)


def _tokenizer(**parts: object) -> Callable[[Path, int], None]:
    def make(folder: Path, megabytes: int) -> None:
        vocab = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4}
        added = [{"id": n, "content": token, "special": True} for token, n in vocab.items() if n < 4]
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        template = {
            "type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2],
        }  # fmt: skip
        values = {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [one | flags for one in added],
            "normalizer": None, "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": template,
            "decoder": None, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"},
        } | parts  # fmt: skip
        (folder / "tokenizer.json").write_text(json.dumps(values))

    return make


def _replace(pattern: dict[str, str], content: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _read_tokenizer(folder: Path) -> object:
    from qrag_jax.models.encoder.tokenizer import TextTokenizer

    return TextTokenizer.from_file(folder / "tokenizer.json").count("a" * 40 + "b")


def _template(source: str) -> Callable[[Path, int], object]:
    return lambda folder, megabytes: (folder / "t.jinja").write_text(source)


def _render(folder: Path) -> object:
    from qrag_jax.models.chat.render import render_chat
    from qrag_jax.types import Message

    return len(render_chat((folder / "t.jinja").read_text(), [Message("user", "Hi")], []))


_DOUBLES = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"


def _safetensors(header: Callable[[int], bytes], stated: int | None = None) -> Callable[[Path, int], None]:
    def make(folder: Path, megabytes: int) -> None:
        content = header(megabytes)
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", stated or len(content)) + content)

    return make


def _read_tensors(folder: Path) -> object:
    from qrag_jax.models.weights.tensor_files import FolderTensors

    tensors = FolderTensors(folder)
    return sum(tensors[name].nbytes for name in tensors)


def _many_tensors(megabytes: int) -> bytes:
    one = '"{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    return ("{" + ",".join(one.format(n) for n in range(min(megabytes, 90) * MB // 60)) + "}").encode()


def _config(**values: object) -> Callable[[Path, int], object]:
    return lambda folder, megabytes: (folder / "config.json").write_text(json.dumps(values))


def _read_encoder(folder: Path) -> object:
    from qrag_jax.models.encoder.hf_config import read_encoder_config
    from qrag_jax.models.encoder.table import weight_table

    return weight_table(read_encoder_config(folder))


def _read_decoder(folder: Path) -> object:
    from qrag_jax.models.decoder.hf_config import read_decoder_config

    return read_decoder_config(folder)


SIZES = {
    "vocab_size": 10, "hidden_size": 4, "num_hidden_layers": 10**12, "num_attention_heads": 2, "intermediate_size": 4,
    "max_position_embeddings": 8,
}  # fmt: skip

BOMBS: dict[str, Bomb] = {
    "gzip: zeros": Bomb(_zeros_gz, _read_text),
    "gzip: one line of JSON": Bomb(_one_line_gz, _read_lines),
    "gzip: lines of JSON, streamed": Bomb(_many_lines_gz, _read_lines, is_streamed=True, share=4),
    "text: one file": Bomb(_text, _read_documents),
    "text: standard input": Bomb(_text, _read_stdin),
    "text: standard input without end": Bomb(_endless, _read_endless),
    "text: many files": Bomb(_many_texts, _read_documents),
    "YAML: aliases of aliases": Bomb(_yaml_aliases, _read_yaml),
    "YAML: keys": Bomb(_yaml_keys, _read_yaml),
    "YAML: depth": Bomb(_yaml_depth, _read_yaml),
    "JSON: depth": Bomb(_json_depth, _read_json, share=1),
    "JSON: small values": Bomb(_json_values, _read_json, share=1 / 5),
    "Parquet: dictionary": Bomb(_parquet_dictionary, _read_parquet),
    "Parquet: dictionary in a list": Bomb(_parquet_nested, _read_parquet),
    "Parquet: run lengths": Bomb(_parquet_runs, _read_parquet),
    "Arrow file: compressed, one batch": Bomb(lambda f, n: _arrow(f, n, False, 1, "zstd"), _read_arrow),
    "Arrow stream: compressed, one batch": Bomb(lambda f, n: _arrow(f, n, True, 1, "zstd"), _read_arrow),
    "Arrow stream: compressed, many batches": Bomb(lambda f, n: _arrow(f, n, True, 50, "lz4"), _read_arrow),
    "Arrow file: mapped, not compressed": Bomb(lambda f, n: _arrow(f, n, False, 4, None), _read_arrow),
    "trees: sealed and compressed": Bomb(_sealed_tree, _read_trees),
    "npy: header": Bomb(_npy, _read_npy),
    "GGUF: counts": Bomb(_gguf_count, _read_gguf),
    "GGUF: short texts": Bomb(_gguf_texts, _read_gguf),
    "tokenizer: text that grows": Bomb(
        _tokenizer(normalizer={"type": "Sequence", "normalizers": [_replace({"String": "a"}, "a" * 10)] * 12}),
        _read_tokenizer,
    ),
    "tokenizer: slow pattern": Bomb(
        _tokenizer(
            pre_tokenizer={
                "type": "Split",
                "pattern": {"Regex": "(a+)+$"},
                "behavior": "Isolated",
                "invert": False,
            }  # fmt: skip
        ),
        _read_tokenizer,
    ),
    "template: text that doubles": Bomb(_template(_DOUBLES), _render),
    "template: long loops": Bomb(_template("{% for a in range(9999) %}" * 3 + "{% endfor %}" * 3), _render),
    "safetensors: size of the header": Bomb(_safetensors(lambda _: b"{}", 2**60), _read_tensors),
    "safetensors: blank header": Bomb(_safetensors(lambda n: b"{" + b" " * (min(n, 90) * MB)), _read_tensors),
    "safetensors: many tensors": Bomb(_safetensors(_many_tensors), _read_tensors),
    "config of an encoder: layers": Bomb(_config(model_type="bert", **SIZES), _read_encoder),
    "config of a decoder: layers": Bomb(_config(model_type="llama", **SIZES), _read_decoder),
}


def _document(name: str, content: Callable[[], bytes], is_streamed: bool) -> Bomb:
    """A file that is converted in a process of its own, which counts too."""

    def read(folder: Path) -> object:
        from qrag_jax.documents.read import read_files

        return len(read_files(folder / name))

    return Bomb(lambda folder, _: (folder / name).write_bytes(content()), read, is_streamed, share=1, seconds=5)


BOMBS |= {name: _document(file, content, False) for name, (file, content) in tiny_bombs.REFUSED.items()}
BOMBS |= {name: _document(file, content, True) for name, (file, content) in tiny_bombs.READ.items()}


def main() -> None:
    name, folder, megabytes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    bomb = BOMBS[name]
    bomb.make(folder, megabytes)
    limit = max(1, int(megabytes * bomb.share)) * MB
    from qrag_jax.files.reading import read_with
    from qrag_jax.types import InputError, UsageError

    resource.setrlimit(resource.RLIMIT_DATA, (limit + _NEVER_MORE * MB,) * 2)
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory from here on
    start, before = time.process_time(), _children()
    try:
        with read_with(max_bytes=limit):
            came = {"read": bomb.read(folder)}
    except (InputError, UsageError) as error:
        came = {"refused": f"{type(error).__name__}: {error}"[:300]}
    except BaseException as error:  # noqa: BLE001 -- whatever it is, it is told
        came = {"raised": f"{type(error).__name__}: {error}"[:300]}
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 // MB for line in status if line.startswith("VmHWM"))
    children = _children()
    seconds = time.process_time() - start + children.ru_utime + children.ru_stime - before.ru_utime - before.ru_stime
    peak = max(peak, children.ru_maxrss * 1024 // MB)
    print(json.dumps(came | {"peak": peak, "limit": limit // MB, "seconds": round(seconds, 2)}))


def _children() -> resource.struct_rusage:
    return resource.getrusage(resource.RUSAGE_CHILDREN)


if __name__ == "__main__":
    main()
