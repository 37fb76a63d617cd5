"""``weightshare compress``, ``expand`` and ``size``: files that shrink, losslessly, and the way back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from torch import Tensor, nn


class Prefer(str, Enum):
    """What a compressed file is for."""

    size = "size"
    speed = "speed"


Key = Annotated[
    str | None, typer.Option(help="Where in a torch checkpoint the state_dict is, if not at the top.")
]
Limit = Annotated[
    int | None,
    typer.Option(min=0, help="Bytes that the tensors may take; left out, 1 GiB or 256 times the file."),
]


def compress(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A safetensors file or a torch checkpoint.")],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="The compressed file, say model.ws.safetensors.")
    ],
    prefer: Annotated[
        Prefer, typer.Option(help="The smallest file, or one whose tensors can be read where they lie.")
    ] = Prefer.size,
    key: Key = None,
) -> None:
    """Store every tensor once more, bit for bit, in as few bytes as its ties allow."""
    from weightshare.compress import Reader, save
    from weightshare.compress.files import Plain, open_tensors

    begin, before = time.perf_counter(), _size_of(source, target)
    tensors = open_tensors(source, key)
    if isinstance(tensors, Reader):
        raise ValueError(f"{source} is compressed already; weightshare expand {source} OUT undoes it")
    metadata = tensors.metadata if isinstance(tensors, Plain) else {}
    with _progress("compressing") as progress, _naming(source):
        table = save(tensors, target, prefer=prefer.value, metadata=metadata, progress=progress)
    typer.echo(table)
    weights = max(sum(row["weights"] for row in table if row["tensor"] != "total"), 1)
    _summary(source, before, target, begin, f"{8 * target.stat().st_size / weights:.3g} bits per weight")


def expand(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A compressed file.")],
    target: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="Plain safetensors, or .pt, .pth, .bin, .ckpt for a checkpoint."),
    ],
    limit: Limit = None,
) -> None:
    """Write the tensors of a compressed file as anybody reads them."""
    from weightshare.compress import Reader
    from weightshare.compress.files import write_plain

    begin, before = time.perf_counter(), _size_of(source, target)
    reader = Reader(source, limit=limit)
    with _progress("expanding") as progress:
        write_plain(reader, target, reader.metadata, progress)
    _summary(source, before, target, begin, f"{len(reader)} tensors")


def size(
    model: Annotated[
        str,
        typer.Argument(
            metavar="FILE|MODEL",
            help="A compressed file, safetensors, a torch checkpoint, or module:function that makes a model.",
        ),
    ],
    key: Key = None,
    limit: Limit = None,
    zip: Annotated[
        bool, typer.Option(help="Deflate each tensor for comparison, which takes a while.")
    ] = True,
) -> None:
    """What each tensor takes: compressed, as it is, and by the usual alternatives."""
    from weightshare.compress import estimate

    tensors = _tensors_or_model(model, key, limit)
    with _progress("measuring") as progress, _naming(model):
        table = estimate(tensors, zip=zip, progress=progress)
    typer.echo(table)


def _tensors_or_model(name: str, key: str | None, limit: int | None) -> Mapping[str, Tensor] | nn.Module:
    from weightshare.compress.files import open_tensors

    module, colon, attribute = name.partition(":")
    if colon and not Path(name).exists() and module.replace(".", "").isidentifier():
        return _made(module, attribute)
    return open_tensors(name, key, limit)


def _made(module: str, attribute: str) -> nn.Module:
    """The model that ``module:attribute`` is, or makes."""
    import importlib
    import sys

    from torch import nn

    sys.path.insert(0, "")  # also modules of the working directory, as python -m has it
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        raise ValueError(f"there is no module {missing.name!r} to take a model from") from None
    finally:
        sys.path.remove("")
    if not hasattr(found, attribute):
        raise ValueError(f"module {module!r} has no {attribute!r}")
    model = getattr(found, attribute)
    model = model if isinstance(model, nn.Module) else model()
    if not isinstance(model, nn.Module):
        raise ValueError(f"{module}:{attribute} made {type(model).__name__}, not a torch.nn.Module")
    return model


@contextmanager
def _progress(what: str) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on the terminal; nothing where there is none."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn(what), BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("")

        def show(name: str, done: int, total: int) -> None:
            bar.update(task, description=name.replace("[", "\\["), completed=done, total=total)

        yield show


@contextmanager
def _naming(source: Path | str) -> Iterator[None]:
    """Here a tensor that cannot be stored is no slip in a program but something about a file."""
    try:
        yield
    except TypeError as error:
        raise ValueError(f"{source}: {error}") from error


def _size_of(source: Path, target: Path) -> int:
    """Bytes of the source, which must not be the target: whoever wants that can move the file afterwards."""
    size = source.stat().st_size
    if target.exists() and target.samefile(source):
        raise ValueError(f"IN and OUT are the same file, {source}; give another name for OUT")
    return size


def _summary(source: Path, before: int, target: Path, begin: float, more: str) -> None:
    after = target.stat().st_size
    ratio = f"{before / after:.3g} times smaller" if after <= before else f"{after / before:.3g} times larger"
    seconds = time.perf_counter() - begin
    typer.echo(f"{source}: {before:,} bytes -> {target}: {after:,} bytes; {ratio}, {more}, {seconds:.1f} s")


def add_to(app: typer.Typer) -> None:
    """The commands of this module."""
    for command in (compress, expand, size):
        app.command()(command)
