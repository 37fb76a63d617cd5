"""A save that fails or is killed leaves the old file and nothing beside it; memory stays bounded."""

import errno
import os
import signal
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch

import weightshare as ws
from compress.samples import assert_same, model_state, same
from weightshare import atomic
from weightshare.compress import Reader, container

MB = 1 << 20


@pytest.fixture
def old(tmp_path):
    """A file that is there already, alone in its folder."""
    path = tmp_path / "model.ws.safetensors"
    ws.save({"old": torch.arange(3)}, path)
    return path


def assert_untouched(path):
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert_same(ws.load(path), {"old": torch.arange(3)})


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ({"a": torch.ones(2), "b": "text"}, TypeError),
        ({"a": torch.ones(2), 3: torch.ones(2)}, TypeError),
        ({"a": torch.ones(2), "__metadata__": torch.ones(2)}, ValueError),
        ({"a": torch.ones(2), "\ud800": torch.ones(2)}, ValueError),
        ({"a": torch.ones(2), "z": torch.ones(2, dtype=torch.complex128)}, TypeError),
        ({"a": torch.ones(2), "s": torch.eye(3).to_sparse()}, TypeError),
        ({"a": torch.ones(2), "m": torch.empty(3, device="meta")}, TypeError),
        ([torch.ones(2)], TypeError),
    ],
)
def test_what_cannot_be_saved_changes_nothing(state, error, old):
    with pytest.raises(error):
        ws.save(state, old)
    assert_untouched(old)


def test_bad_settings_change_nothing(old):
    state = {"a": torch.ones(2)}
    for settings, error, message in [
        ({"prefer": "space"}, ValueError, "unknown prefer 'space'"),
        ({"metadata": {"weightshare": "x"}}, ValueError, "use another key"),
        ({"metadata": {"step": 3}}, TypeError, "words by words"),
    ]:
        with pytest.raises(error, match=message):
            ws.save(state, old, **settings)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        ws.save(state, old.parent / "nowhere" / "file")
    assert_untouched(old)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_exception_while_encoding(error, old):
    def progress(name, done, total):
        if done > total / 2:
            raise error("stop")

    with pytest.raises(error, match="stop"):
        ws.save(model_state(), old, progress=progress)
    assert_untouched(old)


class Full:
    """A file on a disk that has room for a few bytes more."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, piece):
        self.room -= len(piece)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(piece)

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize("room", [0, 100, 5000, 12_000])
def test_a_full_disk(room, old, monkeypatch):
    write = container.write
    monkeypatch.setattr(
        container, "write", lambda file, *args, **more: write(Full(file, room), *args, **more)
    )
    with pytest.raises(OSError, match="No space left"):
        ws.save(model_state(), old)
    assert_untouched(old)


def test_a_full_disk_while_encoding(old, monkeypatch):
    from weightshare.compress import writer

    original = writer.tempfile.TemporaryFile
    monkeypatch.setattr(writer.tempfile, "TemporaryFile", lambda **where: Spool(original(**where)))
    with pytest.raises(OSError, match="No space left"):
        ws.save(model_state(), old)
    assert_untouched(old)


class Spool(Full):
    def __init__(self, file):
        super().__init__(file, 500)

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.file.close()


def test_a_file_that_cannot_take_its_place(old, monkeypatch):
    def refuse(*args):
        raise PermissionError("not here")

    monkeypatch.setattr(atomic.os, "replace", refuse)
    with pytest.raises(PermissionError):
        ws.save(model_state(), old)
    assert_untouched(old)


def test_a_tensor_that_changes_its_size_meanwhile(old):
    """The header is written before the bytes; what no longer fits must not become a file."""
    state = {"a": torch.randn(100), "b": torch.randn(100)}

    def progress(name, done, total):
        if name == "b":
            state["a"].resize_(50)

    with pytest.raises(RuntimeError, match="'a' changed while it was being saved"):
        ws.save(state, old, progress=progress)
    assert_untouched(old)


KILLED = """
import sys, time, torch, weightshare as ws
from weightshare.compress import container
write = container.write
def slow(file, tensors, *args, **more):
    def told(piece, tell=more.pop("told")):
        tell(piece)
        file.flush()
        print("writing", flush=True)
        time.sleep(0.3)
    write(file, tensors, *args, told=told, **more)
container.write = slow
ws.save({str(i): torch.randn(1000) for i in range(1000)}, sys.argv[1])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_save(number, old):
    command = [sys.executable, "-c", KILLED, str(old)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdout.readline()
        process.stdout.readline()
        process.send_signal(number)
    assert process.returncode != 0
    assert_same(ws.load(old), {"old": torch.arange(3)})
    if number == signal.SIGINT:
        assert_untouched(old)
    ws.save(model_state(), old)
    assert_same(ws.load(old), model_state())


def test_a_folder_that_cannot_be_written_to(old):
    if os.geteuid() == 0:
        pytest.skip("nothing is forbidden to root")
    old.parent.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            ws.save(model_state(), old)
    finally:
        old.parent.chmod(0o700)
    assert_untouched(old)


def test_readers_see_the_old_file_or_the_new_one(old):
    """A file that is open while another takes its place stays what it was."""
    reader = Reader(old)
    ws.save(model_state(), old)
    assert same(reader["old"], torch.arange(3))
    assert_same(ws.load(old), model_state())


def peak_of(call):
    """Bytes of NumPy and Python that were held at once, at most."""
    call()  # what is compiled and imported on the way
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def large_state(number, weights=MB // 2):
    """Tensors of few values, evenly spread and not; of few and others; of values that are all different."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(64).astype(np.float32)
    state = {}
    for i in range(number):
        state[f"packed.{i}"] = values[rng.integers(0, 64, weights)]
        state[f"ans.{i}"] = values[rng.geometric(0.2, weights) % 64]
        alone = rng.standard_normal(weights).astype(np.float32)
        state[f"half.{i}"] = np.where(rng.random(weights) < 0.5, values[rng.integers(0, 64, weights)], alone)
        state[f"raw.{i}"] = rng.standard_normal(weights).astype(np.float32)
    return {name: torch.from_numpy(array) for name, array in state.items()}


@pytest.mark.parametrize("prefer", ["size", "speed"])
def test_saving_takes_the_memory_of_about_one_tensor(prefer, tmp_path):
    save = lambda state: lambda: ws.save(state, tmp_path / "file", prefer=prefer)
    few, many = large_state(1, 2 * MB), large_state(4, 2 * MB)
    one = few["raw.0"].nbytes
    for kind, most in [("packed", 1.1), ("ans", 1.1), ("half", 1.7), ("raw", 1.1)]:
        alike = {name: tensor for name, tensor in few.items() if kind in name}
        assert peak_of(save(alike)) < most * one, kind
    assert peak_of(save(many)) < 1.7 * one  # however many tensors there are


def test_reading_takes_the_tensor_and_little_more(tmp_path):
    state = large_state(3)
    one = state["raw.0"].nbytes
    for prefer in ("size", "speed"):
        ws.save(state, tmp_path / "file", prefer=prefer)
        reader = Reader(tmp_path / "file")
        for name in ("raw.1", "packed.1", "ans.1"):
            assert peak_of(lambda name=name, reader=reader: reader[name]) < 1.2 * one, name
        each = peak_of(lambda reader=reader: [None for name in reader if reader[name] is None])
        assert each < 1.2 * one


def test_rows_are_read_where_they_lie(tmp_path):
    """Of what is packed or raw nothing is read but the rows: the rest may be ruined."""
    weight = large_state(1)["packed.0"].view(-1, 64)
    other = torch.from_numpy(np.random.default_rng(1).standard_normal((4096, 64)).astype(np.float32))
    ws.save({"w": weight, "r": other}, tmp_path / "file", prefer="speed")
    reader = Reader(tmp_path / "file", verify=False)
    assert (reader.coder("w"), reader.coder("r")) == ("packed", "raw")
    assert peak_of(lambda: reader.rows("w", 5000, 5010)) < 40_000
    assert peak_of(lambda: reader.rows("r", 1000, 1010)) < 40_000
    entries = container.Container(tmp_path / "file").entries
    raw = bytearray((tmp_path / "file").read_bytes())
    data = len(raw) - max(entry.end for entry in entries.values())
    for name, (lo, hi), row in [("w.indices", (5000, 5010), 64 * 6 // 8), ("r", (1000, 1010), 256)]:
        begin, end = data + entries[name].begin, data + entries[name].end
        kept = raw[begin + lo * row : begin + hi * row]
        raw[begin:end] = bytes(end - begin)
        raw[begin + lo * row : begin + hi * row] = kept
    (tmp_path / "ruined").write_bytes(raw)
    ruined = Reader(tmp_path / "ruined", verify=False)
    assert same(ruined.rows("w", 5000, 5010), weight[5000:5010])
    assert same(ruined.rows("r", 1000, 1010), other[1000:1010])
    assert not same(ruined.rows("w", 0, 10), weight[:10])
    with pytest.raises(ValueError, match="the checksum of bytes 0 to 1048576 differs, of w.codebook, r"):
        Reader(tmp_path / "ruined")


RESIDENT = """
import sys, torch, weightshare as ws
def resident():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
torch.set_num_threads(1)
small = {"w": torch.arange(64.0).repeat(1 << 14)}
ws.save(small, sys.argv[1]); ws.load(sys.argv[1])
from weightshare.compress.files import open_tensors
peak = [0]
before = resident()
def progress(*told):
    peak[0] = max(peak[0], resident() - before)
ws.save(open_tensors(sys.argv[2]), sys.argv[1], progress=progress)
print(peak[0])
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_a_file_is_compressed_without_being_held_in_memory(tmp_path):
    """Measured from outside, so that memory of libraries counts too."""
    from safetensors.torch import save_file

    state = {str(i): torch.arange(64.0)[torch.randint(0, 64, (MB,))] for i in range(12)}
    save_file(state, tmp_path / "plain")
    command = [sys.executable, "-c", RESIDENT, str(tmp_path / "out"), str(tmp_path / "plain")]
    held = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert held < 6 * 4 * MB  # half of the model: nothing of one tensor may stay behind
    assert_same(ws.load(tmp_path / "out"), dict(sorted(state.items())))
