"""weightshare compress, expand, size: what goes in comes out, and what cannot be done is said in a line."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, safe_open, save_file
from typer.testing import CliRunner

import weightshare as ws
from compress.samples import assert_same, model_state
from weightshare.cli.app import app


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command in an empty folder; errors of the user come out as exceptions."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        result = CliRunner().invoke(app, [str(word) for word in words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


def command(*words, folder, **settings):
    """The same in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "weightshare.cli", *map(str, words)],
        cwd=folder, capture_output=True, text=True, **settings,
    )  # fmt: skip


def plain_state():
    """What plain safetensors can hold: nothing shared."""
    return {name: tensor.clone() for name, tensor in model_state().items()}


def assert_all_there(found):
    """The tensors of :func:`plain_state`, in whatever order: the library has one of its own."""
    assert_same({name: found[name] for name in plain_state()}, plain_state())
    assert len(found) == len(plain_state())


def test_there_and_back_with_safetensors(run, tmp_path):
    save_file(plain_state(), "in.safetensors", {"format": "pt", "license": "MIT"})
    told = run("compress", "in.safetensors", "small.ws.safetensors").output
    before, after = (os.path.getsize(name) for name in ("in.safetensors", "small.ws.safetensors"))
    assert after < before / 3
    assert f"in.safetensors: {before:,} bytes -> small.ws.safetensors: {after:,} bytes" in told
    assert "bits per weight" in told
    assert "packed.weight" in told
    assert set(ws.load("small.ws.safetensors")) == set(plain_state())
    told = run("expand", "small.ws.safetensors", "out.safetensors").output
    assert "times larger" in told
    found = load_file("out.safetensors")
    assert_all_there(found)
    with safe_open("out.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "license": "MIT"}
    assert sorted(os.listdir()) == ["in.safetensors", "out.safetensors", "small.ws.safetensors"]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt"])
def test_there_and_back_with_checkpoints(suffix, old, run):
    torch.save(model_state(), "in" + suffix, _use_new_zipfile_serialization=not old)
    run("compress", "in" + suffix, "small", "--prefer", "speed")
    assert_same(ws.load("small"), model_state())
    run("expand", "small", "out" + suffix)
    found = torch.load("out" + suffix, weights_only=True)
    assert_same(found, model_state())
    assert found["tied.weight"].data_ptr() == found["packed.weight"].data_ptr()


def test_a_state_dict_inside_of_a_checkpoint(run):
    torch.save({"model": model_state(), "optimizer": {"lr": 0.1}, "epoch": 3}, "in.pt")
    with pytest.raises(ValueError, match="holds more than a state_dict; give the key of one: 'model'"):
        run("compress", "in.pt", "out")
    with pytest.raises(ValueError, match="has no state_dict under 'ema'; there are 'model'"):
        run("compress", "in.pt", "out", "--key", "ema")
    run("compress", "in.pt", "out", "--key", "model")
    assert_same(ws.load("out"), model_state())
    run("size", "in.pt", "--key", "model", "--no-zip")


class Malicious:
    """Executes a command when it is unpickled without care."""

    def __reduce__(self):
        return os.system, ("touch executed",)


@pytest.mark.parametrize("kind", ["zip", "old", "pickle"])
def test_nothing_in_a_checkpoint_is_executed(kind, run):
    state = {"w": torch.ones(3), "evil": Malicious()}
    if kind == "pickle":
        with open("in.pt", "wb") as file:
            pickle.dump(state, file)
    else:
        torch.save(state, "in.pt", _use_new_zipfile_serialization=kind == "zip")
    for words in (["compress", "in.pt", "out"], ["size", "in.pt"]):
        with pytest.raises(ValueError, match="in.pt cannot be read as a torch checkpoint of tensors alone"):
            run(*words)
    assert os.listdir() == ["in.pt"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.ones(3), "holds Tensor, not tensors by name"),
        ({"w": torch.ones(3), "step": 3}, r"holds no state_dict: 'step' \(int\) are no tensors"),
        ({}, "holds no state_dict"),
        ({"w": torch.ones(3, dtype=torch.complex128)}, "in.pt: 'w' has dtype torch.complex128"),
        ({"w": torch.eye(3).to_sparse()}, "in.pt: 'w' is not dense"),
    ],
)
def test_checkpoints_that_hold_something_else(content, message, run):
    torch.save(content, "in.pt")
    for words in (["compress", "in.pt", "out"], ["size", "in.pt"]):
        with pytest.raises(ValueError, match=message):
            run(*words)
    assert os.listdir() == ["in.pt"]


def test_in_and_out_must_differ(run):
    ws.save(model_state(), "file")
    save_file(plain_state(), "plain")
    before = [Path(name).read_bytes() for name in ("file", "plain")]
    os.symlink("plain", "link")
    for words in (
        ["compress", "plain", "plain"],
        ["compress", "plain", "./link"],
        ["expand", "file", "file"],
    ):
        with pytest.raises(ValueError, match="IN and OUT are the same file"):
            run(*words)
    assert before == [Path(name).read_bytes() for name in ("file", "plain")]


def test_what_makes_no_sense(run):
    ws.save(model_state(), "small")
    save_file(plain_state(), "plain")
    Path("text").write_text("not a file of tensors")
    with pytest.raises(ValueError, match="small is compressed already"):
        run("compress", "small", "out")
    with pytest.raises(ValueError, match="plain: it is no compressed file"):
        run("expand", "plain", "out")
    with pytest.raises(ValueError, match="text: "):
        run("compress", "text", "out")
    with pytest.raises(ValueError, match="key='x' is for torch checkpoints, and plain is a safetensors file"):
        run("compress", "plain", "out", "--key", "x")
    with pytest.raises(FileNotFoundError):
        run("compress", "nothing", "out")
    with pytest.raises(FileNotFoundError, match="no folder nowhere"):
        run("compress", "plain", "nowhere/out")
    with pytest.raises(ValueError, match="more than the limit of 10"):
        run("expand", "small", "out", "--limit", "10")
    assert sorted(os.listdir()) == ["plain", "small", "text"]
    for words in (
        ["compress"],
        ["compress", "plain"],
        ["compress", "plain", "out", "--prefer", "x"],
        ["expand"],
    ):
        result = run(*words)
        assert result.exit_code == 2
        assert "Usage" in result.output
    assert sorted(os.listdir()) == ["plain", "small", "text"]


def test_a_failing_expand_leaves_the_old_file(run):
    ws.save(model_state(), "small")
    raw = bytearray(Path("small").read_bytes())
    raw[-100] ^= 1
    Path("small").write_bytes(raw)
    for target in ("old.safetensors", "old.pt"):
        Path(target).write_text("old")
        with pytest.raises(ValueError, match="the checksum of bytes"):
            run("expand", "small", target)
        assert Path(target).read_text() == "old"
    assert sorted(os.listdir()) == ["old.pt", "old.safetensors", "small"]


def test_size_of_everything(run):
    state = model_state()
    ws.save(state, "small")
    save_file(plain_state(), "plain")
    torch.save(state, "state.pt")
    Path("models.py").write_text(
        "import torch\nmodel = torch.nn.Linear(30, 7)\ndef make(): return model\nnumber = int\n"
    )
    heads = {
        name: run("size", name).output.splitlines()[0].split() for name in ("small", "plain", "state.pt")
    }
    assert len({tuple(head) for head in heads.values()}) == 1
    wanted = {"weights", "distinct", "entropy", "bits", "fp32", "fp16", "int8", "zip", "paper"}
    assert wanted <= set(heads["small"])
    assert "zip" not in run("size", "small", "--no-zip").output
    for name in ("models:model", "models:make"):
        assert run("size", name, "--no-zip").output.splitlines()[-1].split()[:2] == ["total", "217"]
    with pytest.raises(ValueError, match="models:number made int, not a torch.nn.Module"):
        run("size", "models:number")
    with pytest.raises(ValueError, match="module 'models' has no 'other'"):
        run("size", "models:other")
    with pytest.raises(ValueError, match="there is no module 'nomodels'"):
        run("size", "nomodels:make")


def test_the_program_itself(tmp_path):
    """Messages on standard error, one line and exit code 1; results on standard output."""
    save_file(plain_state(), tmp_path / "in")
    done = command("compress", "in", "out", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "in: " in done.stdout.splitlines()[-1]
    assert_all_there(ws.load(tmp_path / "out"))
    failed = command("expand", "in", "again", folder=tmp_path)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("weightshare: in: it is no compressed file")
    assert len(failed.stderr.splitlines()) == 1


WITHOUT = """
import sys
class Without:
    def find_spec(self, name, *rest):
        if name in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
from weightshare.cli import main
sys.argv[0] = "weightshare"
main()
"""


@pytest.mark.parametrize("missing", ["zstandard", "constriction", "typer", "rich"])
def test_a_missing_extra_is_named(missing, tmp_path):
    save_file(plain_state(), tmp_path / "in")
    code = WITHOUT.format(missing=[missing])
    words = [sys.executable, "-c", code, "compress", "in", "out"]
    failed = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert failed.returncode == 1
    assert missing in failed.stderr
    assert "pip install 'weightshare[" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert os.listdir(tmp_path) == ["in"]


def test_packed_files_need_no_extra(tmp_path):
    save_file(plain_state(), tmp_path / "in")
    code = WITHOUT.format(missing=["zstandard", "constriction", "safetensors"])
    words = ["compress", "in", "out", "--prefer", "speed"]
    subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, check=True, capture_output=True)
    assert_all_there(ws.load(tmp_path / "out"))


def test_help_says_what_each_command_takes(run):
    for name, words in {
        "compress": ["IN", "OUT", "--prefer"],
        "expand": ["--limit"],
        "size": ["FILE|MODEL"],
    }.items():
        told = run(name, "--help").output
        assert all(word in told for word in words)
