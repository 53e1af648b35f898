"""Powers of two by Hopper's threads: some by the special function unit, some by ordinary multiplications and additions.

The unit is eight times as long at a warp's powers as other units are at its additions, and all can work at once.

    x = n + f with an integer n and |f| <= 1/2,   2^x = 2^n * p(f)

n comes from the low bits of x + MAGIC, already with the bias of an exponent; p is a polynomial of DEGREE. x is at most 2 (weights
are at most 1). From -127 down the power is zero, as the unit has it; NaN stays NaN.
"""

from struct import pack, unpack

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

MAGIC = 3.0 * 2**22 + 127
LEAST = -127.0
# From the highest power of f down, of least relative error: 8e-5 for degree 3, 3e-6 for degree 4.
POLYNOMIALS = {
    3: (0.055088684, 0.242604047, 0.693276227, 0.999928951),
    4: (0.00956051052, 0.0559170395, 0.240249813, 0.69312197, 0.999999166),
}


def literal(x: float) -> str:
    """A float32 as PTX writes it."""
    return f"0f{unpack('I', pack('f', x))[0]:08X}"


def code_of(software: int, degree: int) -> str:
    """PTX that raises 2 to four numbers, the last `software` of them by the polynomial."""
    lines = []
    for i in range(4):
        y, x = f"${i}", f"${4 + i}"
        if i < 4 - software:
            lines.append(f"ex2.approx.ftz.f32 {y}, {x};")
            continue
        first, second, *rest = map(literal, POLYNOMIALS[degree])
        lines += [
            f".reg .b32 x{i}, s{i}, n{i}, f{i}, p{i};",
            f"max.NaN.f32 x{i}, {x}, {literal(LEAST)};",
            f"add.rn.f32 s{i}, x{i}, {literal(MAGIC)};",
            f"sub.rn.f32 n{i}, s{i}, {literal(MAGIC)};",
            f"sub.rn.f32 f{i}, x{i}, n{i};",
            f"fma.rn.f32 p{i}, f{i}, {first}, {second};",
            *(f"fma.rn.f32 p{i}, p{i}, f{i}, {c};" for c in rest),
            f"shl.b32 s{i}, s{i}, 23;",
            f"mul.rn.f32 {y}, p{i}, s{i};",
        ]
    return "{ " + " ".join(lines) + " }"


ONE_OF_DEGREE_3, TWO_OF_DEGREE_3, ONE_OF_DEGREE_4, TWO_OF_DEGREE_4 = (
    gl.constexpr(code_of(software, degree)) for degree in (3, 4) for software in (1, 2)
)


@gluon.jit
def powers_of_two(x, SOFTWARE: gl.constexpr, DEGREE: gl.constexpr):
    """2^x; of four elements of each thread, SOFTWARE (0, 1 or 2) by the polynomial."""
    if SOFTWARE == 0:
        return gl.exp2(x)
    else:
        ONE: gl.constexpr = ONE_OF_DEGREE_3 if DEGREE == 3 else ONE_OF_DEGREE_4
        TWO: gl.constexpr = TWO_OF_DEGREE_3 if DEGREE == 3 else TWO_OF_DEGREE_4
        CODE: gl.constexpr = ONE if SOFTWARE == 1 else TWO
        return gl.inline_asm_elementwise(CODE, "=f,=f,=f,=f,f,f,f,f", [x], dtype=gl.float32, is_pure=True, pack=4)
