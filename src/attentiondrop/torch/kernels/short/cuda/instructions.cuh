// The machine instructions that the kernels use: matrix units, copies into shared memory, flags between warps.
// NVRTC compiles this without any header.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE static __device__ __forceinline__
#define DEVICE_METHOD __device__ __forceinline__
#define WHOLE_WARP 0xffffffffu

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// --- shared memory ---------------------------------------------------------------------------------------------------

struct Four { u32 x, y, z, w; };

DEVICE Four load_16(u32 address) {
  Four r;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(address) : "memory");
  return r;
}
DEVICE void store_16(u32 address, Four r) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r.x), "r"(r.y), "r"(r.z), "r"(r.w) : "memory");
}
DEVICE u32 load_word(u32 address) {
  u32 x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
DEVICE u32 load_byte(u32 address) {
  u32 x;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
DEVICE void load_two_words(u32 address, u32& x, u32& y) {
  asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(x), "=r"(y) : "r"(address) : "memory");
}
DEVICE void store_word(u32 address, u32 x) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory"); }
DEVICE void store_float(u32 address, float x) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory"); }
DEVICE void set_bits(u32 address, u32 bits) { asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(address), "r"(bits) : "memory"); }

// --- copies from global to shared memory that run while the warp goes on ----------------------------------------------

DEVICE void copy_16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Zeros if there is nothing to copy; `from` is not read then.
DEVICE void copy_16_or_zeros(u32 to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}
// Copies belong to groups, which are awaited in order.
DEVICE void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEVICE void wait_for_all_but_last_copies() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }
DEVICE void wait_for_ended_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }  // of all groups that have ended
DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

DEVICE void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// --- numbers that the warps of a block share --------------------------------------------------------------------------

DEVICE u32 add_shared(u32 address, u32 x) {
  u32 before;
  asm volatile("atom.acq_rel.cta.shared.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(address), "r"(x) : "memory");
  return before;
}
// One more, without waiting for other accesses to memory. (An addition of 1 would be summed up over the warp first, which takes
// instructions, although a single lane comes here.)
DEVICE u32 count_shared(u32 address) {
  u32 before;
  asm volatile("atom.relaxed.cta.shared.inc.u32 %0, [%1], 0xffffffff;" : "=r"(before) : "r"(address) : "memory");
  return before;
}
DEVICE void publish(u32 address, u32 x) { asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory"); }
DEVICE u32 look_at(u32 address) {
  u32 x;
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}

// --- barriers that copies arrive at ------------------------------------------------------------------------------------

DEVICE void make_barrier(u32 address, u32 arrivals) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address), "r"(arrivals) : "memory"); }
DEVICE void arrive(u32 address) { asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(address) : "memory"); }
// Once all copies that this thread has started are there.
DEVICE void arrive_after_copies(u32 address) { asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(address) : "memory"); }
// `parity` is that of the number of times that all had arrived before.
DEVICE void wait_for_arrivals(u32 address, u32 parity) {
#if __CUDA_ARCH__ >= 900
#define TRY_WAIT "mbarrier.try_wait.parity.shared::cta.b64"  // the warp sleeps meanwhile
#else
#define TRY_WAIT "mbarrier.test_wait.parity.shared.b64"
#endif
  u32 is_done;
  do {
    asm volatile("{\n.reg .pred p;\n" TRY_WAIT " p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(is_done) : "r"(address), "r"(parity) : "memory");
  } while (!is_done);
}

// --- integers -----------------------------------------------------------------------------------------------------------

// Division of 0 <= x < 2^31 by a number that is the same for a whole launch: the host turns it into a product and a shift.
struct Divisor { u32 factor, shift; };
DEVICE int divided(int x, Divisor by) { return (int)(__umulhi(2u * (u32)x, by.factor) >> by.shift); }

// --- 16-bit numbers ---------------------------------------------------------------------------------------------------

#if FLOAT16
#define ONES 0x3c003c00u
DEVICE u32 packed(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
DEVICE float low_of(u32 x) {
  float y;
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\ncvt.f32.f16 %0, l;\n}" : "=f"(y) : "r"(x));
  return y;
}
DEVICE float high_of(u32 x) {
  float y;
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\ncvt.f32.f16 %0, h;\n}" : "=f"(y) : "r"(x));
  return y;
}
#define MATRIX_TYPES "f32.f16.f16.f32"
#else
#define ONES 0x3f803f80u
DEVICE u32 packed(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
DEVICE float low_of(u32 x) { return __uint_as_float(x << 16); }
DEVICE float high_of(u32 x) { return __uint_as_float(x & 0xffff0000u); }
#define MATRIX_TYPES "f32.bf16.bf16.f32"
#endif

DEVICE float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The place of the first bit of a word, counted from its top; 0xffffffff if there is none.
DEVICE u32 first_in(u32 word) {
  u32 i;
  asm("bfind.shiftamt.u32 %0, %1;" : "=r"(i) : "r"(word));
  return i;
}
// The word that has only the bit at place `i`; none if `i` is 0xffffffff. (In C++, such a shift would be undefined.)
DEVICE u32 only_mark(u32 i) {
  u32 word;
  asm("shr.u32 %0, 0x80000000, %1;" : "=r"(word) : "r"(i));
  return word;
}
// Exact but for the last bit; `x` must be a normal number.
DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float logarithm(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// --- matrix units -----------------------------------------------------------------------------------------------------

// Four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
DEVICE void load_matrices(u32 (&to)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address));
}
DEVICE void load_transposed(u32 (&to)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address));
}
#if __CUDA_ARCH__ >= 900
// The reverse of `load_matrices`.
DEVICE void store_matrices_at(u32 address, const u32 (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}
#endif
// A 16x16 matrix in the layout of `multiply`'s first argument, to rows `pitch` bytes apart.
DEVICE void store_matrices(u32 to, u32 pitch, const u32 (&x)[4], int lane) {
#if __CUDA_ARCH__ >= 900
  store_matrices_at(to + (lane & 15) * pitch + (lane >> 4) * 16, x);
#else
  const u32 address = to + (lane >> 2) * pitch + (lane & 3) * 4;
  store_word(address, x[0]);
  store_word(address + 8 * pitch, x[1]);
  store_word(address + 16, x[2]);
  store_word(address + 8 * pitch + 16, x[3]);
#endif
}
// sum [16 x 8] += a [16 x 16] * b [16 x 8]
DEVICE void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col." MATRIX_TYPES " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// --- the four lanes that hold one row ----------------------------------------------------------------------------------

DEVICE float largest_of_quad(float x) {
  x = fmaxf(x, __shfl_xor_sync(WHOLE_WARP, x, 1));
  return fmaxf(x, __shfl_xor_sync(WHOLE_WARP, x, 2));
}
DEVICE float smallest_of_quad(float x) {
  x = fminf(x, __shfl_xor_sync(WHOLE_WARP, x, 1));
  return fminf(x, __shfl_xor_sync(WHOLE_WARP, x, 2));
}
DEVICE u32 smallest_of_quad(u32 x) {
  x = min(x, __shfl_xor_sync(WHOLE_WARP, x, 1));
  return min(x, __shfl_xor_sync(WHOLE_WARP, x, 2));
}
DEVICE float sum_of_quad(float x) {
  x += __shfl_xor_sync(WHOLE_WARP, x, 1);
  return x + __shfl_xor_sync(WHOLE_WARP, x, 2);
}
DEVICE int sum_of_quad(int x) {
  x += __shfl_xor_sync(WHOLE_WARP, x, 1);
  return x + __shfl_xor_sync(WHOLE_WARP, x, 2);
}
