// The units of the forward: their arguments, and how they come into shared memory while warps work on others.
struct Arguments {
  const u16 *q, *k, *v;
  u16* output;
  float* lse;
  u32* dropped;  // LARGEST: which logits were dropped (see `bit_map.py`)
  int* kept;     // HIDE: the key that an emptied row keeps, or -1
  float* share;  // SHARE: one over the share of the weights that a row keeps
  const float* band;  // BAND: the blurred logits near the diagonal [heads of all samples][RADIUS][rows], before their scale
  const i64* seed;
  const float *gate, *dropout_gate;
  const u8* visible;
  const float* blur_gate;
  Strides of_q, of_k, of_v, of_output;
  MaskStrides of_visible;
  float scale, log2_scale, rate, dropout_rate, sigma_min, sigma_span;  // log2_scale: of logits in units of log2
  int units, key_heads, group, rows, keys, stream, dropout_stream, blur_stream, per_sigma, span;
  Divisor by_heads, by_tiles;  // by_tiles: 16-row tiles of a unit
};

#define STAGE_BYTES (2 * KEY_BYTES + 64)  // keys, values, a bit for each key that is seen
#define NOTE_BYTES (DROP == LARGEST ? KEY_TILES * 32 : 0)

// The queries of a unit's tile, counted over the heads of the group.
struct Place {
  int head, first;  // head of the queries, first row
  DEVICE_METHOD Place(const Arguments& a, const Unit& unit, int tile, int row_tiles) {
    const int member = a.group == 1 ? 0 : tile / row_tiles;
    head = unit.head * a.group + member;
    first = (tile - member * row_tiles) * 16;
  }
};

DEVICE void copy_queries(u32 to, const Arguments& a, const Unit& unit, int tile, int row_tiles, int lane) {
  const Place place(a, unit, tile, row_tiles);
  const u16* from = a.q + unit.batch * a.of_q.batch + place.head * a.of_q.head + place.first * a.of_q.row;
  copy_tile_rows(to, from, a.of_q.row, a.rows - place.first, lane);
}

// The queries of a tile once more, from global memory into the registers in which the matrix units take them.
DEVICE void read_queries(u32 (&q)[STEPS][4], const Arguments& a, const Unit& unit, const Place& place, int lane) {
  const u16* from = a.q + unit.batch * a.of_q.batch + place.head * a.of_q.head;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = place.first + (lane >> 2) + 8 * r;
    const u16* line = from + row * a.of_q.row + 2 * (lane & 3);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      q[i][r] = row < a.rows ? *(const u32*)(line + 16 * i) : 0;
      q[i][r + 2] = row < a.rows ? *(const u32*)(line + 16 * i + 8) : 0;
    }
  }
}

// Send for a unit: its keys and values arrive at the barrier `ready`. (With a blur, the keys are a group of copies of their own.)
DEVICE void send_for(const Arguments& a, u32 stage, u32 held, u32 ready, int local, int lane) {
  const Unit unit(blockIdx.x + local * gridDim.x, a.key_heads, a.by_heads);
  if (lane == 0) publish(held, local);
  copy_rows(stage, a.k + unit.batch * a.of_k.batch + unit.head * a.of_k.head, a.of_k.row, a.keys, lane);
#if RADIUS > 0
  end_of_copies();
#endif
  copy_rows(stage + KEY_BYTES, a.v + unit.batch * a.of_v.batch + unit.head * a.of_v.head, a.of_v.row, a.keys, lane);
  arrive_after_copies(ready);
#if MASKED
  const u32 seen = stage + 2 * KEY_BYTES;
  const u8* visible = a.visible + unit.batch * a.of_visible.batch + unit.head * a.of_visible.head;
  for (int tile = 0; tile < KEY_TILES; tile++) {
    const u32 bits = seen_keys(visible, a.of_visible.row, tile, a.keys, lane);
    if (lane == 0) store_word(seen + tile * 4, bits);
  }
  __syncwarp();
#endif
}

#if RADIUS > 0
#include "forward_blur.cuh"
#endif

// One warp brings a unit into a stage. It does not wait for it, unless there is a blur.
DEVICE void bring(const Arguments& a, u32 stage, u32 held, u32 ready, int local, int lane) {
  send_for(a, stage, held, ready, local, lane);
#if RADIUS > 0
  blur_alone(a, stage, local, lane);
#endif
#if MASKED || RADIUS > 0
  arrive(ready);
#endif
}
#define ARRIVALS (MASKED || RADIUS > 0 ? 64 : 32)  // of each lane: its copies, and what it writes itself

// Wait for a unit. (A stage may be two units behind, so the parity alone does not tell.)
DEVICE void wait_for_unit(u32 held, u32 ready, int local) {
  while (look_at(held) != (u32)local) __nanosleep(100);
  wait_for_arrivals(ready, (local / STAGES) & 1);
}
