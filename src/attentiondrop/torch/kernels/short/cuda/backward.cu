// Attention of short rows, backward: all three gradients in one pass, without atomics. For any GPU from compute capability 8.0.
//
// A block takes one unit after the other, and of each unit one step after the other (see `backward_steps.cuh`). Warp w has key
// tile w. With keys in the rows of the product, S^T = K Q^T, it computes its logits again, adds to its gradients of keys and
// values in registers, and leaves dS^T in shared memory. From that, each warp then computes the gradient of its queries.
//
// Macros beside those of the variant: ROW_TILES, ONE_STEP (each unit has one step), BLOCKS (per multiprocessor).
#define SWIZZLED 0
#define LOADED_TILES KEY_TILES
#include "instructions.cuh"
#include "hashing.cuh"
#include "layout.cuh"
#include "blur.cuh"
#include "backward_steps.cuh"
#include "backward_blur.cuh"
#include "backward_weights.cuh"

#define DS_PITCH (2 * RUN + 16)
// The gradient of the queries of a run: a warp takes a whole row tile, or half of its columns if the run is short.
#define PARTS (2 * ROW_TILES <= KEY_TILES + 2 && STEPS % 2 == 0 ? 2 : 1)

extern "C" __global__ void __launch_bounds__(32 * KEY_TILES, BLOCKS) backward(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) u8 memory[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  Shared at;
  at.queries = shared_address(memory);
  at.grads = at.queries + RUN * PITCH;
  at.keys = at.grads + RUN * PITCH;
  at.values = at.keys + KEY_BYTES;
  const u32 d_logits = at.values + KEY_BYTES;
  at.place_rows(d_logits + KEYS * DS_PITCH);

  const int row_tiles = (a.rows + 15) / 16, runs = ONE_STEP ? 1 : (row_tiles + ROW_TILES - 1) / ROW_TILES;
  const int steps = ONE_STEP ? 1 : a.group * runs;
  int unit = blockIdx.x, step = 0;
  if (unit >= a.units) return;
  const Keys draws(a);
  OwnKeys own = own_keys(a, draws, warp, lane);
  Fetched fetched;
  start_copies(a, at, unit, step, runs, row_tiles, warp, lane);
  read_rest(a, at, fetched, draws, unit, step, runs, warp, lane);
#if RADIUS > 0
  note_weights(a, at, unit, warp, lane);
#endif
  own.is_special = own.hides | wait_for_rows(note_rows(at, fetched, warp, lane));

  float d_k[2 * STEPS][4], d_v[2 * STEPS][4];
#pragma unroll 1
  while (true) {
    const Step now(a, unit, step, runs);
    if (ONE_STEP || step == 0) {
#if RADIUS > 0
      bring_blurred_keys(a, at, fetched, unit, warp, lane);
#else
      store_keys(at, fetched, warp, lane);
#endif
      look_at_mask(a, own, unit, lane);
      __syncwarp();
#pragma unroll
      for (int n = 0; n < 2 * STEPS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) d_k[n][e] = d_v[n][e] = 0.f;
    }
    draw_columns(a, own, draws.drop, now.line(a), lane);
    u32 k_tile[STEPS][4], v_tile[STEPS][4];
    const u32 as_rows = (lane & 15) * PITCH + (lane >> 4) * 16;
    const u32 as_columns = ((lane & 7) + (lane >> 4) * 8) * PITCH + ((lane >> 3) & 1) * 16;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      load_matrices(k_tile[i], at.keys + warp * TILE_BYTES + as_rows + i * 32);
      load_matrices(v_tile[i], at.values + warp * TILE_BYTES + as_rows + i * 32);
    }
#pragma unroll 1
    for (int tile = 0; tile < now.tiles; tile++) {
      float s[2][4], d_s[2][4];
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[h][e] = d_s[h][e] = 0.f;
      const u32 q_tile = at.queries + tile * TILE_BYTES, g_tile = at.grads + tile * TILE_BYTES;
#pragma unroll
      for (int i = 0; i < STEPS; i++) {
        u32 b[4];
        load_matrices(b, q_tile + as_columns + i * 32);
        multiply(s[0], k_tile[i], b[0], b[1]);
        multiply(s[1], k_tile[i], b[2], b[3]);
        load_matrices(b, g_tile + as_columns + i * 32);
        multiply(d_s[0], v_tile[i], b[0], b[1]);
        multiply(d_s[1], v_tile[i], b[2], b[3]);
      }
      u32 weights[4], gradients[4];
      weigh(a, s, d_s, at, FirstTile(at, warp, lane), own, now.line(a), now.first, tile, lane, weights, gradients);
      store_matrices(d_logits + warp * 16 * DS_PITCH + tile * 32, DS_PITCH, gradients, lane);
#pragma unroll
      for (int n = 0; n < STEPS; n++) {
        u32 b[4];
        load_transposed(b, g_tile + as_rows + n * 32);
        multiply(d_v[2 * n], weights, b[0], b[1]);
        multiply(d_v[2 * n + 1], weights, b[2], b[3]);
        load_transposed(b, q_tile + as_rows + n * 32);
        multiply(d_k[2 * n], gradients, b[0], b[1]);
        multiply(d_k[2 * n + 1], gradients, b[2], b[3]);
      }
    }
    __syncthreads();
    const bool is_last = ONE_STEP || step + 1 == steps;
    const int next_unit = is_last ? unit + gridDim.x : unit, next_step = is_last ? 0 : step + 1;
    const bool more = next_unit < a.units;
    if (more) {
      start_copies(a, at, next_unit, next_step, runs, row_tiles, warp, lane);
      send_for_rest(a, next_unit, next_step, runs, warp, lane);
    }
    if (is_last) {
      write_rows(a.d_v + now.batch * a.of_d_v.batch + now.key_head * a.of_d_v.head, a.of_d_v.row, warp * 16, a.keys, d_v, 1.f, 1.f, lane);
#if RADIUS == 0
      write_rows(a.d_k + now.batch * a.of_d_k.batch + now.key_head * a.of_d_k.head, a.of_d_k.row, warp * 16, a.keys, d_k, a.scale, a.scale, lane);
#endif
    }
#pragma unroll 1
    for (int item = warp; item < now.tiles * PARTS; item += KEY_TILES) {
      const int tile = item / PARTS, part = item % PARTS;
      float d_q[2 * STEPS / PARTS][4];
#pragma unroll
      for (int n = 0; n < 2 * STEPS / PARTS; n++) d_q[n][0] = d_q[n][1] = d_q[n][2] = d_q[n][3] = 0.f;
      const u32 from = d_logits + ((lane & 7) + (lane >> 4) * 8) * DS_PITCH + tile * 32 + ((lane >> 3) & 1) * 16;
#pragma unroll 1
      for (int j = 0; j < KEY_TILES; j++) {
        u32 d_s[4];
        load_transposed(d_s, from + j * 16 * DS_PITCH);
#pragma unroll
        for (int n = 0; n < STEPS / PARTS; n++) {
          u32 b[4];
          load_transposed(b, at.keys + j * TILE_BYTES + as_rows + (part * (STEPS / PARTS) + n) * 32);
          multiply(d_q[2 * n], d_s, b[0], b[1]);
          multiply(d_q[2 * n + 1], d_s, b[2], b[3]);
        }
      }
      u16* to = a.d_q + now.batch * a.of_d_q.batch + now.head * a.of_d_q.head + part * (HEAD / PARTS);
      write_rows(to, a.of_d_q.row, now.first + tile * 16, a.rows, d_q, a.scale, a.scale, lane);
    }
#if RADIUS > 0
    if (is_last) {
      RoundedTile gradient;
      round_gradient(gradient, a, at, d_k, unit, warp, lane);
      blur_gradient(a, at, gradient, unit, true, warp, lane);
    }
#endif
    if (!more) return;
    fetched = {};  // not all warps read, and for the others the compiler would keep what they had
    read_rest(a, at, fetched, draws, next_unit, next_step, runs, warp, lane);
#if RADIUS > 0
    if (is_last) note_next_weights(a, at, next_unit, warp, lane);
#endif
    unit = next_unit;
    step = next_step;
    own.is_special = own.hides | wait_for_rows(note_rows(at, fetched, warp, lane));
  }
}
