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
  int units, key_heads, group, rows, keys, stream, dropout_stream, blur_stream, sampling, span;
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

#if RADIUS > 0
// Bring the keys of a unit into a stage, blurred on the way. A lane has a piece of 16 bytes of RUN neighbouring rows at a time.
#define RUN 4
DEVICE void bring_blurred(u32 to, const u16* from, const Arguments& a, u32 seen, const Unit& unit, int lane) {
  const Gaussian gaussian({a.seed, a.blur_gate, a.sigma_min, a.sigma_span, a.blur_stream, a.sampling}, unit.batch, unit.head);
  const int runs = (a.keys + RUN - 1) / RUN;
#if MASKED
#define SEEN(j) (load_word(seen + ((j) >> 4) * 4) >> ((j) & 15) & 1)
#else
#define SEEN(j) true
#endif
#pragma unroll 1
  for (int i = lane; i < runs * CHUNKS; i += 32) {
    const int chunk = i % CHUNKS, first = i / CHUNKS * RUN;
    uint4 window[RUN + 2 * RADIUS];
#pragma unroll
    for (int d = 0; d < RUN + 2 * RADIUS; d++) {
      const int j = first + d - RADIUS;
      window[d] = make_uint4(0, 0, 0, 0);
      if (j >= 0 && j < a.keys && SEEN(j)) window[d] = *(const uint4*)(from + j * a.of_k.row + chunk * 8);
    }
#pragma unroll
    for (int r = 0; r < RUN; r++) {
      const int j = first + r;
      float sum[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
#pragma unroll
      for (int d = 0; d < WIDTH; d++) {
        const uint4 x = window[r + d];
        add_row(sum, {x.x, x.y, x.z, x.w}, gaussian.weight[d < RADIUS ? RADIUS - d : d - RADIUS]);
      }
#if RENORMALIZE
      float share = 0.f;
#pragma unroll
      for (int d = -RADIUS; d <= RADIUS; d++)
        if (j + d >= 0 && j + d < a.keys && SEEN(j + d)) share += gaussian.weight[d < 0 ? -d : d];
      const float factor = share > 0.f ? 1.f / share : 0.f;
#pragma unroll
      for (int e = 0; e < 8; e++) sum[e] *= factor;
#endif
      if (j < a.keys) store_16(to + j * PITCH + chunk * 16, rounded(sum));
    }
  }
}
#endif

// One warp brings a unit into a stage. It does not wait for it: the copies arrive at the barrier `ready`.
DEVICE void bring(const Arguments& a, u32 stage, u32 held, u32 ready, int local, int lane) {
  const Unit unit(blockIdx.x + local * gridDim.x, a.key_heads, a.by_heads);
  const u16* keys = a.k + unit.batch * a.of_k.batch + unit.head * a.of_k.head;
  if (lane == 0) publish(held, local);
#if RADIUS == 0
  copy_rows(stage, keys, a.of_k.row, a.keys, lane);
#endif
  copy_rows(stage + KEY_BYTES, a.v + unit.batch * a.of_v.batch + unit.head * a.of_v.head, a.of_v.row, a.keys, lane);
  arrive_after_copies(ready);
  const u32 seen = stage + 2 * KEY_BYTES;
#if MASKED
  const u8* visible = a.visible + unit.batch * a.of_visible.batch + unit.head * a.of_visible.head;
  for (int tile = 0; tile < KEY_TILES; tile++) {
    const u32 bits = seen_keys(visible, a.of_visible.row, tile, a.keys, lane);
    if (lane == 0) store_word(seen + tile * 4, bits);
  }
#endif
#if RADIUS > 0
  __syncwarp();
  bring_blurred(stage, keys, a, seen, unit, lane);
  // The keys that will be blurred next come nearer, so that this warp waits less for them.
  const int next = blockIdx.x + (local + 1) * gridDim.x;
  if (next < a.units) {
    const Unit later(next, a.key_heads, a.by_heads);
    const u16* from = a.k + later.batch * a.of_k.batch + later.head * a.of_k.head + lane * a.of_k.row;
#pragma unroll 1
    for (int row = lane; row < a.keys; row += 32, from += 32 * a.of_k.row)
#pragma unroll
      for (int part = 0; part < HEAD; part += 64) prefetch(from + part);
  }
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
