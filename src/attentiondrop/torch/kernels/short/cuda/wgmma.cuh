// The instructions that only `backward_wgmma.cu` uses. Matrix instructions of a warpgroup (compute capability 9.0) have their operands
// in shared memory and their sums in registers.
// Rows have 128 bytes, whose 16-byte pieces change places from row to row (SWIZZLED).
#if FLOAT16
#define GROUP_TYPES "f32.f16.f16"
#else
#define GROUP_TYPES "f32.bf16.bf16"
#endif

// Where a matrix begins: eight rows of 128 bytes follow each other, then the next eight. This is the lower half of what the
// instructions take; the upper half, which says so, is always the same, and would only fill registers.
DEVICE u32 matrix_at(u32 address) { return (64u << 16) | ((address & 0x3ffffu) >> 4); }
#define UPPER_HALF "0x40000040"
#define OPERANDS(a, b) ".reg .b64 a, b;\nmov.b64 a, {" a ", " UPPER_HALF "};\nmov.b64 b, {" b ", " UPPER_HALF "};\n"
#define IF_ADDING(add) ".reg .pred p;\nsetp.ne.b32 p, " add ", 0;\n"

DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void send_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
DEVICE void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
// What this thread wrote to shared memory becomes visible to the matrix units.
DEVICE void show_to_matrix_units() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Four warps of the block wait for each other, or all of them.
DEVICE void wait_for_four(int which) { asm volatile("bar.sync %0, 128;" ::"r"(which) : "memory"); }
DEVICE void wait_for_all() { asm volatile("bar.sync 0;" ::: "memory"); }
// The lane, asked for anew, so that the compiler does not keep everything that follows from it in registers.
DEVICE int fresh_lane() { u32 x; asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x)); return (int)(x & 31); }
DEVICE void set_to_zero(float& x) { asm volatile("mov.f32 %0, 0f00000000;" : "=f"(x)); }

#define SUM4(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define SUM8(d) SUM4(d, 0), SUM4(d, 1)
#define SUM16(d) SUM8(d), SUM4(d, 2), SUM4(d, 3)
#define SUM32(d) SUM16(d), SUM4(d, 4), SUM4(d, 5), SUM4(d, 6), SUM4(d, 7)
#define NAMES_8 "{%0,%1,%2,%3,%4,%5,%6,%7}"
#define NAMES_16 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
#define NAMES_32 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"

// sum [64 x 16] = (or +=) a [64 x 16] * b^T, both with their columns side by side in memory.
DEVICE void multiply_rows(float (&sum)[2][4], u32 a, u32 b, int add) {
  asm volatile("{\n" OPERANDS("%8", "%9") IF_ADDING("%10") "wgmma.mma_async.sync.aligned.m64n16k16." GROUP_TYPES " " NAMES_8 ", a, b, p, 1, 1, 0, 0;\n}"
               : SUM8(sum) : "r"(a), "r"(b), "r"(add));
}
// sum [64 x 64] = (or +=) x [64 x 16] * b [16 x 64], x from registers, b with its rows one after the other.
DEVICE void multiply_own(float (&sum)[8][4], const u32 (&x)[4], u32 b, int add) {
  asm volatile("{\n.reg .b64 b;\nmov.b64 b, {%36, " UPPER_HALF "};\n" IF_ADDING("%37")
               "wgmma.mma_async.sync.aligned.m64n64k16." GROUP_TYPES " " NAMES_32 ", {%32,%33,%34,%35}, b, p, 1, 1, 1;\n}"
               : SUM32(sum) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(b), "r"(add));
}
// sum [64 x 64 or 32] = (or +=) a^T * b, a [16 x 64] and b [16 x 64 or 32] with their rows one after the other.
DEVICE void multiply_transposed(float (&sum)[8][4], u32 a, u32 b, int add) {
  asm volatile("{\n" OPERANDS("%32", "%33") IF_ADDING("%34") "wgmma.mma_async.sync.aligned.m64n64k16." GROUP_TYPES " " NAMES_32 ", a, b, p, 1, 1, 1, 1;\n}"
               : SUM32(sum) : "r"(a), "r"(b), "r"(add));
}
DEVICE void multiply_transposed(float (&sum)[4][4], u32 a, u32 b, int add) {
  asm volatile("{\n" OPERANDS("%16", "%17") IF_ADDING("%18") "wgmma.mma_async.sync.aligned.m64n32k16." GROUP_TYPES " " NAMES_16 ", a, b, p, 1, 1, 1, 1;\n}"
               : SUM16(sum) : "r"(a), "r"(b), "r"(add));
}
