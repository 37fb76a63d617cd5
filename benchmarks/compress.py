"""The table of the compressed files: speed of both ways, size against the entropy, memory of packed layers.

    python -m benchmarks.compress [--quick] [--only SECTION ...] [--weights FILE ...]

Everything is decoded and compared bit for bit before it is timed. Prints a table and writes
results/bench-compress.json, section by section; `python -m benchmarks.compress_report` puts it into the docs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard

import weightshare as ws
from benchmarks import inputs, measure, resident
from weightshare.compress import encoding
from weightshare.compress.codebook import distinct, patterns
from weightshare.compress.files import open_tensors
from weightshare.compress.writer import shown

THREADS = 2
COUNTS = (2, 4, 16, 64, 256, 1024, 4096)


def tied(d: int, k: int, flat: bool) -> np.ndarray:
    """d weights of k values: equally often, or geometric, down to 2^-16 of the most frequent where k > 16."""
    r = np.random.default_rng(k)
    share = np.ones(k) if flat else 0.5 ** (np.arange(k) * min(1.0, 16 / k))
    edges = np.cumsum(share / share.sum()).astype(np.float32)
    numbers = np.searchsorted(edges[:-1], r.random(d, np.float32), "right")
    return np.asarray(r.standard_normal(k, np.float32)[numbers])


def sparse(d: int, values: int | None) -> np.ndarray:
    """Nine zeros in ten; the others all different, or of so many values."""
    r = np.random.default_rng(1)
    others = r.standard_normal(d, np.float32) if values is None else tied(d, values, flat=True)
    return np.where(r.random(d, np.float32) < 0.9, np.float32(0), others)


def contenders(d: int) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """Every input by name."""
    for k in COUNTS:
        for flat in (True, False):
            yield f"{k} values, {'equally often' if flat else 'geometric'}", lambda k=k, f=flat: tied(d, k, f)
    yield "90 % zeros, 16 values", lambda: sparse(d, 16)
    yield "90 % zeros, others different", lambda: sparse(d, None)
    yield "all different", lambda: np.random.default_rng(2).standard_normal(d, np.float32)
    if inputs.STATE.exists():
        yield "trained with R", lambda: trained(d)


def trained(d: int) -> np.ndarray:
    """The training state, after the prox."""
    w, alpha = inputs.training(d)
    found = ws.prox(torch.from_numpy(w), alpha).numpy()
    return np.ascontiguousarray(found[:d])


def real(files: list[Path]) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """Tensors of at least 10^5 weights in files of trained models."""
    for file in files:
        for name, tensor in open_tensors(file).items():
            if tensor.numel() >= 100_000 and tensor.dtype == torch.float32:
                flat = tensor.detach().reshape(-1).contiguous().numpy()
                yield f"{'/'.join(file.resolve().parts[-4:-1])} {name}", lambda flat=flat: flat


def coding_section(cases: Iterator[tuple[str, Callable[[], np.ndarray]]]) -> dict[str, Any]:
    """Each input: bytes and weights per second of both ways, beside zstd -3 on the raw bytes."""
    section = {}
    for name, make in cases:
        section[name] = row = _coding_row(name, patterns(torch.from_numpy(make())))
        show(name, {k: row[k] for k in ("bits", "bytes / bound", "encode, M/s", "decode, M/s", *_RATIOS)})
    return section


_RATIOS = ("encode / zstd", "decode / zstd", "bytes / zstd")


def _coding_row(name: str, bits: np.ndarray) -> dict[str, Any]:
    coding = encoding.encode(bits)
    out = np.empty_like(bits)
    raw = coding.description["coder"] == "raw"

    def decode() -> None:
        if raw:
            np.copyto(out, coding.parts["values"])
        else:
            encoding.decode(coding.description, coding.parts, bits.size, 0, out)

    decode()
    if not np.array_equal(out, bits):
        sys.exit(f"wrong result on {name}")
    squeezed = zstandard.ZstdCompressor(level=3).compress(bits.data)
    times = measure.timed(
        {
            "encode": lambda: encoding.encode(bits),
            "decode": decode,
            "zstd": lambda: zstandard.ZstdCompressor(level=3, threads=THREADS).compress(bits.data),
            "unzstd": lambda: zstandard.ZstdDecompressor().decompress(squeezed),
        },
        rounds=5,
        budget=20.0,
    )
    found = distinct(bits)
    assert found is not None
    bound = found.entropy * bits.size / 8 + found.values.nbytes
    return {
        "weights": int(bits.size),
        "distinct": int(found.values.size),
        "entropy": found.entropy,
        "coder": shown(coding.description),
        "bytes": coding.nbytes,
        "bits": 8 * coding.nbytes / bits.size,
        "bytes / bound": coding.nbytes / bound,
        "bytes / zstd": coding.nbytes / len(squeezed),
        "times": times,
        "encode, M/s": 1e-6 * bits.size / times["encode"]["median"],
        "decode, M/s": 1e-6 * bits.size / times["decode"]["median"],
        "encode / zstd": measure.ratio(times, "zstd", "encode"),
        "decode / zstd": measure.ratio(times, "unzstd", "decode"),
    }


def files_section(d: int) -> dict[str, Any]:
    """Whole files: save and load, checksums included, beside PyTorch's own."""
    section = {}
    made = {f"{k} values, geometric": tied(d, k, flat=False) for k in (16, 4096)}
    for name, w in {**made, "all different": inputs.gaussian(d)[0]}.items():
        state = {"weight": torch.from_numpy(w)}
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = f"{folder}/model.ws.safetensors", f"{folder}/model.pt"
            ws.save(state, ours)
            if not np.array_equal(ws.load(ours)["weight"].numpy().view(np.uint32), w.view(np.uint32)):
                sys.exit(f"wrong file on {name}")
            times = measure.timed({
                "ws.save": lambda s=state, f=ours: ws.save(s, f),
                "ws.load": lambda f=ours: ws.load(f),
                "torch.save": lambda s=state, f=theirs: torch.save(s, f),
                "torch.load": lambda f=theirs: torch.load(f, weights_only=True),
            }, rounds=5, budget=20.0)  # fmt: skip
            sizes = {"bytes": Path(ours).stat().st_size, "plain": Path(theirs).stat().st_size}
        section[name] = {"weights": d, "times": times, **sizes}
        show(name, {k: 1e-6 * d / t["median"] for k, t in times.items()}, " M/s")
    return section


def memory_section(side: int) -> dict[str, Any]:
    """Resident memory of four square layers, and what a call adds, each kind in a process of its own."""
    section: dict[str, Any] = {"side": side, "layers": resident.LAYERS, "kinds": {}}
    for name in resident.KINDS:
        section["kinds"][name] = found = resident.in_a_process(name, side)
        show(name, {key: value / 2**20 for key, value in found.items()}, " MiB")
    return section


def show(name: str, values: dict[str, float], unit: str = "") -> None:
    """One line of the table."""
    print(f"{name:32s}", "  ".join(f"{key} {value:.3g}{unit}" for key, value in values.items()), flush=True)


def main() -> None:
    """Run the sections asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10^6 weights instead of 2 * 10^7")
    sections = ("coding", "real", "files", "memory")
    parser.add_argument("--only", nargs="*", choices=sections, default=sections)
    parser.add_argument(
        "--weights", nargs="*", type=Path, default=[], help="files of trained models for the section real"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    d = 10**6 if arguments.quick else 2 * 10**7
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        "coding": lambda: coding_section(contenders(d)),
        "real": lambda: coding_section(real(arguments.weights)),
        "files": lambda: files_section(d),
        "memory": lambda: memory_section(1024 if arguments.quick else 4096),
    }
    if not inputs.STATE.exists():
        print(f"{inputs.STATE.name} is missing (python -m benchmarks.train_state): that row is not measured")
    name = "bench-compress-quick" if arguments.quick else "bench-compress"
    for section in arguments.only:
        if section == "real" and not arguments.weights:
            continue
        content = runs[section]()
        path = measure.store(name, {section: content, "circumstances": measure.circumstances()})
    print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
