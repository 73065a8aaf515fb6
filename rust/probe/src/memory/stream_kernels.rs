//! McCalpin's four kernels over a slice of the arrays, in each instruction set and with each kind of store.
//!
//! All four are one: destination = \[q\] x \[+ y\]. In assembler, for the same instructions from every compiler. With
//! plain stores every array is prefetched [`AHEAD_BYTES`] ahead, the destination for writing: the hardware's own
//! prefetching leaves a few per cent to gain. With non-temporal stores, which do not read the destination, prefetching
//! the sources lost as much. Product and sum are rounded one by one (no fused operation), so every instruction set gives
//! the same bits.

use std::arch::asm;

use super::isa::Isa;

/// A slice starts at, and consists of, multiples of this.
pub const STEP_BYTES: usize = 4096;
/// McCalpin's scalar q.
pub const SCALAR: f64 = 3.0;
/// The best of 1, 2, 3 and 4 KiB where it was tried, by little.
const AHEAD_BYTES: usize = 2048;

/// One pass over a slice: (destination, x, y, bytes of each).
pub type Pass = unsafe fn(*mut f64, *const f64, *const f64, usize);

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    Copy,
    Scale,
    Add,
    Triad,
}

impl Kernel {
    /// By its name on the command line.
    pub fn from(word: &str) -> Kernel {
        match word {
            "copy" => Kernel::Copy,
            "scale" => Kernel::Scale,
            "add" => Kernel::Add,
            _ => Kernel::Triad,
        }
    }

    /// Arrays that STREAM counts: what the program reads and writes, not what a cache reads because it is written.
    pub fn arrays(self) -> usize {
        match self {
            Kernel::Copy | Kernel::Scale => 2,
            Kernel::Add | Kernel::Triad => 3,
        }
    }

    /// What one element must come to.
    pub fn of(self, x: f64, y: f64) -> f64 {
        match self {
            Kernel::Copy => x,
            Kernel::Scale => SCALAR * x,
            Kernel::Add => x + y,
            Kernel::Triad => SCALAR * x + y,
        }
    }

    /// Its code.
    pub fn pass(self, isa: Isa, non_temporal: bool) -> Pass {
        match isa {
            Isa::Sse2 => sse2(self, non_temporal),
            Isa::Avx2 => avx2(self, non_temporal),
            Isa::Avx512 => avx512(self, non_temporal),
        }
    }
}

/// The kernels of one instruction set: eight vectors in a row, and its cache lines prefetched.
macro_rules! kernels {
    ($name:ident, $code:ident, width: $width:literal, lines: $lines:literal, vector: $vector:literal,
     load_scalars: $load_scalars:literal, load: $load:literal, multiply: $multiply:literal, add: $add:literal,
     store: $store:literal, stream: $stream:literal, leave: $leave:literal) => {
        fn $name(kernel: Kernel, non_temporal: bool) -> Pass {
            match (kernel, non_temporal) {
                (Kernel::Copy, false) => $code::<0, 0, 0>,
                (Kernel::Copy, true) => $code::<0, 0, 1>,
                (Kernel::Scale, false) => $code::<1, 0, 0>,
                (Kernel::Scale, true) => $code::<1, 0, 1>,
                (Kernel::Add, false) => $code::<0, 1, 0>,
                (Kernel::Add, true) => $code::<0, 1, 1>,
                (Kernel::Triad, false) => $code::<1, 1, 0>,
                (Kernel::Triad, true) => $code::<1, 1, 1>,
            }
        }

        /// # Safety
        /// The processor has the instructions; each array holds `bytes`, a positive multiple of [`STEP_BYTES`], and
        /// starts at such a multiple.
        unsafe fn $code<const SCALES: u8, const ADDS: u8, const NON_TEMPORAL: u8>(
            to: *mut f64,
            x: *const f64,
            y: *const f64,
            bytes: usize,
        ) {
            let scalars = [SCALAR; 8];
            // SAFETY: it reads and writes so many bytes of each array; a prefetch goes beyond them, and never faults.
            // Every register it uses is named. What non-temporal stores left in buffers is visible at the end (sfence).
            unsafe {
                asm!(
                    concat!($load_scalars, ", [{scalars}]"),
                    "2:",
                    ".if {non_temporal} == 0",
                    concat!(".irp i, ", $lines),
                    "prefetcht0 [{x}+{at}+\\i*64+{ahead}]",
                    ".if {adds}",
                    "prefetcht0 [{y}+{at}+\\i*64+{ahead}]",
                    ".endif",
                    "prefetchw [{to}+{at}+\\i*64+{ahead}]",
                    ".endr",
                    ".endif",
                    ".irp i, 0,1,2,3,4,5,6,7",
                    concat!($load, ", [{x}+{at}+\\i*", $width, "]"),
                    ".if {scales}",
                    $multiply,
                    ".endif",
                    ".if {adds}",
                    concat!($add, ", [{y}+{at}+\\i*", $width, "]"),
                    ".endif",
                    ".if {non_temporal}",
                    concat!($stream, " [{to}+{at}+\\i*", $width, "], ", $vector),
                    ".else",
                    concat!($store, " [{to}+{at}+\\i*", $width, "], ", $vector),
                    ".endif",
                    ".endr",
                    concat!("add {at}, 8*", $width),
                    "cmp {at}, {bytes}",
                    "jb 2b",
                    "sfence",
                    $leave,
                    to = in(reg) to,
                    x = in(reg) x,
                    y = in(reg) y,
                    bytes = in(reg) bytes,
                    scalars = in(reg) scalars.as_ptr(),
                    at = inout(reg) 0_usize => _,
                    scales = const SCALES,
                    adds = const ADDS,
                    non_temporal = const NON_TEMPORAL,
                    ahead = const AHEAD_BYTES,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm15") _,
                    options(nostack),
                );
            }
        }
    };
}

kernels!(sse2, sse2_code, width: "16", lines: "0,1", vector: "xmm\\i",
    load_scalars: "movupd xmm15", load: "movapd xmm\\i",
    multiply: "mulpd xmm\\i, xmm15", add: "addpd xmm\\i",
    store: "movapd", stream: "movntpd", leave: "");

kernels!(avx2, avx2_code, width: "32", lines: "0,1,2,3", vector: "ymm\\i",
    load_scalars: "vmovupd ymm15", load: "vmovapd ymm\\i",
    multiply: "vmulpd ymm\\i, ymm\\i, ymm15", add: "vaddpd ymm\\i, ymm\\i",
    store: "vmovapd", stream: "vmovntpd", leave: "vzeroupper");

kernels!(avx512, avx512_code, width: "64", lines: "0,1,2,3,4,5,6,7", vector: "zmm\\i",
    load_scalars: "vmovupd zmm15", load: "vmovapd zmm\\i",
    multiply: "vmulpd zmm\\i, zmm\\i, zmm15", add: "vaddpd zmm\\i, zmm\\i",
    store: "vmovapd", stream: "vmovntpd", leave: "vzeroupper");
