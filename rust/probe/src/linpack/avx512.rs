//! The kernels for AVX-512, in assembly: the intrinsics need a younger compiler than this project asks for.
//!
//! 24 rows by 8 columns keep 24 of the 32 registers as sums; a step loads 3 registers of the left factor, broadcasts 8
//! numbers of the right one, and does 24 fused multiply-adds. One row of the packed right factor is one register.

use std::arch::global_asm;

use super::avx2;
use super::kernel::Kernel;

const ROWS: usize = 24;

pub const KERNEL: Kernel = Kernel {
    name: "avx512",
    rows: ROWS,
    columns: 8,
    block_rows: 240,
    block_width: 256,
    multiply,
    substitute,
    combine: avx2::combine,
    interchange: avx2::interchange,
    pack: avx2::pack::<ROWS>,
};

// C (rdi: columns of 24 rows, r9 bytes apart) -= A (rsi: columns of 24 rows, rdx bytes apart) * B (rcx: rows of 8);
// r8: columns of A. At least one column.
global_asm!(
    ".macro vt_column sum0, sum1, sum2, number, spread",
    "vbroadcastsd \\spread, qword ptr [rcx + 8 * \\number]",
    "vfmadd231pd \\sum0, zmm24, \\spread",
    "vfmadd231pd \\sum1, zmm25, \\spread",
    "vfmadd231pd \\sum2, zmm26, \\spread",
    ".endm",
    ".macro vt_subtract sum0, sum1, sum2",
    "vmovupd zmm24, [rdi]",
    "vmovupd zmm25, [rdi + 64]",
    "vmovupd zmm26, [rdi + 128]",
    "vsubpd zmm24, zmm24, \\sum0",
    "vsubpd zmm25, zmm25, \\sum1",
    "vsubpd zmm26, zmm26, \\sum2",
    "vmovupd [rdi], zmm24",
    "vmovupd [rdi + 64], zmm25",
    "vmovupd [rdi + 128], zmm26",
    "add rdi, r9",
    ".endm",
    ".p2align 6",
    ".hidden virtoll_linpack_multiply_avx512",
    ".globl virtoll_linpack_multiply_avx512",
    ".type virtoll_linpack_multiply_avx512, @function",
    "virtoll_linpack_multiply_avx512:",
    "mov rax, rdi",
    ".rept 8",
    "prefetcht0 [rax]",
    "prefetcht0 [rax + 64]",
    "prefetcht0 [rax + 128]",
    "add rax, r9",
    ".endr",
    ".irp sum, zmm0,zmm1,zmm2,zmm3,zmm4,zmm5,zmm6,zmm7,zmm8,zmm9,zmm10,zmm11",
    "vpxorq \\sum, \\sum, \\sum",
    ".endr",
    ".irp sum, zmm12,zmm13,zmm14,zmm15,zmm16,zmm17,zmm18,zmm19,zmm20,zmm21,zmm22,zmm23",
    "vpxorq \\sum, \\sum, \\sum",
    ".endr",
    "lea r10, [rdx + 2 * rdx]",
    ".p2align 6",
    "2:",
    "vmovupd zmm24, [rsi]",
    "vmovupd zmm25, [rsi + 64]",
    "vmovupd zmm26, [rsi + 128]",
    "lea rax, [rsi + 8 * rdx]",
    "prefetcht0 [rax]",
    "prefetcht0 [rax + 64]",
    "prefetcht0 [rax + 128]",
    "vt_column zmm0, zmm1, zmm2, 0, zmm28",
    "vt_column zmm3, zmm4, zmm5, 1, zmm29",
    "vt_column zmm6, zmm7, zmm8, 2, zmm30",
    "vt_column zmm9, zmm10, zmm11, 3, zmm31",
    "vt_column zmm12, zmm13, zmm14, 4, zmm28",
    "vt_column zmm15, zmm16, zmm17, 5, zmm29",
    "vt_column zmm18, zmm19, zmm20, 6, zmm30",
    "vt_column zmm21, zmm22, zmm23, 7, zmm31",
    "add rsi, rdx",
    "add rcx, 64",
    "dec r8",
    "jnz 2b",
    "vt_subtract zmm0, zmm1, zmm2",
    "vt_subtract zmm3, zmm4, zmm5",
    "vt_subtract zmm6, zmm7, zmm8",
    "vt_subtract zmm9, zmm10, zmm11",
    "vt_subtract zmm12, zmm13, zmm14",
    "vt_subtract zmm15, zmm16, zmm17",
    "vt_subtract zmm18, zmm19, zmm20",
    "vt_subtract zmm21, zmm22, zmm23",
    "vzeroupper",
    "ret",
    ".size virtoll_linpack_multiply_avx512, . - virtoll_linpack_multiply_avx512",
    ".purgem vt_column",
    ".purgem vt_subtract",
);

// X (rcx: rows of 8) := inverse of the unit lower triangle L (rsi: columns, rdx bytes apart) * X; rdi: its order, a
// multiple of 8. Eight rows at a time stay in registers.
global_asm!(
    ".macro vt_row sum, factor, number",
    "vfnmadd231pd \\sum, \\factor, qword ptr [rax + 8 * \\number]{{1to8}}",
    ".endm",
    ".p2align 6",
    ".hidden virtoll_linpack_substitute_avx512",
    ".globl virtoll_linpack_substitute_avx512",
    ".type virtoll_linpack_substitute_avx512, @function",
    "virtoll_linpack_substitute_avx512:",
    "xor r8, r8", // rows done
    "2:",
    "cmp r8, rdi",
    "jae 5f",
    "mov r9, r8",
    "shl r9, 6",
    "add r9, rcx", // these rows of X
    "vmovupd zmm0, [r9]",
    "vmovupd zmm1, [r9 + 64]",
    "vmovupd zmm2, [r9 + 128]",
    "vmovupd zmm3, [r9 + 192]",
    "vmovupd zmm4, [r9 + 256]",
    "vmovupd zmm5, [r9 + 320]",
    "vmovupd zmm6, [r9 + 384]",
    "vmovupd zmm7, [r9 + 448]",
    "lea rax, [rsi + 8 * r8]", // these rows of L
    "mov r10, rcx",            // the rows of X before them
    "mov r11, r8",
    "test r11, r11",
    "jz 4f",
    ".p2align 5",
    "3:",
    "vmovupd zmm8, [r10]",
    "vt_row zmm0, zmm8, 0",
    "vt_row zmm1, zmm8, 1",
    "vt_row zmm2, zmm8, 2",
    "vt_row zmm3, zmm8, 3",
    "vt_row zmm4, zmm8, 4",
    "vt_row zmm5, zmm8, 5",
    "vt_row zmm6, zmm8, 6",
    "vt_row zmm7, zmm8, 7",
    "add rax, rdx",
    "add r10, 64",
    "dec r11",
    "jnz 3b",
    "4:",
    "vt_row zmm1, zmm0, 1",
    "vt_row zmm2, zmm0, 2",
    "vt_row zmm3, zmm0, 3",
    "vt_row zmm4, zmm0, 4",
    "vt_row zmm5, zmm0, 5",
    "vt_row zmm6, zmm0, 6",
    "vt_row zmm7, zmm0, 7",
    "add rax, rdx",
    "vt_row zmm2, zmm1, 2",
    "vt_row zmm3, zmm1, 3",
    "vt_row zmm4, zmm1, 4",
    "vt_row zmm5, zmm1, 5",
    "vt_row zmm6, zmm1, 6",
    "vt_row zmm7, zmm1, 7",
    "add rax, rdx",
    "vt_row zmm3, zmm2, 3",
    "vt_row zmm4, zmm2, 4",
    "vt_row zmm5, zmm2, 5",
    "vt_row zmm6, zmm2, 6",
    "vt_row zmm7, zmm2, 7",
    "add rax, rdx",
    "vt_row zmm4, zmm3, 4",
    "vt_row zmm5, zmm3, 5",
    "vt_row zmm6, zmm3, 6",
    "vt_row zmm7, zmm3, 7",
    "add rax, rdx",
    "vt_row zmm5, zmm4, 5",
    "vt_row zmm6, zmm4, 6",
    "vt_row zmm7, zmm4, 7",
    "add rax, rdx",
    "vt_row zmm6, zmm5, 6",
    "vt_row zmm7, zmm5, 7",
    "add rax, rdx",
    "vt_row zmm7, zmm6, 7",
    "vmovupd [r9], zmm0",
    "vmovupd [r9 + 64], zmm1",
    "vmovupd [r9 + 128], zmm2",
    "vmovupd [r9 + 192], zmm3",
    "vmovupd [r9 + 256], zmm4",
    "vmovupd [r9 + 320], zmm5",
    "vmovupd [r9 + 384], zmm6",
    "vmovupd [r9 + 448], zmm7",
    "add r8, 8",
    "jmp 2b",
    "5:",
    "vzeroupper",
    "ret",
    ".size virtoll_linpack_substitute_avx512, . - virtoll_linpack_substitute_avx512",
    ".purgem vt_row",
);

extern "sysv64" {
    fn virtoll_linpack_multiply_avx512(
        target: *mut f64,
        left: *const f64,
        left_stride_bytes: usize,
        right: *const f64,
        depth: usize,
        target_stride_bytes: usize,
    );
    fn virtoll_linpack_substitute_avx512(
        order: usize,
        triangle: *const f64,
        triangle_stride_bytes: usize,
        rows: *mut f64,
    );
}

unsafe fn multiply(
    depth: usize,
    left: *const f64,
    left_stride: usize,
    right: *const f64,
    target: *mut f64,
    target_stride: usize,
) {
    // SAFETY: the caller keeps the contract of `Kernel::multiply`.
    unsafe {
        virtoll_linpack_multiply_avx512(
            target,
            left,
            8 * left_stride,
            right,
            depth,
            8 * target_stride,
        )
    }
}

unsafe fn substitute(order: usize, triangle: *const f64, stride: usize, rows: *mut f64) {
    // SAFETY: the caller keeps the contract of `Kernel::substitute`.
    unsafe { virtoll_linpack_substitute_avx512(order, triangle, 8 * stride, rows) }
}
