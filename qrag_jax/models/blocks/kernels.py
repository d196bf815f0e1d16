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
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import carray, cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 64  # outputs of a tile
MOST_GROUP = 32  # inputs that share a scale
ROWS_AT_ONCE = 4


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
# Of addresses and sizes. Units are tiles, or where no rows are multiplied groups; height is that of a tile of codes.
_UNITS, _CODES, _SCALES, _MINS, _ROWS, _OUT, _TILES, _HEIGHT, _GROUPS, _NUM_ROWS, _NUM_IN, _NUM_OUT = range(3, 15)
_WORDS = 15
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
def _float(_: Any, half: Any) -> Any:
    """The bits of a float16 as float32."""

    def code(_: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.fpext(builder.bitcast(values[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), code


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


@njit(**_OPTIONS)
def _one_row(packed, codes, scales, mins, has_mins, row, out, part):  # noqa: ANN001, ANN202
    """out = row @ tile. Codes are multiplied as they are, and what a group sums to is scaled once."""
    groups = scales.shape[0]
    height = codes.shape[0] // groups  # rows of codes that a group takes
    size = 2 * height if packed else height
    for lane in range(LANES):
        out[lane] = np.float32(0)
    for group in range(groups):
        for lane in range(LANES):
            part[lane] = np.float32(0)
        x = row[group * size : group * size + size]
        own = codes[group * height : group * height + height]
        if packed:
            for i in range(0, height, 4):
                x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
                x4, x5, x6, x7 = x[i + height], x[i + height + 1], x[i + height + 2], x[i + height + 3]
                for lane in range(LANES):
                    c0, c1 = np.uint8(own[i, lane]), np.uint8(own[i + 1, lane])
                    c2, c3 = np.uint8(own[i + 2, lane]), np.uint8(own[i + 3, lane])
                    part[lane] += (
                        x0 * np.float32(np.int32(c0 & 15))
                        + x1 * np.float32(np.int32(c1 & 15))
                        + x2 * np.float32(np.int32(c2 & 15))
                        + x3 * np.float32(np.int32(c3 & 15))
                        + x4 * np.float32(np.int32(c0 >> 4))
                        + x5 * np.float32(np.int32(c1 >> 4))
                        + x6 * np.float32(np.int32(c2 >> 4))
                        + x7 * np.float32(np.int32(c3 >> 4))
                    )
        else:
            for i in range(0, height, 8):
                x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
                x4, x5, x6, x7 = x[i + 4], x[i + 5], x[i + 6], x[i + 7]
                for lane in range(LANES):
                    part[lane] += (
                        x0 * np.float32(own[i, lane])
                        + x1 * np.float32(own[i + 1, lane])
                        + x2 * np.float32(own[i + 2, lane])
                        + x3 * np.float32(own[i + 3, lane])
                        + x4 * np.float32(own[i + 4, lane])
                        + x5 * np.float32(own[i + 5, lane])
                        + x6 * np.float32(own[i + 6, lane])
                        + x7 * np.float32(own[i + 7, lane])
                    )
        if has_mins:
            total = np.float32(0)
            for i in range(size):
                total += x[i]
            for lane in range(LANES):
                out[lane] += part[lane] * _float(scales[group, lane]) + total * _float(mins[group, lane])
        else:
            for lane in range(LANES):
                out[lane] += part[lane] * _float(scales[group, lane])


@njit(**_OPTIONS)
def _numbers(packed, codes, scales, mins, has_mins, group, height, numbers):  # noqa: ANN001, ANN202
    """Writes the numbers of one group of a tile, [size, LANES]."""
    for lane in range(LANES):
        numbers[MOST_GROUP, lane] = _float(scales[group, lane])
        numbers[MOST_GROUP + 1, lane] = _float(mins[group, lane]) if has_mins else np.float32(0)
    scale, least = numbers[MOST_GROUP], numbers[MOST_GROUP + 1]
    for i in range(height):
        own = codes[group * height + i]
        if packed:
            for lane in range(LANES):
                code = np.uint8(own[lane])
                numbers[i, lane] = np.float32(np.int32(code & 15)) * scale[lane] + least[lane]
                numbers[i + height, lane] = np.float32(np.int32(code >> 4)) * scale[lane] + least[lane]
        else:
            for lane in range(LANES):
                numbers[i, lane] = np.float32(own[lane]) * scale[lane] + least[lane]


@njit(**_OPTIONS)
def _few_rows(packed, codes, scales, mins, has_mins, rows, out, numbers):  # noqa: ANN001, ANN202
    """out = rows @ tile; a multiple of `ROWS_AT_ONCE` rows. A group's numbers are made once for all of them."""
    groups, count = scales.shape[0], rows.shape[0]
    height = codes.shape[0] // groups
    size = 2 * height if packed else height
    for row in range(count):
        for lane in range(LANES):
            out[row, lane] = np.float32(0)
    for group in range(groups):
        _numbers(packed, codes, scales, mins, has_mins, group, height, numbers)
        for row in range(0, count, ROWS_AT_ONCE):
            out_a, out_b, out_c, out_d = out[row], out[row + 1], out[row + 2], out[row + 3]
            for i in range(0, size, 4):
                k = group * size + i
                a, b, c, d = rows[row, k:], rows[row + 1, k:], rows[row + 2, k:], rows[row + 3, k:]
                a0, a1, a2, a3 = a[0], a[1], a[2], a[3]
                b0, b1, b2, b3 = b[0], b[1], b[2], b[3]
                c0, c1, c2, c3 = c[0], c[1], c[2], c[3]
                d0, d1, d2, d3 = d[0], d[1], d[2], d[3]
                for lane in range(LANES):
                    w0, w1 = numbers[i, lane], numbers[i + 1, lane]
                    w2, w3 = numbers[i + 2, lane], numbers[i + 3, lane]
                    out_a[lane] += a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3
                    out_b[lane] += b0 * w0 + b1 * w1 + b2 * w2 + b3 * w3
                    out_c[lane] += c0 * w0 + c1 * w1 + c2 * w2 + c3 * w3
                    out_d[lane] += d0 * w0 + d1 * w1 + d2 * w2 + d3 * w3


@njit(**_OPTIONS)
def _multiply_tile(packed, codes, scales, mins, has_mins, rows, out, first, numbers, made):  # noqa: ANN001, ANN202
    """out[:, first : first + LANES] = rows @ tile."""
    if len(rows) == 1:
        _one_row(packed, codes, scales, mins, has_mins, rows[0], made[0], numbers[0])
    else:
        _few_rows(packed, codes, scales, mins, has_mins, rows, made, numbers)
    for row in range(len(rows)):
        for lane in range(LANES):
            out[row, first + lane] = made[row, lane]


@njit(**_OPTIONS)
def _write_group(packed, codes, scales, mins, has_mins, group, out, numbers):  # noqa: ANN001, ANN202
    """The numbers of one group of all tiles: whole rows of `out`, as writing is slow where it jumps."""
    height = codes.shape[1] // scales.shape[1]
    size = 2 * height if packed else height
    for tile in range(len(codes)):
        _numbers(packed, codes[tile], scales[tile], mins[tile], has_mins, group, height, numbers)
        for i in range(size):
            for lane in range(LANES):
                out[group * size + i, tile * LANES + lane] = numbers[i, lane]


# --- Jobs -------------------------------------------------------------------------------------------------------------


@njit(**_OPTIONS)
def _work(job):  # noqa: ANN001, ANN202
    """Takes units until none is left."""
    tiles, num_in, groups, num_out, count = job[_TILES], job[_NUM_IN], job[_GROUPS], job[_NUM_OUT], job[_NUM_ROWS]
    height, has_mins = job[_HEIGHT], job[_MINS] != 0
    packed = height < num_in
    codes = carray(_pointer(job[_CODES]), (tiles, height, LANES), np.int8)
    scales = carray(_pointer(job[_SCALES]), (tiles, groups, LANES), np.uint16)
    mins = carray(_pointer(job[_MINS] if has_mins else job[_SCALES]), (tiles, groups, LANES), np.uint16)
    rows = carray(_pointer(job[_ROWS]), (count, num_in), np.float32)
    out = carray(_pointer(job[_OUT]), (count if count else num_in, num_out), np.float32)
    numbers = np.empty((MOST_GROUP + 2, LANES), np.float32)
    made = np.empty((max(count, 1), LANES), np.float32)
    counters, units = job.ctypes.data, job[_UNITS]
    unit = _fetch_add(counters, 1)
    while unit < units:
        if count == 0:
            _write_group(packed, codes, scales, mins, has_mins, unit, out, numbers)
        else:
            _multiply_tile(
                packed, codes[unit], scales[unit], mins[unit], has_mins, rows, out, LANES * unit, numbers, made
            )
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
def _handle(frame, multiplies):  # noqa: ANN001, ANN202
    """Operands codes, scales, rows and, if there are any, mins; one result."""
    if frame[_FRAME_EXTENSION] != 0:  # asked at registration for the version of the interface
        metadata = _words(_words(frame[_FRAME_EXTENSION], 4)[_EXTENSION_METADATA], 4)
        # Two numbers of 32 bits. Minor ones only add to the structs: the caller's. Major ones change them: 0, which a
        # caller of another one refuses.
        metadata[_METADATA_VERSION] = (_words(frame[_FRAME_API], 5)[_API_VERSION] >> 32) << 32
        return 0
    args, api = frame[_FRAME_ARGS], _words(frame[_FRAME_API], _API_NUM_THREADS + 1)
    codes, scales, out = _buffer(args, 0), _buffer(args, 1), _buffer(frame[_FRAME_RESULTS], 0)
    shape = _words(codes[_BUFFER_DIMS], 3)
    address = _malloc(8 * _WORDS)
    job = _words(address, _WORDS)
    job[_NEXT], job[_DONE] = 0, 0
    job[_TILES], job[_HEIGHT] = shape[0], shape[1]
    job[_CODES], job[_SCALES], job[_OUT] = codes[_BUFFER_DATA], scales[_BUFFER_DATA], out[_BUFFER_DATA]
    job[_MINS] = _buffer(args, 3)[_BUFFER_DATA] if frame[_FRAME_NUM_ARGS] > 3 else 0
    job[_GROUPS] = _words(scales[_BUFFER_DIMS], 3)[1]
    out_shape = _words(out[_BUFFER_DIMS], 2)
    job[_NUM_OUT] = out_shape[1]
    if multiplies:
        rows = _buffer(args, 2)
        row_shape = _words(rows[_BUFFER_DIMS], 2)
        job[_ROWS], job[_NUM_ROWS], job[_NUM_IN] = rows[_BUFFER_DATA], row_shape[0], row_shape[1]
        job[_UNITS] = job[_TILES]
    else:
        job[_ROWS], job[_NUM_ROWS], job[_NUM_IN] = out[_BUFFER_DATA], 0, out_shape[0]
        job[_UNITS] = job[_GROUPS]
    threads, asked = np.ones(1, np.int64), np.zeros(5, np.int64)
    asked[0], asked[2], asked[3] = 32, frame[_FRAME_CONTEXT], threads.ctypes.data
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
    return 0


@cfunc(types.intp(types.voidptr), **_OPTIONS)
def multiply(frame):  # noqa: ANN001, ANN201
    """Codes, scales, rows [n, num_in] (1 or a multiple of `ROWS_AT_ONCE`), mins -> rows @ matrix [n, tiles * LANES]."""
    return _handle(carray(frame, (_FRAME_RESULTS + 1,), np.int64), True)


@cfunc(types.intp(types.voidptr), **_OPTIONS)
def write_out(frame):  # noqa: ANN001, ANN201
    """Codes, scales, rows (not read), mins -> the numbers of the matrix [num_in, tiles * LANES]."""
    return _handle(carray(frame, (_FRAME_RESULTS + 1,), np.int64), False)
