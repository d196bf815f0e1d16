"""Products of rows with block matrices on CPU: compiled by Numba when first imported, called by XLA in its own threads.

XLA has no loop that is quick on such numbers: it turns a sum of products into a dot and writes the converted factor
out. What it calls here is a foreign function (XLA's typed FFI, of which this module knows the layout of call frames,
version 0 of the binary interface). A call is a *job*: the tiles of a matrix are taken by a shared counter, by the
calling thread and by those of XLA's pool that have time. The caller works until no tile is left and waits for the
tiles that others hold, never for a thread that has not begun: so a pool that is busy slows a job and cannot stop it.

Everything compiled stands in this file: Numba keeps compiled code by the file's time and does not look into others.
"""

# Numba gives intrinsics their context, and its package exports less than it documents.
# pyright: reportCallIssue=false, reportPrivateImportUsage=false
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import carray, cfunc, njit, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

LANES = 64  # outputs of a tile
ROWS_AT_ONCE = 4
_ROWS_OF_UNIT = 64


def _can_be_kept() -> bool:
    """False where neither the folder of this file nor the user's cache may be written: each process compiles then."""
    try:
        njit(cache=True)(_can_be_kept)
    except RuntimeError:  # no place was found
        return False
    return True


# Sums may be reordered; NaN and infinity stay what they are.
_OPTIONS: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "nsz"},
    "nogil": True,
    "boundscheck": False,
    "error_model": "numpy",
    "cache": _can_be_kept(),
}
_INT64 = ir.IntType(64)

# A job: int64 words. The first three are counted by all threads.
_NEXT, _DONE, _USERS = 0, 1, 2
# Of addresses and sizes. Units are some rows with one tile; height is that of a tile of codes.
_UNITS, _CODES, _SCALES, _MINS, _ROWS, _OUT, _TILES, _HEIGHT, _GROUPS, _NUM_ROWS, _NUM_IN = range(3, 14)
_WORDS = 14
# Words of XLA's structs (xla/ffi/api/c_api.h).
_FRAME_EXTENSION, _FRAME_API, _FRAME_CONTEXT, _FRAME_NUM_ARGS, _FRAME_ARGS, _FRAME_RESULTS = 1, 2, 3, 7, 9, 14
_BUFFER_DATA, _BUFFER_DIMS = 3, 5
_EXTENSION_METADATA, _METADATA_VERSION = 3, 3
_API_VERSION, _API_SCHEDULE, _API_NUM_THREADS = 4, 17, 18
_TASK = "qrag_jax_block_task"


# --- What Numba's language lacks --------------------------------------------------------------------------------------


@intrinsic
def _pointer(_: Any, address: Any) -> Any:
    """An address as a pointer."""

    def code(_: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(address), code


@intrinsic
def _fetch_add(_: Any, address: Any, amount: Any) -> Any:
    """Adds to a shared word; returns what it was."""

    def code(_: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(values[0], _INT64.as_pointer()), values[1], "seq_cst")

    return types.int64(types.int64, types.int64), code


@intrinsic
def _load(_: Any, address: Any) -> Any:
    """A shared word."""

    def code(_: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(values[0], _INT64.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), code


@intrinsic
def _malloc(_: Any, size: Any) -> Any:
    def code(_: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(cgutils.voidptr_t, [_INT64])
        function = cgutils.get_or_insert_function(builder.module, kind, "malloc")
        return builder.ptrtoint(builder.call(function, values), _INT64)

    return types.int64(types.int64), code


@intrinsic
def _free(_: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t])
        function = cgutils.get_or_insert_function(builder.module, kind, "free")
        builder.call(function, [builder.inttoptr(values[0], cgutils.voidptr_t)])
        return context.get_constant(types.int64, 0)

    return types.int64(types.int64), code


@intrinsic
def _call(_: Any, function: Any, argument: Any) -> Any:
    """Calls a function of XLA by its address; 0 is success."""

    def code(_: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(_INT64, [_INT64])
        return builder.call(builder.inttoptr(values[0], kind.as_pointer()), [values[1]])

    return types.int64(types.int64, types.int64), code


@intrinsic
def _task_address(_: Any) -> Any:
    """Where `_task` is: by name, as compiled code that is kept must hold no address of this process."""

    def code(_: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t])
        return builder.ptrtoint(cgutils.get_or_insert_function(builder.module, kind, _TASK), _INT64)

    return types.int64(), code


# --- Arithmetic of a tile ---------------------------------------------------------------------------------------------


def _vector_form(features: str) -> tuple[int, dict[int, int]]:
    """(numbers of a vector, rows that are multiplied together -> vectors of outputs that they meet at once).

    As many as there are registers for sums: AVX-512 has 32 of 16 numbers, AVX 16 of 8, others 32 of 4.
    """
    if "+avx512f" in features:
        return 16, {1: 4, 4: 4, 8: 2}
    if "+avx" in features:
        return 8, {1: 4, 4: 2, 6: 2}
    return 4, {1: 4, 4: 4, 8: 2}


_CONTEXT: Any = cpu_target.target_context
_WIDTH, _VECTORS = _vector_form(_CONTEXT.codegen().magic_tuple()[2])
_MANY = max(_VECTORS)
_FLOAT, _HALF, _BYTE = ir.FloatType(), ir.HalfType(), ir.IntType(8)
_FLOATS, _HALVES, _BYTES, _INTS = (ir.VectorType(each, _WIDTH) for each in (_FLOAT, _HALF, _BYTE, ir.IntType(32)))


def _vector(builder: Any, pointer: Any, kind: Any, offset: Any) -> Any:
    """A place in memory as one of a vector."""
    return builder.bitcast(builder.gep(pointer, [offset]), kind.as_pointer())


def _splat(builder: Any, number: Any) -> Any:
    """A vector of one number."""
    nothing = ir.Constant(_FLOATS, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.IntType(32)(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(_INTS, [0] * _WIDTH))


def _multiply_add(builder: Any, one: Any, other: Any, more: Any) -> Any:
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    return builder.call(
        cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{_WIDTH}f32"), [one, other, more]
    )


def _group_product(num_rows: int, packed: bool) -> Any:
    """An intrinsic: out[num_rows, LANES] += rows[:, inputs of a group] @ that group of a tile.

    Codes are multiplied as they are, and what a group sums to is scaled once; so a code is converted once for all rows,
    and stored nowhere. Numba has no way to say that sums stay in registers: this is written in LLVM's language.
    """
    vectors = _VECTORS[num_rows]
    chains = 2 if num_rows == 1 else 1  # of sums: an addition waits for the one before, and one row has few
    keys = list(product(range(chains), range(num_rows), range(vectors)))

    def codes_of(builder: Any, codes: Any, place: Any, height: Any, lane: Any) -> list[tuple[Any, list[Any]]]:
        """(input, its codes in all lanes) of one byte each, or of two bytes if a byte is one code."""
        found = []
        for at in (place,) if packed else (place, builder.add(place, _INT64(1))):
            start = builder.add(builder.mul(at, _INT64(LANES)), lane)
            starts = [builder.add(start, _INT64(_WIDTH * vector)) for vector in range(vectors)]
            found.append((at, [builder.load(_vector(builder, codes, _BYTES, each), align=1) for each in starts]))
        if not packed:
            return [(at, [builder.sitofp(builder.sext(each, _INTS), _FLOATS) for each in some]) for at, some in found]
        ((at, some),) = found
        wide = [builder.zext(each, _INTS) for each in some]
        low, high = ir.Constant(_INTS, [15] * _WIDTH), ir.Constant(_INTS, [4] * _WIDTH)
        return [
            (at, [builder.sitofp(builder.and_(each, low), _FLOATS) for each in wide]),
            (builder.add(at, height), [builder.sitofp(builder.lshr(each, high), _FLOATS) for each in wide]),
        ]

    def add_products(builder: Any, codes: Any, row_starts: list[Any], height: Any, lane: Any) -> dict[Any, Any]:
        """The loop over the bytes of the group; its sums."""
        entry, loop, end = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)
        builder.position_at_end(loop)
        place = builder.phi(_INT64)
        sums = {key: builder.phi(_FLOATS) for key in keys}
        made = dict(sums)
        for number, (at, found) in enumerate(codes_of(builder, codes, place, height, lane)):
            for row, start in enumerate(row_starts):
                factor = _splat(builder, builder.load(builder.gep(start, [at])))
                for vector, own in enumerate(found):
                    key = number % chains, row, vector
                    made[key] = _multiply_add(builder, factor, own, made[key])
        following = builder.add(place, _INT64(1 if packed else 2))
        zero = ir.Constant(_FLOATS, [0.0] * _WIDTH)
        for phi, first, last in [(place, _INT64(0), following), *((sums[key], zero, made[key]) for key in keys)]:
            phi.add_incoming(first, entry)
            phi.add_incoming(last, loop)
        builder.cbranch(builder.icmp_signed("<", following, height), loop, end)
        builder.position_at_end(end)
        return made

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        *addresses, stride, groups, height = values
        kinds = (_BYTE, _HALF, _HALF, _FLOAT, _FLOAT, _FLOAT)
        codes, scales, mins, rows, totals, out = (
            builder.inttoptr(address, kind.as_pointer()) for address, kind in zip(addresses, kinds, strict=True)
        )
        row_starts = [builder.gep(rows, [builder.mul(stride, _INT64(row))]) for row in range(num_rows)]
        width = _INT64(_WIDTH * vectors)
        with cgutils.for_range_slice(builder, _INT64(0), _INT64(LANES), width, _INT64) as (lane, _):
            made = add_products(builder, codes, row_starts, height, lane)
            for vector in range(vectors):
                here = builder.add(lane, _INT64(_WIDTH * vector))

                def add_scaled(halves: Any, factors: list[Any], here: Any = here) -> None:
                    scale = builder.fpext(builder.load(_vector(builder, halves, _HALVES, here), align=2), _FLOATS)
                    for row, factor in enumerate(factors):
                        own = _vector(builder, out, _FLOATS, builder.add(here, _INT64(row * LANES)))
                        builder.store(_multiply_add(builder, factor, scale, builder.load(own, align=4)), own, align=4)

                sums = [[made[chain, row, vector] for chain in range(chains)] for row in range(num_rows)]
                add_scaled(scales, [reduce(builder.fadd, each) for each in sums])
                with builder.if_then(builder.icmp_signed("!=", addresses[2], _INT64(0))):
                    at = [builder.mul(groups, _INT64(row)) for row in range(num_rows)]
                    add_scaled(mins, [_splat(builder, builder.load(builder.gep(totals, [each]))) for each in at])
        return context.get_constant(types.int64, 0)

    @intrinsic
    def group_product(_, codes, scales, mins, rows, totals, out, stride, groups, height):  # noqa: ANN001, ANN202
        return types.int64(*[types.int64] * 9), code

    return group_product


_ONE, _ONE_PACKED = _group_product(1, False), _group_product(1, True)
_FOUR, _FOUR_PACKED = _group_product(4, False), _group_product(4, True)
_MANY_OF, _MANY_PACKED = _group_product(_MANY, False), _group_product(_MANY, True)


@njit(**_OPTIONS)
def _multiply_tile(packed, codes, scales, mins, rows, totals, out):  # noqa: ANN001, ANN202
    """out = rows @ tile; 1 row, or a multiple of `ROWS_AT_ONCE`. `totals` are the sums of groups of inputs."""
    groups, count = scales.shape[0], rows.shape[0]
    height, size = codes.shape[0] // groups, rows.shape[1] // groups
    out[:count] = np.float32(0)
    for group in range(groups):
        code, scale = codes[group * height :].ctypes.data, scales[group:].ctypes.data
        least = mins[group:].ctypes.data if len(mins) else 0
        row = 0
        while row < count:
            x, total, made = (
                rows[row:, group * size :].ctypes.data,
                totals[row:, group:].ctypes.data,
                out[row:].ctypes.data,
            )
            given = code, scale, least, x, total, made, rows.shape[1], groups, height
            left = count - row - _MANY
            if left == 0 or left >= ROWS_AT_ONCE:  # else the last ones were no whole four
                _MANY_PACKED(*given) if packed else _MANY_OF(*given)
                row += _MANY
            elif count > 1:
                _FOUR_PACKED(*given) if packed else _FOUR(*given)
                row += ROWS_AT_ONCE
            else:
                _ONE_PACKED(*given) if packed else _ONE(*given)
                row += 1


@njit(**_OPTIONS)
def _totals(rows, groups):  # noqa: ANN001, ANN202
    """The sum of each group of inputs."""
    size = rows.shape[1] // groups
    found = np.empty((len(rows), groups), np.float32)
    for row in range(len(rows)):
        for group in range(groups):
            total = np.float32(0)
            for i in range(size):
                total += rows[row, group * size + i]
            found[row, group] = total
    return found


# --- Jobs -------------------------------------------------------------------------------------------------------------


@njit(**_OPTIONS)
def _work(job):  # noqa: ANN001, ANN202
    """Takes units until none is left."""
    tiles, num_in, groups, count, height = job[_TILES], job[_NUM_IN], job[_GROUPS], job[_NUM_ROWS], job[_HEIGHT]
    has_mins = job[_MINS] != 0
    codes = carray(_pointer(job[_CODES]), (tiles, height, LANES), np.int8)
    scales = carray(_pointer(job[_SCALES]), (tiles, groups, LANES), np.uint16)
    mins = carray(
        _pointer(job[_MINS] if has_mins else job[_SCALES]), (tiles, groups if has_mins else 0, LANES), np.uint16
    )
    rows = carray(_pointer(job[_ROWS]), (count, num_in), np.float32)
    out = carray(_pointer(job[_OUT]), (count, tiles * LANES), np.float32)
    made = np.empty((min(count, _ROWS_OF_UNIT), LANES), np.float32)
    totals = _totals(rows, groups) if has_mins else np.empty((count, groups), np.float32)
    counters, units = job.ctypes.data, job[_UNITS]
    unit = _fetch_add(counters, 1)
    while unit < units:
        tile, first = unit % tiles, unit // tiles * _ROWS_OF_UNIT
        some = rows[first : first + _ROWS_OF_UNIT]
        _multiply_tile(height < num_in, codes[tile], scales[tile], mins[tile], some, totals[first:], made)
        for row in range(len(some)):
            for lane in range(LANES):
                out[first + row, LANES * tile + lane] = made[row, lane]
        _fetch_add(counters + 8 * _DONE, 1)
        unit = _fetch_add(counters, 1)


@njit(**_OPTIONS)
def _leave(address):  # noqa: ANN001, ANN202
    """The last user of a job frees it: a thread that begins when all is done still looks at the counter."""
    if _fetch_add(address + 8 * _USERS, -1) == 1:
        _free(address)


@cfunc(types.void(types.voidptr), **_OPTIONS)
def _task(data):  # noqa: ANN001, ANN202
    job = carray(data, (_WORDS,), np.int64)
    _work(job)
    _leave(job.ctypes.data)


binding.add_symbol(_TASK, _task.address)


@njit(**_OPTIONS)
def _words(address, count):  # noqa: ANN001, ANN202
    return carray(_pointer(address), (count,), np.int64)


@njit(**_OPTIONS)
def _buffer(listed, place):  # noqa: ANN001, ANN202
    return _words(_words(listed, place + 1)[place], _BUFFER_DIMS + 1)


@njit(**_OPTIONS)
def _run(job, api, context):  # noqa: ANN001, ANN202
    """Does a job, with the threads of the pool that come."""
    address, threads, asked = job.ctypes.data, np.ones(1, np.int64), np.zeros(5, np.int64)
    asked[0], asked[2], asked[3] = 32, context, threads.ctypes.data
    helpers = 0 if _call(api[_API_NUM_THREADS], asked.ctypes.data) else min(threads[0], job[_UNITS]) - 1
    helpers = max(helpers, 0)
    job[_USERS] = helpers + 1
    for _ in range(helpers):
        asked[0], asked[3], asked[4] = 40, _task_address(), address
        if _call(api[_API_SCHEDULE], asked.ctypes.data):
            _leave(address)  # in the place of a thread that does not come
    _work(job)
    while _load(address + 8 * _DONE) < job[_UNITS]:
        pass
    _leave(address)


@cfunc(types.intp(types.voidptr), **_OPTIONS)
def multiply(address):  # noqa: ANN001, ANN201
    """Codes, scales, rows [n, num_in] (1 or a multiple of `ROWS_AT_ONCE`), mins -> rows @ matrix [n, tiles * LANES]."""
    frame = carray(address, (_FRAME_RESULTS + 1,), np.int64)
    if frame[_FRAME_EXTENSION] != 0:  # asked at registration for the version of the interface
        metadata = _words(_words(frame[_FRAME_EXTENSION], 4)[_EXTENSION_METADATA], 4)
        # Two numbers of 32 bits. Minor ones only add to the structs: the caller's. Major ones change them: 0, which a
        # caller of another one refuses.
        metadata[_METADATA_VERSION] = (_words(frame[_FRAME_API], 5)[_API_VERSION] >> 32) << 32
        return 0
    args, api = frame[_FRAME_ARGS], _words(frame[_FRAME_API], _API_NUM_THREADS + 1)
    codes, scales, rows = _buffer(args, 0), _buffer(args, 1), _buffer(args, 2)
    shape, row_shape = _words(codes[_BUFFER_DIMS], 3), _words(rows[_BUFFER_DIMS], 2)
    job = _words(_malloc(8 * _WORDS), _WORDS)
    job[_NEXT], job[_DONE] = 0, 0
    job[_TILES], job[_HEIGHT], job[_GROUPS] = shape[0], shape[1], _words(scales[_BUFFER_DIMS], 3)[1]
    job[_NUM_ROWS], job[_NUM_IN] = row_shape[0], row_shape[1]
    job[_CODES], job[_SCALES], job[_ROWS] = codes[_BUFFER_DATA], scales[_BUFFER_DATA], rows[_BUFFER_DATA]
    job[_OUT] = _buffer(frame[_FRAME_RESULTS], 0)[_BUFFER_DATA]
    job[_MINS] = _buffer(args, 3)[_BUFFER_DATA] if frame[_FRAME_NUM_ARGS] > 3 else 0
    job[_UNITS] = job[_TILES] * -(-job[_NUM_ROWS] // _ROWS_OF_UNIT)
    _run(job, api, frame[_FRAME_CONTEXT])
    return 0
