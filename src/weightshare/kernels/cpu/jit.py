"""How every kernel of this package is compiled: cached on disk, without the GIL, IEEE semantics untouched."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from weightshare.kernels.announce import announce

announce()


def _package_stamp() -> tuple[int, int]:
    """Newest modification time and total size of the kernels' sources."""
    here = os.path.dirname(__file__)
    stats = [os.stat(os.path.join(here, name)) for name in os.listdir(here) if name.endswith(".py")]
    return max(int(s.st_mtime_ns) for s in stats), sum(s.st_size for s in stats)


_STAMP = _package_stamp()


def kernel(function: Callable[..., Any]) -> Any:
    """Compile on first use, cached on disk until any source file of this package changes.

    Numba's own stamp is that of the file a kernel stands in; but kernels inline helpers from other files.
    """
    options = {"nogil": True, "error_model": "numpy", "boundscheck": False}
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache folder can be written
        return numba.njit(**options)(function)
    cache_file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if cache_file is not None:
        cache_file._source_stamp = (cache_file._source_stamp, _STAMP)
    return compiled


inline = functools.partial(numba.njit, error_model="numpy", boundscheck=False, inline="never")


@intrinsic
def fma(typingctx, a, b, c):
    """a * b + c in float64 with one rounding: what makes exact products two instructions."""

    def codegen(context, builder, signature, args):
        return builder.fma(*args)

    return types.float64(types.float64, types.float64, types.float64), codegen


@intrinsic
def float_of_bits(typingctx, bits):
    """The float64 whose bit pattern is the given uint64."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), codegen


@intrinsic
def prefetch(typingctx, array, index):
    """Ask for the cache line of a one-dimensional contiguous array's element; any index is harmless."""

    def codegen(context, builder, signature, args):
        view = context.make_array(signature.args[0])(context, builder, args[0])
        pointer = builder.bitcast(builder.gep(view.data, [args[1]]), ir.IntType(8).as_pointer())
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        hint = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(hint, [pointer, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen
