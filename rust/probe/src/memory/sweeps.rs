//! Sweeps over one block of memory, reading or writing every byte of it with one unit of the processor.
//!
//! In assembler, so that the instructions are the ones the unit is named for whatever the compiler knows, and so that
//! the pass over a block of a kilobyte costs no call. Sixteen accesses stand in a row: 128 bytes (integer, float) to
//! 1,024 bytes (AVX-512), so a block is a multiple of 1,024 bytes.
//!
//! Reading adds each word to one of eight (float: sixteen) sums, by the access itself (`add reg, [memory]`). Writing
//! stores one value everywhere, and with each pass the next.

use std::arch::asm;

/// A block's size and start are multiples of this.
pub const STEP_BYTES: usize = 1024;

/// The unit that moves the data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// 64-bit general registers.
    Integer,
    /// One double at a time.
    Float,
    Vector(super::isa::Isa),
}

/// What one does to a block: (start, bytes, passes, first value to write) -> sum of the words read.
///
/// Integers are summed and stepped modulo 2^64; with [`Unit::Float`] words are doubles, value and sum too (as bits).
pub type Sweep = unsafe fn(*mut u8, usize, u64, u64) -> u64;

/// The loops round one row of sixteen accesses.
macro_rules! sweep {
    ($(#[$about:meta])* $name:ident, before: [$($before:literal),*], row: [$($row:literal),*],
     pass: [$($pass:literal),*], after: [$($after:literal),*], stride: $stride:literal) => {
        $(#[$about])*
        ///
        /// # Safety
        /// The block is writable, aligned to [`STEP_BYTES`] and a positive multiple of them long; passes are positive.
        unsafe fn $name(start: *mut u8, bytes: usize, passes: u64, value: u64) -> u64 {
            let mut result = value;
            // SAFETY: reads and writes within the block only; every register it uses is named.
            unsafe {
                asm!(
                    $($before,)*
                    "2:",
                    "mov {at}, {start}",
                    "3:",
                    $($row,)*
                    concat!("add {at}, 16*", $stride),
                    "cmp {at}, {end}",
                    "jb 3b",
                    $($pass,)*
                    "sub {passes}, 1",
                    "jnz 2b",
                    $($after,)*
                    start = in(reg) start,
                    end = in(reg) start.add(bytes),
                    at = out(reg) _,
                    passes = inout(reg) passes => _,
                    inout("rax") result,
                    out("rdx") _, out("r8") _, out("r9") _, out("r10") _, out("r11") _, out("r12") _, out("r13") _,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                    options(nostack),
                );
            }
            result
        }
    };
}

sweep!(
    /// Sum the block's words, 64-bit integers.
    read_integer,
    before: [
        "xor eax, eax", "xor edx, edx",
        ".irp r, r8,r9,r10,r11,r12,r13", "xor \\r, \\r", ".endr"
    ],
    row: [
        ".irp half, 0,64",
        "add rax, [{at}+\\half]", "add rdx, [{at}+\\half+8]", "add r8, [{at}+\\half+16]", "add r9, [{at}+\\half+24]",
        "add r10, [{at}+\\half+32]", "add r11, [{at}+\\half+40]", "add r12, [{at}+\\half+48]", "add r13, [{at}+\\half+56]",
        ".endr"
    ],
    pass: [],
    after: [".irp r, rdx,r8,r9,r10,r11,r12,r13", "add rax, \\r", ".endr"],
    stride: "8"
);

sweep!(
    /// Fill the block with the value, 64-bit integers.
    write_integer,
    before: [],
    row: [
        ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "mov [{at}+\\i*8], rax", ".endr"
    ],
    pass: ["add rax, 1"],
    after: [],
    stride: "8"
);

sweep!(
    /// Sum the block's doubles.
    read_float,
    before: [
        ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "xorpd xmm\\i, xmm\\i", ".endr"
    ],
    row: [
        ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "addsd xmm\\i, [{at}+\\i*8]", ".endr"
    ],
    pass: [],
    after: [
        ".irp i, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "addsd xmm0, xmm\\i", ".endr",
        "movq rax, xmm0"
    ],
    stride: "8"
);

sweep!(
    /// Fill the block with the value, doubles.
    write_float,
    before: [
        "movq xmm0, rax",
        "mov rdx, 0x3ff0000000000000", "movq xmm1, rdx" // 1.0
    ],
    row: [
        ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "movsd [{at}+\\i*8], xmm0", ".endr"
    ],
    pass: ["addsd xmm0, xmm1"],
    after: [],
    stride: "8"
);

sweep!(
    /// Sum the block's words, 128 bits at a time.
    read_sse2,
    before: [".irp i, 0,1,2,3,4,5,6,7", "pxor xmm\\i, xmm\\i", ".endr"],
    row: [
        ".irp i, 0,1,2,3,4,5,6,7", "paddq xmm\\i, [{at}+\\i*16]", ".endr",
        ".irp i, 0,1,2,3,4,5,6,7", "paddq xmm\\i, [{at}+\\i*16+128]", ".endr"
    ],
    pass: [],
    after: [
        ".irp i, 1,2,3,4,5,6,7", "paddq xmm0, xmm\\i", ".endr",
        "pshufd xmm1, xmm0, 0xee", "paddq xmm0, xmm1", "movq rax, xmm0"
    ],
    stride: "16"
);

sweep!(
    /// Fill the block with the value, 128 bits at a time.
    write_sse2,
    before: [
        "movq xmm0, rax", "punpcklqdq xmm0, xmm0",
        "mov edx, 1", "movq xmm1, rdx", "punpcklqdq xmm1, xmm1"
    ],
    row: [
        ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "movdqa [{at}+\\i*16], xmm0", ".endr"
    ],
    pass: ["paddq xmm0, xmm1"],
    after: [],
    stride: "16"
);

sweep!(
    /// Sum the block's words, 256 bits at a time. The processor has AVX2.
    read_avx2,
    before: [".irp i, 0,1,2,3,4,5,6,7", "vpxor xmm\\i, xmm\\i, xmm\\i", ".endr"],
    row: [
        ".irp i, 0,1,2,3,4,5,6,7", "vpaddq ymm\\i, ymm\\i, [{at}+\\i*32]", ".endr",
        ".irp i, 0,1,2,3,4,5,6,7", "vpaddq ymm\\i, ymm\\i, [{at}+\\i*32+256]", ".endr"
    ],
    pass: [],
    after: [
        ".irp i, 1,2,3,4,5,6,7", "vpaddq ymm0, ymm0, ymm\\i", ".endr",
        "vextracti128 xmm1, ymm0, 1", "vpaddq xmm0, xmm0, xmm1",
        "vpshufd xmm1, xmm0, 0xee", "vpaddq xmm0, xmm0, xmm1", "vmovq rax, xmm0", "vzeroupper"
    ],
    stride: "32"
);

sweep!(
    /// Fill the block with the value, 256 bits at a time. The processor has AVX2.
    write_avx2,
    before: [
        "vmovq xmm0, rax", "vpbroadcastq ymm0, xmm0",
        "mov edx, 1", "vmovq xmm1, rdx", "vpbroadcastq ymm1, xmm1"
    ],
    row: [
        ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "vmovdqa [{at}+\\i*32], ymm0", ".endr"
    ],
    pass: ["vpaddq ymm0, ymm0, ymm1"],
    after: ["vzeroupper"],
    stride: "32"
);

sweep!(
    /// Sum the block's words, 512 bits at a time. The processor has AVX-512.
    read_avx512,
    before: [".irp i, 0,1,2,3,4,5,6,7", "vpxor xmm\\i, xmm\\i, xmm\\i", ".endr"],
    row: [
        ".irp i, 0,1,2,3,4,5,6,7", "vpaddq zmm\\i, zmm\\i, [{at}+\\i*64]", ".endr",
        ".irp i, 0,1,2,3,4,5,6,7", "vpaddq zmm\\i, zmm\\i, [{at}+\\i*64+512]", ".endr"
    ],
    pass: [],
    after: [
        ".irp i, 1,2,3,4,5,6,7", "vpaddq zmm0, zmm0, zmm\\i", ".endr",
        "vextracti64x4 ymm1, zmm0, 1", "vpaddq ymm0, ymm0, ymm1",
        "vextracti128 xmm1, ymm0, 1", "vpaddq xmm0, xmm0, xmm1",
        "vpshufd xmm1, xmm0, 0xee", "vpaddq xmm0, xmm0, xmm1", "vmovq rax, xmm0", "vzeroupper"
    ],
    stride: "64"
);

sweep!(
    /// Fill the block with the value, 512 bits at a time. The processor has AVX-512.
    write_avx512,
    before: [
        "vpbroadcastq zmm0, rax",
        "mov edx, 1", "vpbroadcastq zmm1, rdx"
    ],
    row: [
        ".irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "vmovdqa64 [{at}+\\i*64], zmm0", ".endr"
    ],
    pass: ["vpaddq zmm0, zmm0, zmm1"],
    after: ["vzeroupper"],
    stride: "64"
);

impl Unit {
    /// The sweep that reads with this unit.
    pub fn reading(self) -> Sweep {
        use super::isa::Isa;
        match self {
            Unit::Integer => read_integer,
            Unit::Float => read_float,
            Unit::Vector(Isa::Sse2) => read_sse2,
            Unit::Vector(Isa::Avx2) => read_avx2,
            Unit::Vector(Isa::Avx512) => read_avx512,
        }
    }

    /// The sweep that writes with this unit.
    pub fn writing(self) -> Sweep {
        use super::isa::Isa;
        match self {
            Unit::Integer => write_integer,
            Unit::Float => write_float,
            Unit::Vector(Isa::Sse2) => write_sse2,
            Unit::Vector(Isa::Avx2) => write_avx2,
            Unit::Vector(Isa::Avx512) => write_avx512,
        }
    }

    /// The instructions that move the data.
    pub fn instructions(self) -> &'static str {
        match self {
            Unit::Integer => "x86-64",
            Unit::Float => "sse2, one double",
            Unit::Vector(isa) => isa.word(),
        }
    }
}
