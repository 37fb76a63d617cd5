"""A compressed file, checked before it is believed, and read whole or in part."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from weightshare import checks
from weightshare.compress import encoding
from weightshare.compress.codebook import tensor_of
from weightshare.compress.container import Container
from weightshare.compress.dtypes import SIZES, byte_count, dtype_of
from weightshare.compress.layout import KEY, About, Described, sums_size
from weightshare.compress.packing import Bits
from weightshare.kernels.threads import run
from weightshare.training.names import listed

ROOM = 1 << 30  # bytes that any file may expand to
FACTOR = 256  # times its size, that a larger file may


def load(path: str | os.PathLike[str], *, limit: int | None = None) -> dict[str, Tensor]:
    """Read what :func:`save` wrote: a state_dict of the same names, dtypes, shapes and bits.

    ``ValueError`` that names the file, and the tensor, for whatever is damaged: the header, the layout and
    the checksums are verified first. A small file can hold huge tensors of one
    value; ``limit`` is how many bytes all tensors together may take (by default 1 GiB, or 256 times the size
    of the file if that is more).

    >>> import tempfile, torch, weightshare as ws
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = ws.save(torch.nn.Linear(2, 3), f"{folder}/linear.ws.safetensors")
    ...     state = ws.load(f"{folder}/linear.ws.safetensors")
    >>> list(state), state["weight"].shape
    (['weight', 'bias'], torch.Size([3, 2]))
    """
    reader = Reader(path, limit=limit)
    return {name: reader[name] for name in reader}


class Reader(Mapping[str, Tensor]):
    """An open compressed file: tensors by name, decoded when they are asked for.

    Everything but the payloads is checked when it is opened, and with ``verify`` (unless only a few rows of a
    large file are wanted) the checksums of all of it.

    >>> import tempfile, torch, weightshare as ws
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = ws.save({"w": torch.arange(4.0).repeat(100, 8)}, f"{folder}/w.ws.safetensors")
    ...     ws.compress.Reader(f"{folder}/w.ws.safetensors").rows("w", 3, 4)
    tensor([[0., 1., 2., 3., 0., 1., 2., 3., 0., 1., 2., 3., 0., 1., 2., 3., 0., 1., 2., 3., 0., 1., 2., 3.,
             0., 1., 2., 3., 0., 1., 2., 3.]])
    """

    def __init__(
        self, path: str | os.PathLike[str], *, limit: int | None = None, verify: bool = True
    ) -> None:
        if limit is not None and checks.integer("limit", limit, "a number of bytes or None") < 0:
            raise ValueError(f"limit must be a number of bytes, got {limit}")
        self._file = Container(path)
        self._about = self._described()
        self._parts: dict[str, dict[str, Bits]] = {}
        self._plain = self._matched()
        self._order = self._ordered()
        self._check_size(limit)
        self._check_sums(data=verify)
        for name in self._about.tensors:
            self._check_coding(name)
        self._targets = {target for target, _ in self._about.aliases.values()}
        self._shared: dict[str, Tensor] = {}

    @property
    def metadata(self) -> dict[str, str]:
        """What was given to :func:`save`."""
        return {key: value for key, value in self._file.metadata.items() if key != KEY}

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __contains__(self, name: object) -> bool:
        return name in self._plain or name in self._about.tensors or name in self._about.aliases

    def __getitem__(self, name: str) -> Tensor:
        """The whole tensor; aliases give the very same one."""
        found = self._named(name)
        if found not in self._targets:
            return self._read(found, 0, None)
        if found not in self._shared:
            self._shared[found] = self._read(found, 0, None)
        return self._shared[found]

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows ``start`` to ``stop - 1`` of a tensor: where it is packed or raw, nothing else is touched."""
        found = self._named(name)
        shape = self._shape(found)
        if not shape or not 0 <= start <= stop <= shape[0]:
            raise ValueError(f"rows {start} to {stop} are not in {name!r} of shape {shape}")
        return self._read(found, start, stop)

    def coder(self, name: str) -> str:
        """How a tensor is stored: raw, packed, ans or zstd."""
        found = self._about.tensors.get(self._named(name))
        return "raw" if found is None else str(found.coding["coder"])

    def form(self, name: str) -> tuple[str, tuple[int, ...]]:
        """The dtype of a tensor, as safetensors calls it, and the shape; nothing is decoded."""
        found = self._named(name)
        return self._code(found), self._shape(found)

    def alias(self, name: str) -> str | None:
        """The tensor that is stored, where this is only another name of it."""
        target = self._named(name)
        return None if target == name else target

    def stored_bytes(self, name: str) -> int:
        """Bytes of a tensor's parts; 0 for what is another tensor under a second name."""
        if name in self._about.aliases:
            return 0
        if name in self._parts:
            return sum(part.nbytes for part in self._parts[name].values())
        entry = self._file.entries[self._named(name)]
        return entry.end - entry.begin

    def _named(self, name: str) -> str:
        if name not in self:
            raise KeyError(f"{self._file.path} has no tensor {name!r}")
        return self._about.aliases[name][0] if name in self._about.aliases else name

    def _shape(self, name: str) -> tuple[int, ...]:
        found = self._about.tensors.get(name)
        return self._file.entries[name].shape if found is None else found.shape

    def _code(self, name: str) -> str:
        found = self._about.tensors.get(name)
        return self._file.entries[name].code if found is None else found.code

    def _read(self, name: str, start: int, stop: int | None) -> Tensor:
        """Decode a tensor, or some rows of it."""
        shape, code = self._shape(name), self._code(name)
        dtype = dtype_of(code)
        assert dtype is not None
        row = math.prod(shape[1:])
        wanted = shape if stop is None else (stop - start, *shape[1:])
        first = start * row
        out = np.empty(math.prod(wanted), f"u{SIZES[code]}")
        found = self._about.tensors.get(name)
        if found is None:
            out[:] = self._file.patterns(name)[first : first + out.size]
        else:
            count = math.prod(shape)
            try:
                encoding.decode(found.coding, self._parts[name], count, first, out)
            except ValueError as error:
                raise self._file.wrong(f"tensor {name!r} is damaged: {error}") from None
        return tensor_of(out, dtype, wanted)

    def _described(self) -> About:
        text = self._file.metadata.get(KEY)
        if text is None:
            raise self._file.wrong(
                f"it is no compressed file: its metadata has no {KEY!r}; for plain safetensors there is "
                "safetensors.torch.load_file"
            )
        try:
            return About.loads(text)
        except ValueError as error:
            raise self._file.wrong(f"its description cannot be read: {error}") from None

    def _matched(self) -> list[str]:
        """Give every tensor in parts its parts; returns the others, which are stored as they are."""
        left = set(self._file.entries)
        if self._about.checksums not in left:
            raise self._file.wrong("it has no checksums")
        left.remove(self._about.checksums)
        for name, found in self._about.tensors.items():
            if name in self._file.entries:
                raise self._file.wrong(f"tensor {name!r} stands there twice, as it is and in parts")
            self._parts[name] = self._parts_of(name, found, left)
        for name, (target, _) in self._about.aliases.items():
            if name in left or name in self._about.tensors:
                raise self._file.wrong(f"tensor {name!r} stands there twice, once as an alias")
            if target not in left and target not in self._about.tensors:
                raise self._file.wrong(f"tensor {name!r} is said to be {target!r}, which is not there")
        for name in [*left, *self._about.tensors]:
            self._check_type(name)
        return [name for name in self._file.entries if name in left]

    def _parts_of(self, name: str, found: Described, left: set[str]) -> dict[str, Bits]:
        try:
            wanted = encoding.roles(found.coding)
        except ValueError as error:
            raise self._file.wrong(f"tensor {name!r}: {error}") from None
        parts = {}
        for role, code in wanted.items():
            part = f"{name}{self._about.separator}{role}"
            if part not in left:
                raise self._file.wrong(f"tensor {name!r} lacks its part {part!r}")
            left.remove(part)
            if self._file.entries[part].code != (code or found.code):
                raise self._file.wrong(
                    f"tensor {part!r} has dtype {self._file.entries[part].code}, not {code or found.code}"
                )
            parts[role] = self._file.patterns(part)
        return parts

    def _check_type(self, name: str) -> None:
        code, shape = self._code(name), self._shape(name)
        if code not in SIZES:
            raise self._file.wrong(f"tensor {name!r} has the unknown dtype {code!r}")
        if dtype_of(code) is None:
            raise self._file.wrong(
                f"tensor {name!r} has dtype {code}, which PyTorch {torch.__version__} does not have"
            )
        if math.prod(max(size, 1) for size in shape) >= 1 << 62:
            raise self._file.wrong(f"tensor {name!r} has the absurd shape {list(shape)}")

    def _ordered(self) -> list[str]:
        """All names in the order in which they were saved."""
        owner = {name: name for name in self._plain}
        for name, parts in self._parts.items():
            owner |= dict.fromkeys((f"{name}{self._about.separator}{role}" for role in parts), name)
        rest = iter(dict.fromkeys(owner[name] for name in self._file.entries if name in owner))
        order: list[str] = []
        for name, (_, place) in sorted(self._about.aliases.items(), key=lambda alias: alias[1][1]):
            order.extend(islice(rest, max(place - len(order), 0)))
            order.append(name)
        return [*order, *rest]

    def _check_size(self, limit: int | None) -> None:
        size = self._file.data.size
        allowed = max(ROOM, FACTOR * size) if limit is None else limit
        needed = 0
        for name in [*self._plain, *self._about.tensors]:
            needed += byte_count(self._code(name), self._shape(name))
            if needed > allowed:
                raise self._file.wrong(
                    f"tensor {name!r} of shape {list(self._shape(name))} brings what it expands to to "
                    f"{needed:,} bytes, more than the limit of {allowed:,}; if you trust the file, pass "
                    f"limit={needed} or more"
                )

    def _check_sums(self, data: bool = True) -> None:
        """Compare the checksums of the header and of every block."""
        block, name = self._about.block, self._about.checksums
        entry = self._file.entries[name]
        if entry.end != self._file.data.size or entry.end - entry.begin != sums_size(entry.begin, block):
            raise self._file.wrong(
                f"its checksums ({name!r}) are not at its end, or not as many as they must be"
            )
        sums = self._file.array(name).view("<u4")
        if zlib.crc32(self._file.header_bytes.data) != sums[0]:
            raise self._file.wrong("its header is damaged: the checksum differs")
        broken: list[int] = []

        def work(number: int) -> None:
            begin = number * block
            found = self._file.data[begin : min(begin + block, entry.begin)]
            if zlib.crc32(found.data) != sums[1 + number]:
                broken.append(number)

        if data:
            run([partial(work, number) for number in range(sums.size - 1)], torch.get_num_threads())
        if broken:
            raise self._file.wrong(self._damage(min(broken) * block, min(broken) * block + block))

    def _damage(self, begin: int, end: int) -> str:
        """Which tensors a damaged block is of."""
        inside = [
            name for name, entry in self._file.entries.items() if entry.begin < end and begin < entry.end
        ]
        return f"its data are damaged: the checksum of bytes {begin} to {end} differs, of {listed(inside, 5)}"

    def _check_coding(self, name: str) -> None:
        found = self._about.tensors[name]
        try:
            encoding.check(found.coding, self._parts[name], math.prod(found.shape))
        except ValueError as error:
            raise self._file.wrong(f"tensor {name!r} is damaged: {error}") from None
