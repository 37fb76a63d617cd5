"""Broken and hostile files: a clear error that names the file, bounded memory and time, nothing written."""

import json
import tracemalloc

import numpy as np
import pytest
import torch

import weightshare as ws
from compress.forge import about, opened, sealed
from compress.fuzz import fuzz
from compress.samples import assert_same, model_state
from weightshare.compress import Reader, layout
from weightshare.compress.coders import chunks, zstd
from weightshare.compress.packing import pack


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A file in which every coder is used."""
    path = tmp_path_factory.mktemp("good") / "file"
    ws.save(model_state(), path)
    return path.read_bytes()


@pytest.fixture
def refused(tmp_path):
    """Load these bytes, which must be refused with an error that names the file and says this."""

    def load(raw, message, **settings):
        path = tmp_path / "hostile"
        path.write_bytes(raw)
        with pytest.raises(ValueError, match=message) as caught:
            ws.load(path, **settings)
        assert str(path) in str(caught.value)
        assert len(str(caught.value)) < 1000
        assert [entry.name for entry in tmp_path.iterdir()] == ["hostile"]

    return load


def test_mutated_files(tmp_path):
    """Some of what `python tests/compress/fuzz.py` does."""
    assert fuzz(600, 0, tmp_path) == []


def test_every_truncation(good, tmp_path):
    path = tmp_path / "short"
    for size in [*range(0, 300, 7), *range(300, len(good), 397), len(good) - 1]:
        path.write_bytes(good[:size])
        with pytest.raises(ValueError, match="short: "):
            ws.load(path)


def test_every_flipped_byte_of_a_small_file(tmp_path):
    state = {"w": torch.arange(3.0).repeat(100), "b": torch.randn(2)}
    ws.save(state, tmp_path / "file")
    raw = (tmp_path / "file").read_bytes()
    for at in range(len(raw)):
        (tmp_path / "file").write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :])
        with pytest.raises(ValueError, match="file: "):
            ws.load(tmp_path / "file")


def test_resealing_changes_nothing(good, tmp_path):
    """The forger of these tests makes files that are believed, where there is nothing wrong with them."""
    header, data = opened(good)
    (tmp_path / "file").write_bytes(sealed(header, data, about(header)))
    assert_same(ws.load(tmp_path / "file"), model_state())


def test_no_file_and_other_files(refused, tmp_path):
    with pytest.raises(FileNotFoundError):
        ws.load(tmp_path / "nothing")
    with pytest.raises(IsADirectoryError):
        ws.load(tmp_path)
    refused(b"", "0 bytes are too few")
    refused(b"PK\x03\x04" + bytes(100), "no safetensors file")
    refused((50).to_bytes(8, "little") + b"[" + b" " * 60, "does not begin with a brace")
    refused((1 << 63).to_bytes(8, "little") + bytes(60), "cut off, or no safetensors file")
    refused(plain({"w": ["U8", [2], 0, 2]}, b"ab"), "it is no compressed file.*safetensors.torch.load_file")


def plain(tensors, data, metadata=None):
    """A safetensors file by hand."""
    entries = {n: {"dtype": d, "shape": s, "data_offsets": [a, b]} for n, (d, s, a, b) in tensors.items()}
    text = json.dumps({**({"__metadata__": metadata} if metadata else {}), **entries}).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": ["U8", [4], 0, 4], "b": ["U8", [4], 2, 6]}, "'b' begins at byte 2 of the data, not at 4"),
        ({"a": ["U8", [4], 0, 4], "b": ["U8", [1], 5, 6]}, "'b' begins at byte 5"),
        ({"a": ["U8", [4], 0, 4]}, "have 4 bytes, but 6 follow"),
        ({"a": ["U8", [9], 0, 9]}, "have 9 bytes, but 6 follow"),
        ({"a": ["U8", [6], 6, 0]}, "has -6 bytes"),
        ({"a": ["F32", [2], 0, 6]}, "has 6 bytes"),
        ({"a": ["U9", [6], 0, 6]}, "unknown dtype 'U9'"),
        ({"a": [["U8"], [6], 0, 6]}, "unknown dtype"),
        ({"a": ["U8", [-6], 0, 6]}, "shape that is none"),
        ({"a": ["U8", [6.0], 0, 6]}, "shape that is none"),
        ({"a": ["U8", [True], 0, 1]}, "shape that is none"),
        ({"a": ["U8", [1 << 62], 0, 6]}, "shape that is none"),
        ({"a": ["U8", [1 << 61, 1 << 61], 0, 6]}, "has 6 bytes"),
        ({"a": ["U8", [1] * 65, 0, 6]}, "shape that is none"),
        ({"a": ["F4", [3], 0, 6]}, "has 6 bytes"),
        ({"a": ["U8", [6], -1, 5]}, "data_offsets that are none"),
    ],
)
def test_headers_that_lie(tensors, message, refused):
    refused(plain(tensors, bytes(6)), message)


def test_json_that_is_none(refused):
    text = lambda inner: len(inner).to_bytes(8, "little") + inner + bytes(8)
    refused(text(b'{"a":'), "header cannot be read")
    refused(text(b'{"a":"\xff"}'), "header cannot be read")
    refused(text(b'{"a":' * 200_000 + b"1" + b"}" * 200_000), "nested too deeply")
    refused(text(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "nested too deeply")
    refused(text(b'{"a":' + b"9" * 100_000 + b"}"), "header cannot be read")
    refused(text(b'{"a":1,"a":2}'), "'a' stands twice")
    refused(text(b'{"__metadata__":{"a":1}}'), "words for keys and for values")
    refused(
        text(b'{"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}}'), "'dtype' stands twice"
    )
    refused(text(b'{"\\ud800":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}'), "header cannot be read")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=2), "format version 2, and this weightshare reads version 1"),
        (lambda d: d.update(version=True), "format version True"),
        (lambda d: d.pop("version"), "format version None"),
        (lambda d: d.update(more=1), "must have"),
        (lambda d: d.update(separator=""), "separator"),
        (lambda d: d.update(block=0), "blocks of 0 bytes"),
        (lambda d: d.update(tensors=[]), "must be objects"),
        (lambda d: d["tensors"].update({"raw": d["tensors"]["literals"]}), "'raw' stands there twice"),
        (lambda d: d["tensors"].update(new=d["tensors"]["literals"]), "'new' lacks its part 'new.codebook'"),
        (lambda d: d["aliases"].update({"raw": ["half", 0]}), "'raw' stands there twice"),
        (lambda d: d["aliases"].update({"half": ["raw", 0]}), "'half' stands there twice"),
        (lambda d: d["aliases"].update(x=["y", 0]), "'x' is said to be 'y', which is not there"),
        (lambda d: d["aliases"].update(x=["x", 0]), "'x' is said to be 'x', which is not there"),
        (lambda d: d["aliases"].update(x=["half", -1]), "alias 'x' must give a name and a place"),
        (lambda d: d["tensors"]["half"].update(dtype="F32"), "'half.codebook' has dtype BF16, not F32"),
        (lambda d: d["tensors"]["half"].update(dtype="U9"), "has dtype BF16, not U9"),
        (lambda d: d["tensors"]["half"].update(shape=[50, 65]), "damaged: .* indices of 4 bits are"),
        (lambda d: d["tensors"]["half"].update(shape=[1 << 40, 1 << 40]), "absurd shape"),
        (lambda d: d["tensors"]["half"].update(shape=[0, 1 << 61, 4]), "absurd shape"),
        (lambda d: d["tensors"]["half"].update(shape=[1 << 40]), "more than the limit"),
        (lambda d: d["tensors"]["half"].update(bits=3), "have 4 bits, not 3"),
        (lambda d: d["tensors"]["half"].update(bits=-1), "bits is -1"),
        (lambda d: d["tensors"]["half"].update(coder="rle"), "unknown coder 'rle'"),
        (lambda d: d["tensors"]["half"].update(coder="ans"), "has the settings"),
        (lambda d: d["tensors"]["half"].update(literals=1), "'half' lacks its part 'half.literals'"),
        (lambda d: d["tensors"]["literals"].update(literals=1), "literals where there should be 1"),
        (lambda d: d["tensors"]["ans.weight"].update(chunk=0), "a chunk of 0 indices"),
        (lambda d: d["tensors"]["ans.weight"].update(chunk=1), "chunks of 1 indices, but only"),
        (lambda d: d["tensors"]["ans.weight"].update(chunk=1 << 61), "lengths add up|does not end"),
        (lambda d: d["tensors"]["zstd.weight"].update(chunk=8), "lengths add up|chunks of 8"),
        (lambda d: d["tensors"]["zstd.weight"].update(shape=[11_208]), "chunk 0 says it holds"),
    ],
)
def test_descriptions_that_lie(change, message, good, refused):
    header, data = opened(good)
    description = about(header)
    change(description)
    refused(sealed(header, data, description), message)


def test_descriptions_that_are_none(good, refused):
    header, data = opened(good)
    for text, message in [
        ("{", "description cannot be read"),
        ("[]", "it is no object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"version": 1, "version": 1}', "'version' stands twice"),
    ]:
        refused(sealed(header, data, text), message)


def place_of(header, name):
    """Where the bytes of a tensor are in the data."""
    return slice(*header[name]["data_offsets"])


def test_payloads_that_lie(good, refused):
    def with_bytes(name, change):
        header, data = opened(good)
        inside = bytearray(data[place_of(header, name)])
        change(inside)
        data[place_of(header, name)] = inside
        return sealed(header, data, about(header))

    def flip(inside, at=-1):
        inside[at] ^= 4

    refused(with_bytes("ans.weight.indices", flip), "'ans.weight' is damaged: the stream of chunk")
    refused(with_bytes("zstd.weight.indices", lambda b: flip(b, 4)), "'zstd.weight' is damaged: chunk 0")
    refused(with_bytes("zstd.weight.indices", lambda b: flip(b, 0)), "'zstd.weight' is damaged: the chunks'")
    refused(with_bytes("literals.indices", flip), "'literals' is damaged")


@pytest.mark.parametrize("prefer", ["size", "speed"])
def test_indices_outside_of_the_codebook(prefer, refused, tmp_path):
    """Five values need three bits, which can say 5, too."""
    state = {
        "w": torch.arange(5.0)[torch.randint(0, 5, (2000,))],
        "r": torch.arange(5.0).repeat_interleave(900),
    }
    ws.save(state, tmp_path / "hostile", prefer=prefer)
    header, data = opened((tmp_path / "hostile").read_bytes())
    description = about(header)
    for name, tensor in description["tensors"].items():
        indices = np.full(int(np.prod(tensor["shape"])), 5, np.uint8)
        payload = {
            "packed": lambda i=indices: pack(i, 3),
            "zstd": lambda i=indices: chunks.join([zstd.compressed(pack(i, 4))]),
        }.get(tensor["coder"])
        if payload is not None:
            refused(
                replaced(header, data, f"{name}.indices", payload()), f"{name!r} is damaged: index 5 is not"
            )
    assert any(tensor["coder"] != "ans" for tensor in description["tensors"].values())


def replaced(header, data, name, array):
    """The file with another array in the place of one; offsets and checksums follow."""
    header, old, out = json.loads(json.dumps(header)), bytes(data), bytearray()
    names = [n for n in header if n != "__metadata__"]
    for one in sorted(names, key=lambda n: header[n]["data_offsets"]):
        body = array.tobytes() if one == name else old[place_of(header, one)]
        if one == name:
            header[one]["shape"] = [array.size]
        header[one]["data_offsets"] = [len(out), len(out) + len(body)]
        out += body
    return sealed(header, out, about(header))


def test_too_large_a_codebook_for_small_patterns(refused, tmp_path):
    """Otherwise indices of a few bytes each would take many times the memory of the tensor."""
    ws.save({"w": torch.arange(2, dtype=torch.uint8).repeat(40_000)}, tmp_path / "hostile", prefer="speed")
    header, data = opened((tmp_path / "hostile").read_bytes())
    raw = replaced(header, data, "w.codebook", np.zeros(300, np.uint8))
    refused(raw, "a codebook of 300 values, where there can be 256")


def test_a_bomb_is_refused_before_it_is_made(refused, tmp_path):
    """Two gigabytes of one value, in a file of a kilobyte."""
    path = tmp_path / "hostile"
    ws.save({"small": torch.ones(3), "zeros": torch.zeros(1000)}, path)
    header, data = opened(path.read_bytes())
    description = about(header)
    description["tensors"]["zeros"]["shape"] = [1 << 29]
    raw = sealed(header, data, description)
    tracemalloc.start()
    refused(
        raw, "'zeros' of shape .* more than the limit of 1,073,741,824; .*, pass limit=2147483660 or more"
    )
    refused(raw, "more than the limit of 1,000", limit=1000)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    reader = Reader(path, limit=1 << 32)
    assert torch.equal(reader.rows("zeros", 1 << 28, (1 << 28) + 5), torch.zeros(5))
    with pytest.raises(ValueError, match="limit must be a number of bytes, got -1"):
        ws.load(path, limit=-1)
    with pytest.raises(TypeError, match="limit"):
        ws.load(path, limit="much")


def test_aliases_take_no_memory(tmp_path):
    """A hundred names for one tensor are one tensor."""
    tensor = torch.zeros(1 << 18)
    state = {str(i): tensor for i in range(100)}
    ws.save(state, tmp_path / "file")
    tracemalloc.start()
    found = ws.load(tmp_path / "file", limit=tensor.nbytes)
    assert tracemalloc.get_traced_memory()[1] < 2 * tensor.nbytes
    tracemalloc.stop()
    assert list(found) == list(state)
    assert len({id(tensor) for tensor in found.values()}) == 1


def test_very_many_aliases_take_linear_time(tmp_path):
    """Inserted one by one at the front of a list, these would take minutes."""
    ws.save({"w": torch.ones(3)}, tmp_path / "file")
    header, data = opened((tmp_path / "file").read_bytes())
    description = about(header)
    description["aliases"] = {f"a{i}": ["w", 0] for i in range(50_000)}
    (tmp_path / "file").write_bytes(sealed(header, data, description))
    found = ws.load(tmp_path / "file")
    assert len(found) == 50_001
    assert len({id(tensor) for tensor in found.values()}) == 1


def test_frames_that_lie_about_their_size():
    import zstandard

    frame = zstandard.ZstdCompressor(level=1).compress(bytes(1 << 20))
    told = frame[:5] + bytes([frame[5] ^ 255]) + frame[6:]  # in the middle of the content size
    for broken in (told, frame[:-1], frame + b"x", frame + frame, b"", frame[:3]):
        with pytest.raises(ValueError, match="it "):
            zstd.decompressed(np.frombuffer(broken, np.uint8), 1 << 20, "it")
    skippable = (0x184D2A50).to_bytes(4, "little") + (1 << 20).to_bytes(4, "little") + bytes(1 << 20)
    with pytest.raises(ValueError, match="it "):
        zstd.decompressed(np.frombuffer(skippable, np.uint8), 1 << 20, "it")


def test_unverified_files_are_still_safe(good, tmp_path):
    """Without the checksums of the data broken payloads are found, or give other values; no more."""
    header, data = opened(good)
    rng = np.random.default_rng(0)
    for _ in range(100):
        broken = bytearray(data)
        for at in rng.integers(0, header["steps"]["data_offsets"][0] or len(data) - 8, 5):
            broken[at] = rng.integers(256)
        (tmp_path / "file").write_bytes(good[: len(good) - len(data)] + broken)
        try:
            reader = Reader(tmp_path / "file", verify=False)
            assert all(reader[name].shape == wanted.shape for name, wanted in model_state().items())
        except ValueError as error:
            assert "is damaged" in str(error)  # noqa: PT017


def test_the_description_has_one_spelling():
    text = layout.About(".").dumps()
    assert layout.About.loads(text).dumps() == text
