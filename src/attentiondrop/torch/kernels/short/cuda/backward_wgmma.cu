// Attention of short rows, backward, for compute capability 9.0 and a head size of 64: `backward.cu` by the matrix instructions
// of warpgroups, which read their operands from shared memory.
//
// A warpgroup has four key tiles. If one tile is left over, four more warps share its rows, and use the instructions of single
// warps; if two or three are left over, a warpgroup has them, with zeros behind. The gradient of the queries is computed in
// blocks of 64 rows and 32 columns, which the warpgroups share.
//
// Macros beside those of the variant: ROW_TILES, ONE_STEP (each unit has one step), WAITING, BLOCKS (per multiprocessor).
#define SWIZZLED 1
#define GROUPS (KEY_TILES % 4 == 1 ? KEY_TILES / 4 : (KEY_TILES + 3) / 4)
#define LEFT_OVER (KEY_TILES % 4 == 1)
#define LOADED_TILES (LEFT_OVER ? KEY_TILES : 4 * GROUPS)
#include "instructions.cuh"
#include "hashing.cuh"
#include "layout.cuh"
#include "blur.cuh"
#include "backward_steps.cuh"
#include "backward_blur.cuh"
#include "backward_weights.cuh"
#include "wgmma.cuh"

#define WARPS (4 * GROUPS + 4 * LEFT_OVER)
#define ROW_BLOCKS (ROW_TILES / 4)         // blocks of 64 rows
#define LEFT_ROWS (ROW_TILES % 4)          // 0 or 1 tile
#define BLOCK_BYTES (LOADED_TILES * 2048)  // dS^T of 64 rows
#define LEFT_PITCH 48                      // and of a single row tile: 16 rows, padded
#define PARTS (ROW_BLOCKS < GROUPS ? 2 : 1)  // of the columns of the queries' gradient
#define READS_EARLY (RADIUS == 0 || ONE_STEP)  // with a blur and several steps, there are no registers for it
#define TILE_AT 128                        // a tile further in units of `matrix_at`
// The keys of units lie in two places in turn: those of the next unit wait where it will find them.
#define TAKES_TURNS (WAITING && RADIUS == 0)

// Set sums to 0, here and not later: between products the compiler would wait for all of them. (What a product overwrites is
// set to 0 as well: otherwise the compiler believes that its old value may matter, and keeps it.)
template <int length>
DEVICE void clear(float (&x)[length][4]) {
#pragma unroll
  for (int n = 0; n < length; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) set_to_zero(x[n][e]);
}
// The gradients of keys and values. A compiler that sees how short they live has more registers for the rest.
#if ONE_STEP
#define SUMS_OF_ALL_STEPS
#define SUMS_OF_ONE_STEP float d_k[8][4], d_v[8][4]
#else
#define SUMS_OF_ALL_STEPS float d_k[8][4], d_v[8][4]
#define SUMS_OF_ONE_STEP
#endif

// Where dS^T of a key tile and the first row tile goes.
DEVICE u32 place_of_gradients(u32 blocks, int key_tile, int lane) {
  return blocks + piece_of_row(key_tile * 16 + (lane & 15), lane >> 4);
}
// Store that of any row tile; `first` is the place of the first one.
DEVICE void store_gradients(u32 first, u32 left, const u32 (&x)[4], int key_tile, int tile) {
  u32 to = further_in_row(first, 2 * (tile & 3)) + (tile >> 2) * BLOCK_BYTES;
  if (LEFT_ROWS && tile >= 4 * ROW_BLOCKS) {
    const int lane = fresh_lane();
    to = left + (key_tile * 16 + (lane & 15)) * LEFT_PITCH + (lane >> 4) * 16;
  }
  store_matrices_at(to, x);
}

// A warpgroup has stored its keys. Sums of a left-over tile go where keys waited, so then all of them must be stored.
DEVICE void wait_for_keys(int which) {
  if (WAITING && LEFT_OVER) wait_for_all();
  else wait_for_four(which);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) backward_wgmma(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) u8 memory[];
  const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x >> 5, 0);
  Shared at;
  at.queries = (shared_address(memory) + 1023) & ~1023u;
  at.grads = at.queries + RUN * 128;
  at.keys = at.grads + RUN * 128;
  at.values = at.keys + LOADED_TILES * 2048;
  at.waiting = at.values + LOADED_TILES * 2048;
  const u32 blocks = at.waiting + (WAITING ? LOADED_TILES * 2048 : 0), left = blocks + ROW_BLOCKS * BLOCK_BYTES;
  const u32 end = at.place_rows(left + LEFT_ROWS * KEYS * LEFT_PITCH);

  const int row_tiles = (a.rows + 15) / 16, runs = ONE_STEP ? 1 : (row_tiles + ROW_TILES - 1) / ROW_TILES;
  const int steps = ONE_STEP ? 1 : a.group * runs;
  int unit = blockIdx.x, step = 0;
  if (unit >= a.units) return;
  const Keys draws(a);
  Fetched fetched;
  bool is_only_key;
  {
    const int lane = fresh_lane();
    start_copies(a, at, unit, step, runs, row_tiles, warp, lane);
    read_rest(a, at, fetched, draws, unit, step, runs, warp, lane);
#if RADIUS > 0
    note_weights(a, at, unit, warp, lane);
#endif
    is_only_key = note_rows(at, fetched, warp, lane);
#if RADIUS > 0
    clear_hidden_waiting(a, at, unit, warp, lane);
#endif
  }
  show_to_matrix_units();
  is_only_key = wait_for_rows(is_only_key);

  if (warp < 4 * GROUPS) {
    const int group = warp >> 2;
    OwnKeys own = own_keys(a, draws, warp, fresh_lane());
    own.is_special = own.hides | is_only_key;
    SUMS_OF_ALL_STEPS;
#pragma unroll 1
    while (true) {
      SUMS_OF_ONE_STEP;
      if (ONE_STEP || step == 0) {
        const int lane = fresh_lane();
        look_at_mask(a, own, unit, lane);
#if TAKES_TURNS
        at.take_turns();
#else
#if RADIUS > 0
        bring_blurred_keys(a, at, fetched, unit, warp, lane);
#else
        store_keys(at, fetched, warp, lane);
#endif
        show_to_matrix_units();
        wait_for_keys(1 + group);
#endif
      }
      {
#if RADIUS == 0
        // While there are registers for it. (Of the left-over tile, too: its own warps never have so many.)
#pragma unroll 1
        for (int tile = warp; tile < LOADED_TILES; tile += 4 * GROUPS)
          send_for_next(a, unit, step, steps, runs, row_tiles, tile, fresh_lane());
#endif
        const int lane = fresh_lane();
        const Step now(a, unit, step, runs);
        const int first = now.first;
        const u32 tiles = now.tiles;
        const int line = now.line(a);
        draw_columns(a, own, draws.drop, line, lane);
        FirstTile from(at, warp, lane);
        u32 place = place_of_gradients(blocks, warp, lane);
        asm volatile("" : "+r"(from.rows), "+r"(from.notes), "+r"(place));  // kept, rather than computed again for each tile
        const u32 own_k = matrix_at(at.keys + group * 8192), own_v = matrix_at(at.values + group * 8192);
        const u32 q = matrix_at(at.queries), grad = matrix_at(at.grads);
        float s[2][4], d_s[2][4];
        clear(s);
        clear(d_s);
#if ONE_STEP
        clear(d_k);
        clear(d_v);
#endif
        begin_products();
#pragma unroll
        for (int i = 0; i < 4; i++) multiply_rows(s, own_k + i * 2, q + i * 2, i > 0);
#pragma unroll
        for (int i = 0; i < 4; i++) multiply_rows(d_s, own_v + i * 2, grad + i * 2, i > 0);
        send_products();
        u32 tile = 0;
#pragma unroll 1
        do {
          u32 weights[4], gradients[4];
          wait_for_products();
          weigh(a, s, d_s, at, from, own, line, first, tile, lane, weights, gradients);
          store_gradients(place, left, gradients, warp, tile);
          begin_products();
          const int add = ONE_STEP ? tile : tile + step;
          multiply_own(d_v, weights, grad + tile * TILE_AT, add);
          multiply_own(d_k, gradients, q + tile * TILE_AT, add);
          // The logits of the next tile. (Behind the last one, something is read that nobody uses.)
#pragma unroll
          for (int i = 0; i < 4; i++) multiply_rows(s, own_k + i * 2, q + (tile + 1) * TILE_AT + i * 2, i > 0);
#pragma unroll
          for (int i = 0; i < 4; i++) multiply_rows(d_s, own_v + i * 2, grad + (tile + 1) * TILE_AT + i * 2, i > 0);
          send_products();
        } while (++tile < tiles);
        wait_for_products();
      }
      show_to_matrix_units();
      wait_for_all();
      asm volatile("" : "+r"(unit));  // what follows from it is computed again, rather than kept in registers all the time
      const Step now(a, unit, step, runs);
      const bool is_last = ONE_STEP || step + 1 == steps;
      const int next_unit = is_last ? unit + gridDim.x : unit, next_step = is_last ? 0 : step + 1;
      const bool more = next_unit < a.units;
      const int lane = fresh_lane();
      if (more) {
        start_copies(a, at, next_unit, next_step, runs, row_tiles, warp, lane);
#if RADIUS > 0
        send_for_rest(a, next_unit, next_step, runs, warp, lane);
#endif
      }
      if (is_last) {
        write_rows(a.d_v + now.batch * a.of_d_v.batch + now.key_head * a.of_d_v.head, a.of_d_v.row, warp * 16, a.keys, d_v, 1.f, 1.f, lane);
#if RADIUS == 0
        write_rows(a.d_k + now.batch * a.of_d_k.batch + now.key_head * a.of_d_k.head, a.of_d_k.row, warp * 16, a.keys, d_k, a.scale, a.scale, lane);
#endif
      }
#if RADIUS > 0 && ONE_STEP
      RoundedTile gradient;  // takes fewer registers from now on
      round_gradient(gradient, a, at, d_k, unit, warp, fresh_lane());
#endif
#if READS_EARLY
      // Under way during the next products. (If there is no next step, this one's once more: a condition would cost registers.)
      read_rest(a, at, fetched, draws, more ? next_unit : unit, more ? next_step : step, runs, warp, fresh_lane());
#endif
      // As many columns at a time as give each warpgroup work.
#pragma unroll 1
      for (int item = group; item < PARTS * ROW_BLOCKS; item += GROUPS) {
        const int block = item / PARTS, part = item % PARTS;
        float d_q[8 / PARTS][4];
        clear(d_q);
        const u32 d_s = matrix_at(blocks + block * BLOCK_BYTES), k = matrix_at(at.keys) + part * 4;
        begin_products();
#pragma unroll
        for (int j = 0; j < KEY_TILES; j++) multiply_transposed(d_q, d_s + j * TILE_AT, k + j * TILE_AT, j > 0);
        send_products();
        wait_for_products();
        const int again = fresh_lane();
        u16* to = a.d_q + now.batch * a.of_d_q.batch + now.head * a.of_d_q.head + part * 32;
        write_rows(to, a.of_d_q.row, now.first + block * 64 + (warp & 3) * 16, a.rows, d_q, a.scale, a.scale, again);
      }
#if RADIUS > 0
      if (is_last) {
#if !ONE_STEP
        RoundedTile gradient;
        round_gradient(gradient, a, at, d_k, unit, warp, fresh_lane());
#endif
        blur_gradient(a, at, gradient, unit, true, warp, fresh_lane());
      }
#endif
      if (!more) return;
#if RADIUS > 0
      if (is_last) note_next_weights(a, at, next_unit, warp, fresh_lane());
#endif
#if !READS_EARLY
      if (WAITING) fetched = {};  // not all warps read, and for the others the compiler would keep what they had
      read_rest(a, at, fetched, draws, next_unit, next_step, runs, warp, fresh_lane());
#endif
      is_only_key = note_rows(at, fetched, warp, fresh_lane());
#if RADIUS > 0
      if (is_last) clear_hidden_waiting(a, at, next_unit, warp, fresh_lane());
#endif
      unit = next_unit;
      step = next_step;
      show_to_matrix_units();
      own.is_special = own.hides | wait_for_rows(is_only_key);
    }
  }
#if LEFT_OVER
  // The last key tile. Its four warps take every fourth row tile each, and add up at the end.
  constexpr int last = KEY_TILES - 1;
  const int part = warp - 4 * GROUPS;
  OwnKeys own = own_keys(a, draws, last, fresh_lane());
  own.is_special = own.hides | is_only_key;
  SUMS_OF_ALL_STEPS;
#pragma unroll 1
  while (true) {
    SUMS_OF_ONE_STEP;
    const Step now(a, unit, step, runs);
    const bool is_last = ONE_STEP || step + 1 == steps;
    if (ONE_STEP || step == 0) {
      const int lane = fresh_lane();
      look_at_mask(a, own, unit, lane);
#if TAKES_TURNS
      at.take_turns();
#else
#if RADIUS > 0
      bring_blurred_keys(a, at, fetched, unit, warp, lane);
#else
      if (part == 0) store_keys(at, fetched, warp, lane);
#endif
      show_to_matrix_units();
      wait_for_keys(1 + GROUPS);
#endif
      clear(d_k);
      clear(d_v);
    }
    {
      const int lane = fresh_lane();
      // A row of 128 bytes holds its pieces in changed places: adding to the column is an exclusive or.
      const u32 as_rows = (lane & 15) * 128 + (((lane >> 4) ^ (lane & 7)) << 4);
      const u32 as_columns = ((lane & 7) + (lane >> 4) * 8) * 128 + ((((lane >> 3) & 1) ^ (lane & 7)) << 4);
      draw_columns(a, own, draws.drop, now.line(a), lane);
      u32 k_tile[4][4];
#pragma unroll
      for (int i = 0; i < 4; i++) load_matrices(k_tile[i], at.keys + last * 2048 + (as_rows ^ (i * 32)));
#pragma unroll 1
      for (int tile = part; tile < now.tiles; tile += 4) {
        float s[2][4], d_s[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
          for (int e = 0; e < 4; e++) s[h][e] = d_s[h][e] = 0.f;
        const u32 q_tile = at.queries + tile * 2048, g_tile = at.grads + tile * 2048;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          u32 b[4], v_tile[4];
          load_matrices(b, q_tile + (as_columns ^ (i * 32)));
          multiply(s[0], k_tile[i], b[0], b[1]);
          multiply(s[1], k_tile[i], b[2], b[3]);
          load_matrices(b, g_tile + (as_columns ^ (i * 32)));
          load_matrices(v_tile, at.values + last * 2048 + (as_rows ^ (i * 32)));
          multiply(d_s[0], v_tile, b[0], b[1]);
          multiply(d_s[1], v_tile, b[2], b[3]);
        }
        u32 weights[4], gradients[4];
        weigh(a, s, d_s, at, FirstTile(at, last, lane), own, now.line(a), now.first, tile, lane, weights, gradients);
        store_gradients(place_of_gradients(blocks, last, fresh_lane()), left, gradients, last, tile);
#pragma unroll
        for (int n = 0; n < 4; n++) {
          u32 b[4];
          load_transposed(b, g_tile + (as_rows ^ (n * 32)));
          multiply(d_v[2 * n], weights, b[0], b[1]);
          multiply(d_v[2 * n + 1], weights, b[2], b[3]);
          load_transposed(b, q_tile + (as_rows ^ (n * 32)));
          multiply(d_k[2 * n], gradients, b[0], b[1]);
          multiply(d_k[2 * n + 1], gradients, b[2], b[3]);
        }
      }
      if (is_last) {
        const u32 sums = WAITING ? at.waiting : end;  // no keys wait now
        // In a fixed order, so that results are equal in every run.
#pragma unroll 1
        for (int p = 3; p >= 0; p--) {
          if (part == p) {
#pragma unroll
            for (int n = 0; n < 8; n++) {
              const u32 from = sums + n * 1024 + lane * 16;
              if (p < 3) {
                const Four x = load_16(from), y = load_16(from + 512);
                d_v[n][0] += __uint_as_float(x.x); d_v[n][1] += __uint_as_float(x.y); d_v[n][2] += __uint_as_float(x.z); d_v[n][3] += __uint_as_float(x.w);
                d_k[n][0] += __uint_as_float(y.x); d_k[n][1] += __uint_as_float(y.y); d_k[n][2] += __uint_as_float(y.z); d_k[n][3] += __uint_as_float(y.w);
              }
              if (p > 0) {
                store_16(from, {__float_as_uint(d_v[n][0]), __float_as_uint(d_v[n][1]), __float_as_uint(d_v[n][2]), __float_as_uint(d_v[n][3])});
                store_16(from + 512, {__float_as_uint(d_k[n][0]), __float_as_uint(d_k[n][1]), __float_as_uint(d_k[n][2]), __float_as_uint(d_k[n][3])});
              }
            }
          }
          if (p > 0) wait_for_four(1 + GROUPS);
        }
      }
    }
    show_to_matrix_units();
    wait_for_all();
    const int next_unit = is_last ? unit + gridDim.x : unit, next_step = is_last ? 0 : step + 1;
    const bool more = next_unit < a.units;
    const int lane = fresh_lane();
#if RADIUS > 0
    RoundedTile gradient;  // (Of part 0 and the last step.)
    round_gradient(gradient, a, at, d_k, unit, warp, lane);
#endif
    if (more) {
      start_copies(a, at, next_unit, next_step, runs, row_tiles, warp, lane);
      read_rest(a, at, fetched, draws, next_unit, next_step, runs, warp, lane);
    }
    if (is_last && part == 0) {
      write_rows(a.d_v + now.batch * a.of_d_v.batch + now.key_head * a.of_d_v.head, a.of_d_v.row, last * 16, a.keys, d_v, 1.f, 1.f, lane);
#if RADIUS == 0
      write_rows(a.d_k + now.batch * a.of_d_k.batch + now.key_head * a.of_d_k.head, a.of_d_k.row, last * 16, a.keys, d_k, a.scale, a.scale, lane);
#endif
    }
#if LEFT_ROWS
    if (part == 1 && now.tiles > 4 * ROW_BLOCKS) {
      float d_q[8][4];
#pragma unroll
      for (int n = 0; n < 8; n++) d_q[n][0] = d_q[n][1] = d_q[n][2] = d_q[n][3] = 0.f;
      const u32 from = left + ((lane & 7) + (lane >> 4) * 8) * LEFT_PITCH + ((lane >> 3) & 1) * 16;
      const u32 as_rows = (lane & 15) * 128 + (((lane >> 4) ^ (lane & 7)) << 4);
#pragma unroll 1
      for (int j = 0; j < KEY_TILES; j++) {
        u32 d_s[4];
        load_transposed(d_s, from + j * 16 * LEFT_PITCH);
#pragma unroll
        for (int n = 0; n < 4; n++) {
          u32 b[4];
          load_transposed(b, at.keys + j * 2048 + (as_rows ^ (n * 32)));
          multiply(d_q[2 * n], d_s, b[0], b[1]);
          multiply(d_q[2 * n + 1], d_s, b[2], b[3]);
        }
      }
      u16* to = a.d_q + now.batch * a.of_d_q.batch + now.head * a.of_d_q.head;
      write_rows(to, a.of_d_q.row, now.first + 64 * ROW_BLOCKS, a.rows, d_q, a.scale, a.scale, lane);
    }
#endif
#if RADIUS > 0
    if (is_last) blur_gradient(a, at, gradient, unit, part == 0, warp, fresh_lane());
#endif
    if (!more) return;
#if RADIUS > 0
    if (is_last) note_next_weights(a, at, next_unit, warp, fresh_lane());
#endif
    is_only_key = note_rows(at, fetched, warp, fresh_lane());
#if RADIUS > 0
    if (is_last) clear_hidden_waiting(a, at, next_unit, warp, fresh_lane());
#endif
    unit = next_unit;
    step = next_step;
    show_to_matrix_units();
    own.is_special = own.hides | wait_for_rows(is_only_key);
  }
#endif
}
