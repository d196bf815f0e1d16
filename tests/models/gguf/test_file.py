import struct

import gguf
import numpy as np
import pytest
from support.gguf_files import write_gguf

from qrag_jax.models.gguf.file import read_gguf
from qrag_jax.types import InputError

RNG = np.random.default_rng(0)
KINDS = {"f16": "F16", "bf16": "BF16", "q4_0": "Q4_0", "q4_1": "Q4_1", "q5_0": "Q5_0", "q8_0": "Q8_0"}
TENSORS = {name: RNG.normal(size=(3, 64)).astype(np.float32) for name in ("f32", *KINDS)}
FIELDS = {"whole": 7, "real": 0.5, "yes": True, "text": "grüße", "texts": ["a", "", "ü"], "numbers": [1, -2, 3]}


@pytest.fixture
def path(tmp_path):
    return write_gguf(tmp_path / "tiny.gguf", FIELDS, TENSORS, KINDS)


def test_reads_what_the_gguf_package_wrote(path):
    file = read_gguf(path)
    metadata = dict(file.metadata)
    np.testing.assert_array_equal(metadata.pop("numbers"), [1, -2, 3])
    assert metadata.pop("general.architecture") == "llama"
    assert metadata == {name: value for name, value in FIELDS.items() if name != "numbers"}
    assert {name: tensor.kind.lower() for name, tensor in file.tensors.items()} == {name: name for name in TENSORS}
    np.testing.assert_array_equal(file.read("f32"), TENSORS["f32"])
    for reference in gguf.GGUFReader(path).tensors:  # the package's own reader, which trusts the file
        numbers = file.read(reference.name)
        assert numbers.dtype == np.float32 and numbers.shape == (3, 64)
        np.testing.assert_array_equal(numbers, gguf.dequantize(reference.data, reference.tensor_type))
        np.testing.assert_allclose(numbers, TENSORS[reference.name], atol=0.3)


def test_a_block_by_hand(tmp_path):
    # Q4_1: half d, half m, 16 bytes; the low half bytes are numbers 0 to 15, the high ones 16 to 31; value q d + m.
    block = np.frombuffer(struct.pack("<ee", 0.5, -1.0) + bytes([0x20 + index for index in range(16)]), np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("x", block.reshape(1, 20), raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    low = [index * 0.5 - 1 for index in range(16)]
    np.testing.assert_array_equal(read_gguf(tmp_path / "one.gguf").read("x"), [low + [2 * 0.5 - 1] * 16])


def test_a_file_cut_anywhere_is_refused(path, tmp_path):
    content = path.read_bytes()
    end = max(tensor.start + tensor.size for tensor in read_gguf(path).tensors.values())
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, 700), *range(700, end, 37), end - 1]:
        cut.write_bytes(content[:size])
        with pytest.raises(InputError, match=r"cut\.gguf: (broken GGUF file|not a GGUF file)"):
            read_gguf(cut)
    cut.write_bytes(content[:end])
    assert len(read_gguf(cut).tensors) == len(TENSORS)


def test_no_altered_byte_of_the_header_raises_anything_else(path, tmp_path):
    content = path.read_bytes()
    start = min(tensor.start for tensor in read_gguf(path).tensors.values())
    altered = tmp_path / "altered.gguf"
    num_refused = 0
    for place in range(start):
        altered.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            file = read_gguf(altered)
        except InputError:
            num_refused += 1
            continue
        for name in file.tensors:
            file.read(name)
    assert num_refused > start / 2


def text(value):
    value = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(value)) + value


def entry(name="x", sizes=(32,), kind=0, offset=0, num_dimensions=None):
    count = len(sizes) if num_dimensions is None else num_dimensions
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", count, *sizes, kind, offset)


def field(name, kind, value):
    return text(name) + struct.pack("<I", kind) + value


def raw(fields=(), tensors=(), version=3, num_tensors=None, num_fields=None, size=4096, order="<"):
    counts = (len(tensors) if num_tensors is None else num_tensors, len(fields) if num_fields is None else num_fields)
    content = b"GGUF" + struct.pack(f"{order}IQQ", version, *counts) + b"".join((*fields, *tensors))
    return content.ljust(size, b"\0")


HUGE = 2**63
HOSTILE = {
    "is 9223372036854775808, more than the file's 4096": raw(num_tensors=HUGE),
    "number of metadata fields is 9223372036854775808, more": raw(num_fields=HUGE),
    "name of metadata field 0 takes 9223372036854775808 bytes": raw([struct.pack("<Q", HUGE)]),
    "field 'a' takes 9223372036854775808 bytes": raw([field("a", 8, struct.pack("<Q", HUGE))]),
    "length of metadata field 'a' is 9223372036854775808": raw([field("a", 9, struct.pack("<IQ", 0, HUGE))]),
    "length of metadata field 'a' is 500000": raw([field("a", 9, struct.pack("<IQ", 8, 500_000))]),
    "'a' is an array of type 9; only": raw([field("a", 9, struct.pack("<IQIQ", 9, 1, 0, 1))]),
    "'a' has type 77, which does not exist": raw([field("a", 77, b"")]),
    "field 'a' occurs twice": raw([field("a", 0, b"1")] * 2),
    "name of metadata field 0 is not UTF-8": raw([field(b"\xff", 0, b"1")]),
    "field 'a' is not UTF-8": raw([field("a", 8, text(b"\xff"))]),
    "one of 3 parts; join them": raw([field("split.count", 2, struct.pack("<H", 3))]),
    "general.alignment is 0;": raw([field("general.alignment", 4, struct.pack("<I", 0))]),
    "general.alignment is 48;": raw([field("general.alignment", 4, struct.pack("<I", 48))]),
    "general.alignment is '32';": raw([field("general.alignment", 8, text("32"))]),
    "version 1: only": raw(version=1),
    "version 4: only": raw(version=4),
    "it is big endian": raw(version=3, order=">"),
    "'x' has 5 dimensions": raw(tensors=[entry(sizes=(1,) * 5)]),
    "'x' has 2147483648 dimensions": raw(tensors=[entry(num_dimensions=2**31)]),
    "'x' has 0 dimensions": raw(tensors=[entry(sizes=())]),
    "'x' has type 999, which": raw(tensors=[entry(kind=999)]),
    "'x' has type I32, which": raw(tensors=[entry(kind=26)]),
    r"'x' has dimensions \[0, 4\]": raw(tensors=[entry(sizes=(0, 4))]),
    r"'x' has dimensions \[33\]; rows of type Q8_0 are multiples of 32": raw(tensors=[entry(sizes=(33,), kind=8)]),
    "'x': 340282366920938463463374607431768211456 bytes at": raw(tensors=[entry(sizes=(2**63, 2**63))]),
    "'x': 128 bytes at offset 9223372036854775808": raw(tensors=[entry(offset=HUGE)]),
    "'x': 128 bytes at offset 4 of the data": raw(tensors=[entry(offset=4)]),
    "'x' occurs twice": raw(tensors=[entry(), entry(offset=128)]),
}


def test_more_texts_than_any_model_has(tmp_path):
    """Ten bytes each there, sixty in memory."""
    count = 2**22 + 1
    (tmp_path / "a.gguf").write_bytes(raw([field("a", 9, struct.pack("<IQ", 8, count) + text("ab") * count)]))
    with pytest.raises(InputError, match="field 'a' is 4194305, and no model has more than 4,194,304"):
        read_gguf(tmp_path / "a.gguf")


@pytest.mark.parametrize("message", HOSTILE)
def test_hostile_headers_are_refused_before_anything_is_made_of_them(tmp_path, message):
    (tmp_path / "hostile.gguf").write_bytes(HOSTILE[message])
    with pytest.raises(InputError, match=f"hostile.gguf: broken GGUF file: .*{message}"):
        read_gguf(tmp_path / "hostile.gguf")


def test_the_same_bytes_without_a_fault_are_read(tmp_path):
    path = tmp_path / "fine.gguf"
    path.write_bytes(raw([field("a", 2, b"\x05\0")], [entry(), entry("y", (4, 2), offset=128)]))
    file = read_gguf(path)
    assert file.metadata == {"a": 5} and file.read("y").shape == (2, 4)


@pytest.mark.parametrize(("content", "message"), [(b"", "not a GGUF file"), (b"GGML....", "not a GGUF file")])
def test_other_files(tmp_path, content, message):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_gguf(tmp_path / "x.gguf")
    with pytest.raises(InputError, match="y.gguf: no such file"):
        read_gguf(tmp_path / "y.gguf")


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "BF16"])
def test_long_tensors_are_taken_in_parts(tmp_path, kind):
    tensor = np.random.default_rng(0).normal(size=(701, 96)).astype(np.float32)  # a part and a bit of the next one
    file = read_gguf(write_gguf(tmp_path / "long.gguf", {}, {"x": tensor}, {"x": kind}))
    known = gguf.GGMLQuantizationType[kind]
    np.testing.assert_array_equal(file.read("x"), gguf.dequantize(gguf.quantize(tensor, known), known))


def test_blocks_that_are_for_no_weights(tmp_path):
    (tmp_path / "a.gguf").write_bytes(raw(tensors=[entry(kind=gguf.GGMLQuantizationType.Q8_1)]))
    file = read_gguf(tmp_path / "a.gguf")
    with pytest.raises(InputError, match="a.gguf: tensor 'x' has type Q8_1, which is not read"):
        file.read("x")
