"""How the rungs address memory: indices that never wrap around, and 16-byte accesses.

    offset(i)                     `i` as an index that is known not to be negative
    load4(array, index)           array[index : index + 4] as a float32x4       LDG.E.128, LDS.128
    store4(array, index, value)   array[index : index + 4] = value              STG.E.128, STS.128

Numba gives array[i] Python's meaning of a negative i, at the price of a comparison and a selection an access, more than the
access itself costs. An unsigned index has no such meaning, so `array[offset(i)]` is one instruction.

A 16-byte access moves four adjacent float32 elements of a contiguous one-dimensional array, in global or shared memory, in
one instruction. The address must be a multiple of 16 bytes, or the GPU raises a misaligned-address error; shared arrays are
made with `alignment=ALIGNMENT`.

In numba-cuda's simulator a 16-byte access is a single indexing of `array` with a slice: a load reads `array[index : index +
4].copy()`, a store assigns `array[index : index + 4]`. An array that logs accesses sees in it what the GPU does: one access
of 16 bytes by one thread.
"""

from typing import Any

from numba import cuda
from numba.cuda import types
from numba.cuda.core import config

LANES = 4
SIMULATED = bool(config.ENABLE_CUDASIM)

if SIMULATED:
    ALIGNMENT = None  # the simulator takes no other
    offset: Any = int

    def load4(array: Any, index: int) -> Any:
        return cuda.float32x4(*array[index : index + LANES].copy())

    def store4(array: Any, index: int, value: Any) -> None:
        array[index : index + LANES] = (value.x, value.y, value.z, value.w)

else:
    from llvmlite import ir
    from numba.cuda import cgutils
    from numba.cuda.extending import intrinsic
    from numba.cuda.vector_types import vector_types

    ALIGNMENT = 16
    offset = types.uint64
    FLOAT4 = vector_types["float32x4"]
    IR_FLOAT4 = ir.VectorType(ir.FloatType(), LANES)

    def _vector_pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        """The address of array[index], the first two arguments, as a pointer to a vector of four."""
        array_type, index_type = signature.args[:2]
        index = context.cast(builder, args[1], index_type, types.intp)
        data = context.make_array(array_type)(context, builder, value=args[0]).data
        return builder.bitcast(builder.gep(data, [index], inbounds=True), IR_FLOAT4.as_pointer(data.type.addrspace))

    def _check(array: Any) -> None:
        if array != types.Array(types.float32, 1, "C"):
            raise TypeError(f"a 16-byte access needs a contiguous one-dimensional float32 array, got {array}")

    @intrinsic
    def load4(typing_context: Any, array: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            lanes = builder.load(_vector_pointer(context, builder, signature, args), align=16)
            value = cgutils.create_struct_proxy(FLOAT4)(context, builder)
            for lane, name in enumerate(FLOAT4.attr_names):
                setattr(value, name, builder.extract_element(lanes, ir.Constant(ir.IntType(32), lane)))
            return value._getvalue()

        _check(array)
        return FLOAT4(array, index), generate

    @intrinsic
    def store4(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source = cgutils.create_struct_proxy(FLOAT4)(context, builder, value=args[2])
            lanes = ir.Constant(IR_FLOAT4, ir.Undefined)
            for lane, name in enumerate(FLOAT4.attr_names):
                lanes = builder.insert_element(lanes, getattr(source, name), ir.Constant(ir.IntType(32), lane))
            builder.store(lanes, _vector_pointer(context, builder, signature, args), align=16)
            return context.get_dummy_value()

        _check(array)
        return types.void(array, index, value), generate
