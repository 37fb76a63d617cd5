"""How every kernel of this package is compiled: cached on disk, without the GIL, IEEE semantics untouched."""

from __future__ import annotations

import functools

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

kernel = functools.partial(numba.njit, cache=True, nogil=True, error_model="numpy", boundscheck=False)
inline = functools.partial(numba.njit, error_model="numpy", boundscheck=False, inline="never")


@intrinsic
def fma(typingctx, a, b, c):  # type: ignore[no-untyped-def]
    """a * b + c in float64 with one rounding: what makes exact products two instructions."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.fma(*args)

    return types.float64(types.float64, types.float64, types.float64), codegen


@intrinsic
def float_of_bits(typingctx, bits):  # type: ignore[no-untyped-def]
    """The float64 whose bit pattern is the given uint64."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), codegen
