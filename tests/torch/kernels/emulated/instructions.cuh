// The functions of the real `instructions.cuh` for a CPU. A thread of a block is a fiber. A fiber runs until it waits
// for others: at a barrier, or at an instruction that all lanes of a warp execute together. Who goes on then is drawn,
// and copies arrive late, so that a barrier that is missing shows. Matrices are spread over lanes as the PTX manual has
// it ("Matrix Fragments for mma.m16n8k16", "ldmatrix", "stmatrix").
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <ucontext.h>
#include <vector>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE static inline
#define DEVICE_METHOD inline
#define WHOLE_WARP 0xffffffffu
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))

alignas(1024) u8 memory[256 * 1024];  // shared by the threads of a block

// --- fibers --------------------------------------------------------------------------------------------------------

struct Index { unsigned x; };
struct Words { u32 word[8]; };
struct Copy {
  u32 to;  // in shared memory: of 16 bytes, or of a barrier to arrive at
  const void* from;
  u8 bytes;  // the rest becomes zeros
  bool arrives;
  unsigned group;
};
struct Fiber {
  ucontext_t state;
  std::vector<u8> stack;
  bool is_done;
  unsigned turns;  // exchanges so far
  std::deque<Copy> copies;  // under way
  unsigned groups;  // of copies that have ended
};
static std::vector<Fiber> fibers;
Index threadIdx, blockIdx, gridDim, blockDim;
static ucontext_t outside;

static u32 draw(u32 below) {
  static u64 state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (u32)(state >> 33) % below;
}
static void finish_first_copy(Fiber&);

// Another fiber goes on: most often the next one of this warp, sometimes one of another warp. So some warps are far
// ahead of others. `is_idle`: this one waits for other warps.
static void go_to_next(bool is_idle = false) {
  const unsigned from = threadIdx.x;
  if (!fibers[from].copies.empty() && draw(8) == 0) finish_first_copy(fibers[from]);
  unsigned to = !is_idle && draw(256) ? from / 32 * 32 + (from + 1) % 32 : draw(blockDim.x);
  for (unsigned i = 0; i < blockDim.x && fibers[to].is_done; i++) to = (to + 1) % blockDim.x;
  if (fibers[to].is_done) setcontext(&outside);
  if (to == from) return;
  threadIdx.x = to;
  if (fibers[from].is_done) setcontext(&fibers[to].state);
  swapcontext(&fibers[from].state, &fibers[to].state);
}

// Barrier 0 is that of the block, 1 to 15 are numbered, those from 16 on belong to warps.
struct Barrier { unsigned waiting, finished; };
static Barrier barriers[64];
static void wait_at(int which, unsigned threads) {
  Barrier& barrier = barriers[which];
  const unsigned before = barrier.finished;
  if (++barrier.waiting == threads) {
    barrier.waiting = 0;
    barrier.finished++;
  } else {
    while (barrier.finished == before) go_to_next(which < 16);
  }
}
static void __syncthreads() { wait_at(0, blockDim.x); }
// Whether `x` holds for a thread of the block. All threads have passed barrier n + 1 before one votes at barrier n + 2.
static bool __syncthreads_or(bool x) {
  static bool holds[4];
  const unsigned turn = barriers[0].finished % 4;
  if (x) holds[turn] = true;
  __syncthreads();
  holds[(turn + 2) % 4] = false;
  return holds[turn];
}
static void __syncwarp() { wait_at(16 + threadIdx.x / 32, 32); }
static void __nanosleep(unsigned) { go_to_next(true); }

// Each lane of a warp shows some words to the others.
static Words shown[2][64][32];
static const Words* exchanged(const Words& own) {
  const unsigned warp = threadIdx.x / 32, turn = fibers[threadIdx.x].turns++ & 1;
  shown[turn][warp][threadIdx.x & 31] = own;
  __syncwarp();
  return shown[turn][warp];
}

// --- what CUDA has everywhere --------------------------------------------------------------------------------------

struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
static uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
static uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
template <class T> static T min(T x, T y) { return x < y ? x : y; }
template <class T> static T max(T x, T y) { return x < y ? y : x; }
static u32 __float_as_uint(float x) { u32 y; memcpy(&y, &x, 4); return y; }
static float __uint_as_float(u32 x) { float y; memcpy(&y, &x, 4); return y; }
static u32 __umulhi(u32 x, u32 y) { return (u64)x * y >> 32; }
static int __popc(u32 x) { return __builtin_popcount(x); }
static int __clz(u32 x) { return x ? __builtin_clz(x) : 32; }
static u32 __funnelshift_l(u32 low, u32 high, u32 by) {
  return by & 31 ? high << (by & 31) | low >> (32 - (by & 31)) : high;
}
template <class T> static T __shfl_sync(u32, T x, int from) {
  Words own;
  memcpy(own.word, &x, 4);
  memcpy(&x, exchanged(own)[from & 31].word, 4);
  return x;
}
template <class T> static T __shfl_xor_sync(u32 all, T x, int by) {
  return __shfl_sync(all, x, (threadIdx.x ^ by) & 31);
}
static u32 __ballot_sync(u32, bool x) {
  const Words* all = exchanged({{x}});
  u32 bits = 0;
  for (int i = 0; i < 32; i++) bits |= all[i].word[0] << i;
  return bits;
}
static bool __any_sync(u32 all, bool x) { return __ballot_sync(all, x) != 0; }
static u32 __reduce_or_sync(u32, u32 x) {
  const Words* all = exchanged({{x}});
  for (int i = 0; i < 32; i++) x |= all[i].word[0];
  return x;
}

// --- shared memory -------------------------------------------------------------------------------------------------

struct Four { u32 x, y, z, w; };
template <class T> static T& at(u32 address) {
  if (address % sizeof(T) || address + sizeof(T) > sizeof(memory)) abort();
  return *(T*)(memory + address);
}
DEVICE u32 shared_address(const void* pointer) { return (const u8*)pointer - memory; }
DEVICE Four load_16(u32 address) { if (address % 16) abort(); return at<Four>(address); }
DEVICE void store_16(u32 address, Four x) { if (address % 16) abort(); at<Four>(address) = x; }
DEVICE u32 load_word(u32 address) { return at<u32>(address); }
DEVICE u32 load_byte(u32 address) { return at<u8>(address); }
DEVICE void load_two_words(u32 address, u32& x, u32& y) { x = at<uint2>(address).x; y = at<uint2>(address).y; }
DEVICE void store_word(u32 address, u32 x) { at<u32>(address) = x; }
DEVICE void store_float(u32 address, float x) { at<float>(address) = x; }
DEVICE void set_bits(u32 address, u32 bits) { at<u32>(address) |= bits; }
DEVICE u32 add_shared(u32 address, u32 x) { return (at<u32>(address) += x) - x; }
DEVICE u32 count_shared(u32 address) { return at<u32>(address)++; }
DEVICE void publish(u32 address, u32 x) { at<u32>(address) = x; }
DEVICE u32 look_at(u32 address) { return at<u32>(address); }

DEVICE void start(u32 to, const void* from, u8 bytes, bool arrives) {
  Fiber& own = fibers[threadIdx.x];
  own.copies.push_back({to, from, bytes, arrives, own.groups});
}
DEVICE void copy_16(u32 to, const void* from) { start(to, from, 16, false); }
DEVICE void copy_16_or_zeros(u32 to, const void* from, bool is_there) { start(to, from, is_there ? 16 : 0, false); }
DEVICE void end_of_copies() { fibers[threadIdx.x].groups++; }
DEVICE void wait_for_groups(unsigned groups) {
  Fiber& own = fibers[threadIdx.x];
  while (!own.copies.empty() && (int)(own.copies[0].group - groups) < 0) finish_first_copy(own);
}
DEVICE void wait_for_all_but_last_copies() { wait_for_groups(fibers[threadIdx.x].groups - 1); }
DEVICE void wait_for_ended_copies() { wait_for_groups(fibers[threadIdx.x].groups); }
DEVICE void wait_for_copies() { wait_for_groups(fibers[threadIdx.x].groups + 1); }
DEVICE void prefetch(const void*) {}

// A barrier in memory: who is missing, how many take part, how often all had arrived.
struct InMemory { u8 missing, all; u16 unused; u32 finished; };
DEVICE void make_barrier(u32 address, u32 arrivals) { at<InMemory>(address) = {(u8)arrivals, (u8)arrivals, 0, 0}; }
DEVICE void arrive(u32 address) {
  InMemory& barrier = at<InMemory>(address);
  if (--barrier.missing) return;
  barrier.missing = barrier.all;
  barrier.finished++;
}
DEVICE void arrive_after_copies(u32 address) { start(address, nullptr, 0, true); }
static void finish_first_copy(Fiber& fiber) {
  const Copy copy = fiber.copies[0];
  fiber.copies.pop_front();
  if (copy.arrives) return arrive(copy.to);
  if (copy.to % 16) abort();
  Four& to = at<Four>(copy.to);
  to = {0, 0, 0, 0};
  if (copy.bytes) memcpy(&to, copy.from, copy.bytes);
}
DEVICE void wait_for_arrivals(u32 address, u32 parity) {
  while ((at<InMemory>(address).finished & 1) == parity) go_to_next(true);
}

struct Divisor { u32 factor, shift; };
DEVICE int divided(int x, Divisor by) { return (int)(__umulhi(2u * (u32)x, by.factor) >> by.shift); }

// --- 16-bit numbers ------------------------------------------------------------------------------------------------

#if FLOAT16
#define ONES 0x3c003c00u
#ifdef __aarch64__
typedef __fp16 Half;  // g++ before 13 has no _Float16 here
#else
typedef _Float16 Half;
#endif
DEVICE u16 short_of(float x) { const Half y = (Half)x; u16 z; memcpy(&z, &y, 2); return z; }
DEVICE float number_of(u16 x) { Half y; memcpy(&y, &x, 2); return (float)y; }
#else
#define ONES 0x3f803f80u
DEVICE u16 short_of(float x) {
  const u32 bits = __float_as_uint(x);
  return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
DEVICE float number_of(u16 x) { return __uint_as_float((u32)x << 16); }
#endif
DEVICE u32 packed(float low, float high) { return short_of(low) | (u32)short_of(high) << 16; }
DEVICE float low_of(u32 x) { return number_of((u16)x); }
DEVICE float high_of(u32 x) { return number_of(x >> 16); }
DEVICE float power_of_two(float x) { return exp2f(x); }
DEVICE float reciprocal(float x) { return 1.f / x; }
DEVICE u32 first_in(u32 word) { return word ? __clz(word) : 0xffffffffu; }
DEVICE u32 only_mark(u32 i) { return i < 32 ? 0x80000000u >> i : 0; }
DEVICE float logarithm(float x) { return log2f(x); }

// --- matrix units --------------------------------------------------------------------------------------------------

DEVICE void load_matrices(u32 (&to)[4], u32 address) {
  const Words* all = exchanged({{address}});
  const int lane = threadIdx.x & 31;
  for (int i = 0; i < 4; i++) to[i] = at<u32>(all[8 * i + lane / 4].word[0] + lane % 4 * 4);
}
DEVICE void load_transposed(u32 (&to)[4], u32 address) {
  const Words* all = exchanged({{address}});
  const int g = (threadIdx.x & 31) / 4, t = threadIdx.x % 4;
  for (int i = 0; i < 4; i++) {
    const u32 one = at<u16>(all[8 * i + 2 * t].word[0] + 2 * g), two = at<u16>(all[8 * i + 2 * t + 1].word[0] + 2 * g);
    to[i] = one | two << 16;
  }
}
DEVICE void store_matrices_at(u32 address, const u32 (&x)[4]) {
  const Words* all = exchanged({{address}});
  const int lane = threadIdx.x & 31;
  for (int i = 0; i < 4; i++) at<u32>(all[8 * i + lane / 4].word[0] + lane % 4 * 4) = x[i];
}
DEVICE void store_matrices(u32 to, u32 pitch, const u32 (&x)[4], int lane) {
  store_matrices_at(to + (lane & 15) * pitch + (lane >> 4) * 16, x);
}
// Row i and column k of a first argument, of which each lane shows four words.
DEVICE float first_at(const Words* all, int i, int k) {
  const u32 word = all[i % 8 * 4 + k % 8 / 2].word[i / 8 + 2 * (k / 8)];
  return k % 2 ? high_of(word) : low_of(word);
}
DEVICE void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const Words* all = exchanged({{a[0], a[1], a[2], a[3], b0, b1}});
  const int g = (threadIdx.x & 31) / 4, t = threadIdx.x % 4;
  for (int e = 0; e < 4; e++) {
    const int row = g + e / 2 * 8, column = 2 * t + e % 2;
    double total = sum[e];
    for (int k = 0; k < 16; k++) {
      const u32 word = all[column * 4 + k % 8 / 2].word[4 + k / 8];
      total += (double)first_at(all, row, k) * (k % 2 ? high_of(word) : low_of(word));
    }
    sum[e] = (float)total;
  }
}

// --- the four lanes that hold one row ------------------------------------------------------------------------------

template <class T> static T of_quad(T x, T (*join)(T, T)) {
  x = join(x, __shfl_xor_sync(WHOLE_WARP, x, 1));
  return join(x, __shfl_xor_sync(WHOLE_WARP, x, 2));
}
DEVICE float largest_of_quad(float x) { return of_quad<float>(x, [](float x, float y) { return fmaxf(x, y); }); }
DEVICE float smallest_of_quad(float x) { return of_quad<float>(x, [](float x, float y) { return fminf(x, y); }); }
DEVICE u32 smallest_of_quad(u32 x) { return of_quad<u32>(x, [](u32 x, u32 y) { return min(x, y); }); }
DEVICE float sum_of_quad(float x) { return of_quad<float>(x, [](float x, float y) { return x + y; }); }
DEVICE int sum_of_quad(int x) { return of_quad<int>(x, [](int x, int y) { return x + y; }); }
