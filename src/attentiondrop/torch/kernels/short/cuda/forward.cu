// Attention of short rows, forward: a regulariser decides inside, and plain attention takes longer than this.
//
// A warp has 16 rows and all their logits in registers, so there is no running maximum and nothing is rescaled. Blocks stay:
// each takes one unit after the other. A unit is one sample and one key head, with the queries of all heads that share its
// keys. The unit after next travels into shared memory while the warps work. Warps take 16-row tiles in turn.
//
// Macros beside those of the variant: WARPS, STAGES (units in shared memory), BLOCKS (per multiprocessor).
#include "instructions.cuh"
#include "hashing.cuh"
#include "layout.cuh"
#include "marks.cuh"
#include "largest.cuh"
#include "blur.cuh"

struct Arguments {
  const u16 *q, *k, *v;
  u16* output;
  float* lse;
  u32* dropped;  // LARGEST: which logits were dropped (see `bit_map.py`)
  int* kept;     // HIDE: the key that an emptied row keeps, or -1
  const i64* seed;
  const float* gate;
  const u8* visible;
  const float* blur_gate;
  Strides of_q, of_k, of_v, of_output, of_visible;
  float scale, log2_scale, rate, sigma_min, sigma_span;  // log2_scale: of logits in units of log2
  int units, key_heads, group, rows, keys, stream, blur_stream, sampling;
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

// Hide what a row does not see.
DEVICE void hide(float (&logits)[EIGHTS][4], const Arguments& a, u32 seen, int row, int lane) {
  const int t = lane & 3;
#if CAUSAL || MASKED
#pragma unroll
  for (int j = 0; j < EIGHTS; j++) {
#if MASKED
    const u32 bits = load_word(seen + (j / 2) * 4) >> (8 * (j & 1) + 2 * t);
#endif
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int key = j * 8 + 2 * t + (e & 1);
      bool is_seen = key < a.keys;
#if CAUSAL
      is_seen = is_seen && key <= row + (e & 2) * 4;
#endif
#if MASKED
      is_seen = is_seen && (bits >> (e & 1) & 1);
#endif
      if (!is_seen) logits[j][e] = HIDDEN;
    }
  }
#else
#pragma unroll
  for (int j = EIGHTS - 2; j < EIGHTS; j++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (j * 8 + 2 * t + (e & 1) >= a.keys) logits[j][e] = HIDDEN;
#endif
}

// The words of the two rows of a thread: each lane computes one of the tile.
DEVICE void words_of_rows(u32 (&lines)[2], Key key, u32 first, int lane) {
  const u32 own = line_word(key, first + (lane & 15));
  lines[0] = __shfl_sync(WHOLE_WARP, own, lane >> 2);
  lines[1] = __shfl_sync(WHOLE_WARP, own, (lane >> 2) + 8);
}

#if HIDE
// The largest logit of a row that is not dropped.
DEVICE float largest_kept(const float (&logits)[EIGHTS][4], const Marks& dropped, int r) {
  float kept = HIDDEN;
#pragma unroll
  for (int i = 0; i < MARKS; i++)
    if (!dropped.has(i)) kept = fmaxf(kept, logits[i / 2][2 * r + i % 2]);
  return largest_of_quad(kept);
}
// A row that lost all it sees keeps its largest logit, of equal ones the one with the lowest key. Returns that key, or -1.
// `largest` is the largest that is kept, before and after.
DEVICE int keep_one(const float (&logits)[EIGHTS][4], Marks& dropped, float& largest, int r, int lane) {
  if (!__any_sync(WHOLE_WARP, IS_HIDDEN(largest))) return -1;
  float most = HIDDEN;
#pragma unroll
  for (int j = 0; j < EIGHTS; j++) most = fmaxf(most, fmaxf(logits[j][2 * r], logits[j][2 * r + 1]));
  most = largest_of_quad(most);
  u32 lowest = 0x7fffffffu;
#pragma unroll
  for (int j = EIGHTS - 1; j >= 0; j--)
#pragma unroll
    for (int e = 1; e >= 0; e--)
      if (logits[j][2 * r + e] == most) lowest = 8 * j + 2 * (lane & 3) + e;
  const u32 key = smallest_of_quad(lowest);
  if (!IS_HIDDEN(largest) || IS_HIDDEN(most)) return -1;
  largest = most;
#pragma unroll
  for (int w = 0; w < MARK_WORDS; w++)
    if (lowest == key && (int)((key >> 3) * 2 + (key & 1)) / 32 == w) dropped.word[w] &= ~(0x80000000u >> (((key >> 3) * 2 + (key & 1)) & 31));
  return (int)key;
}
#endif

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) forward(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) u8 memory[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u32 stages = shared_address(memory);
  const u32 queries = stages + STAGES * STAGE_BYTES + warp * TILE_BYTES;
  const u32 notes = stages + STAGES * STAGE_BYTES + WARPS * TILE_BYTES + warp * NOTE_BYTES;
  const u32 columns = stages + STAGES * STAGE_BYTES + WARPS * (TILE_BYTES + NOTE_BYTES);
  // Of each stage: a barrier, the unit that it holds, tiles of it that are finished.
  const u32 ready = (columns + 4 * KEYS + 7) & ~7u, held = ready + 8 * STAGES, finished = held + 4 * STAGES, next_tile = finished + 4 * STAGES;

  const int row_tiles = (a.rows + 15) / 16, tiles = a.group * row_tiles;
  const int units = (a.units - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
  const float scale = a.log2_scale;

  if (threadIdx.x < STAGES) {
    make_barrier(ready + 8 * threadIdx.x, ARRIVALS);
    store_word(held + 4 * threadIdx.x, 0xffffffffu);
    store_word(finished + 4 * threadIdx.x, 0);
  }
  if (threadIdx.x == 0) store_word(next_tile, WARPS);
  // Rows beyond the last key have weight 0, but 0 times whatever is in memory might be NaN.
  for (int i = threadIdx.x; i < STAGES * 2 * (KEYS - a.keys) * CHUNKS; i += WARPS * 32) {
    const int part = i / ((KEYS - a.keys) * CHUNKS), piece = i % ((KEYS - a.keys) * CHUNKS);
    store_16(stages + (part / 2) * STAGE_BYTES + (part % 2) * KEY_BYTES + (a.keys + piece / CHUNKS) * PITCH + piece % CHUNKS * 16, {0, 0, 0, 0});
  }
  for (int i = lane; i < TILE_BYTES / 16; i += 32) store_16(queries + i * 16, {0, 0, 0, 0});
#if DROP != NOTHING
  const Key key = stream_key(*a.seed, a.stream);
  const float rate = a.gate ? a.rate * *a.gate : a.rate;
  const u32 limit = limit_of(rate);
  for (int i = threadIdx.x; i < KEYS; i += WARPS * 32) store_word(columns + 4 * i, column_word(key, i));
#endif
  __syncthreads();
  for (int first = warp; first < STAGES && first < units; first += WARPS) bring(a, stages + first * STAGE_BYTES, held + 4 * first, ready + 8 * first, first, lane);

  int item = warp, local = divided(item, a.by_tiles), tile = item - local * tiles;
  if (local < units) copy_queries(queries, a, Unit(blockIdx.x + local * gridDim.x, a.key_heads, a.by_heads), tile, row_tiles, lane);
  end_of_copies();
  end_of_copies();
#pragma unroll 1
  while (local < units) {
    const Unit unit(blockIdx.x + local * gridDim.x, a.key_heads, a.by_heads);
    const int which = local % STAGES;
    const u32 stage = stages + which * STAGE_BYTES;
    const Place place(a, unit, tile, row_tiles);
    const int t = lane & 3, row = place.first + (lane >> 2);
    const int head_line = unit.batch * a.key_heads * a.group + place.head;
    const u32 line = (u32)head_line * (u32)a.rows;

    u32 q[STEPS][4];
    wait_for_all_but_last_copies();  // the last ones are those of a unit, or none
    __syncwarp();
#pragma unroll
    for (int i = 0; i < STEPS; i++) load_matrices(q[i], queries + (lane & 15) * PITCH + (lane >> 4) * 16 + i * 32);
    __syncwarp();
    // The next tile of this warp, whose queries travel meanwhile.
    u32 taken = 0;
    if (lane == 0) taken = add_shared(next_tile, 1);
    item = __shfl_sync(WHOLE_WARP, taken, 0);
    const int next_local = divided(item, a.by_tiles), next = item - next_local * tiles;
    if (next_local < units) copy_queries(queries, a, Unit(blockIdx.x + next_local * gridDim.x, a.key_heads, a.by_heads), next, row_tiles, lane);
    end_of_copies();

    wait_for_unit(held + 4 * which, ready + 8 * which, local);
    __syncwarp();
    float logits[EIGHTS][4];
    const u32 k_rows = stage + ((lane & 7) + (lane >> 4) * 8) * PITCH + ((lane >> 3) & 1) * 16;
#pragma unroll
    for (int j = 0; j < KEY_TILES; j++) {
      if (j && j % 2 == 0) __syncwarp();  // keeps the compiler from loading far ahead, for which it has no registers
#pragma unroll
      for (int e = 0; e < 4; e++) logits[2 * j][e] = logits[2 * j + 1][e] = 0.f;
#pragma unroll
      for (int i = 0; i < STEPS; i++) {
        u32 b[4];
        load_matrices(b, k_rows + j * TILE_BYTES + i * 32);
        multiply(logits[2 * j], q[i], b[0], b[1]);
        multiply(logits[2 * j + 1], q[i], b[2], b[3]);
      }
    }
    hide(logits, a, stage + 2 * KEY_BYTES, row, lane);

    // From here on, logits are in units of log2 and relative to `reference`.
    float reference[2];
#if DROP == LARGEST || DROP == EVERY
    const bool inside[2] = {row < a.rows, row + 8 < a.rows};
    u32 lines[2];
    words_of_rows(lines, key, line + place.first, lane);
    int kept[2] = {-1, -1};
#endif
#if DROP == LARGEST
    for (int i = lane; i < NOTE_BYTES / 4; i += 32) store_word(notes + 4 * i, 0);
    Chosen chosen;
    drop_largest(logits, chosen, scale, lines, columns, limit, inside, lane);
    __syncwarp();
#if HIDE && (CAUSAL || MASKED)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float largest = largest_kept(logits, chosen.dropped[r], r);
      kept[r] = keep_one(logits, chosen.dropped[r], largest, r, lane);
    }
#endif
    Marks either;
#pragma unroll
    for (int w = 0; w < MARK_WORDS; w++) either.word[w] = __reduce_or_sync(WHOLE_WARP, chosen.dropped[0].word[w] | chosen.dropped[1].word[w]);
#pragma unroll
    for (int j = 0; j < EIGHTS; j++)
      if (either.has_either(2 * j)) {  // skipped more often than not
#pragma unroll
        for (int e = 0; e < 4; e++)
          if (chosen.dropped[e / 2].has(2 * j + e % 2)) logits[j][e] = HIDE ? HIDDEN : -chosen.reference[e / 2];
      }
    // Note them in the order in which the backward holds its logits.
#pragma unroll
    for (int r = 0; r < 2; r++)
      for (Marks left = chosen.dropped[r]; left.any(); left.remove_first()) {
        const u32 at = key_of(left.first(), t), g = lane >> 2;
        const u32 byte = (at >> 4) * 32 + (at & 7) * 4 + (g >> 1), bit = r * 4 + (at >> 3 & 1) * 2 + (g & 1);
        set_bits(notes + (byte & ~3u), 1u << ((byte & 3) * 8 + bit));
      }
    reference[0] = chosen.reference[0];
    reference[1] = chosen.reference[1];
    if (__any_sync(WHOLE_WARP, chosen.is_far)) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float largest = HIDDEN;
#pragma unroll
        for (int j = 0; j < EIGHTS; j++) largest = fmaxf(largest, fmaxf(logits[j][2 * r], logits[j][2 * r + 1]));
        largest = largest_of_quad(largest);
        if (IS_HIDDEN(largest)) largest = 0.f;
#pragma unroll
        for (int j = 0; j < EIGHTS; j++)
#pragma unroll
          for (int e = 0; e < 2; e++) logits[j][2 * r + e] -= largest;
        reference[r] += largest;
      }
    }
#else
#if DROP == EVERY
    Marks dropped[2];
    dropped[0].clear();
    dropped[1].clear();
    float largest_left[2] = {HIDDEN, HIDDEN};
#pragma unroll
    for (int j = 0; j < EIGHTS; j++) {
      u32 words[2];
      load_two_words(columns + 4 * (8 * j + 2 * t), words[0], words[1]);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        if (lines[e / 2] * words[e % 2] <= limit) dropped[e / 2].add(2 * j + e % 2);
        else largest_left[e / 2] = fmaxf(largest_left[e / 2], logits[j][e]);
      }
    }
#endif
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float largest = HIDDEN;
#if DROP == EVERY
      largest = largest_left[r];
#if HIDE
      largest = largest_of_quad(largest);
      kept[r] = keep_one(logits, dropped[r], largest, r, lane);
#endif
#pragma unroll
      for (int i = 0; i < MARKS; i++) {
        float& x = logits[i / 2][2 * r + i % 2];
        if (dropped[r].has(i)) x = HIDE || IS_HIDDEN(x) ? HIDDEN : 0.f;
      }
#endif
#if DROP != EVERY || !HIDE
#pragma unroll
      for (int j = 0; j < EIGHTS; j++) largest = fmaxf(largest, fmaxf(logits[j][2 * r], logits[j][2 * r + 1]));
      largest = largest_of_quad(largest);
#endif
      reference[r] = IS_HIDDEN(largest) ? 0.f : largest * scale;
#pragma unroll
      for (int j = 0; j < EIGHTS; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) logits[j][2 * r + e] = fmaf(logits[j][2 * r + e], scale, -reference[r]);
    }
#endif

    float sums[2 * STEPS][4], total[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int n = 0; n < 2 * STEPS; n++) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.f;
    u32 weights[KEY_TILES][4];
#pragma unroll
    for (int j = 0; j < EIGHTS; j++) {
      weights[j / 2][2 * (j & 1)] = packed(power_of_two(logits[j][0]), power_of_two(logits[j][1]));
      weights[j / 2][2 * (j & 1) + 1] = packed(power_of_two(logits[j][2]), power_of_two(logits[j][3]));
    }
#if DROP == WEIGHTS
    u32 lines[2];
    words_of_rows(lines, key, line + place.first, lane);
#endif
    const u32 v_rows = stage + KEY_BYTES + (lane & 15) * PITCH + (lane >> 4) * 16;
#pragma unroll
    for (int j = 0; j < KEY_TILES; j++) {
      multiply(total, weights[j], ONES, ONES);
#if DROP == WEIGHTS
#pragma unroll
      for (int half = 0; half < 2; half++) {
        u32 words[2];
        load_two_words(columns + 4 * (16 * j + 8 * half + 2 * t), words[0], words[1]);
#pragma unroll
        for (int r = 0; r < 2; r++)
          weights[j][2 * half + r] &= (lines[r] * words[0] <= limit ? 0u : 0x0000ffffu) | (lines[r] * words[1] <= limit ? 0u : 0xffff0000u);
      }
#endif
#pragma unroll
      for (int n = 0; n < STEPS; n++) {
        u32 b[4];
        load_transposed(b, v_rows + j * TILE_BYTES + n * 32);
        multiply(sums[2 * n], weights[j], b[0], b[1]);
        multiply(sums[2 * n + 1], weights[j], b[2], b[3]);
      }
    }
    // The last tile of a unit sends for another unit.
    __syncwarp();
    u32 before = 0;
    if (lane == 0) before = add_shared(finished + 4 * which, 1);
    const bool is_last = __shfl_sync(WHOLE_WARP, before, 0) == tiles - 1;

    const i64 at = (i64)line + row;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float sum = total[2 * r];
      factor[r] = sum == 0.f ? 0.f : 1.f / sum;
      if (t == 0 && row + 8 * r < a.rows) {
        a.lse[at + 8 * r] = sum == 0.f ? BLIND : reference[r] + logarithm(sum);
#if HIDE
        a.kept[at + 8 * r] = kept[r];
#endif
      }
#if DROP == WEIGHTS
      factor[r] *= factor_of(rate);
#endif
    }
    write_rows(a.output + unit.batch * a.of_output.batch + place.head * a.of_output.head, a.of_output.row, place.first, a.rows, sums, factor[0], factor[1], lane);
#if DROP == LARGEST
    __syncwarp();
    const i64 note = ((i64)head_line * row_tiles + place.first / 16) * (KEY_TILES * 8);
    for (int i = lane; i < KEY_TILES * 2; i += 32) {
      const Four x = load_16(notes + i * 16);
      *(uint4*)(a.dropped + note + i * 4) = make_uint4(x.x, x.y, x.z, x.w);
    }
    __syncwarp();
#endif
    if (is_last) {
      if (lane == 0) store_word(finished + 4 * which, 0);
      __syncwarp();
      if (local + STAGES < units) bring(a, stage, held + 4 * which, ready + 8 * which, local + STAGES, lane);
    }
    end_of_copies();
    local = next_local;
    tile = next;
  }
  wait_for_copies();  // which other warps may still need
}
