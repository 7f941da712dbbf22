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
#include "forward_units.cuh"
#include "forward_rows.cuh"
#include "every.cuh"

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) forward(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) u8 memory[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u32 stages = shared_address(memory);
  const u32 queries = stages + STAGES * STAGE_BYTES + warp * TILE_BYTES;
  const u32 notes = stages + STAGES * STAGE_BYTES + WARPS * TILE_BYTES + warp * NOTE_BYTES;
  const u32 columns = stages + STAGES * STAGE_BYTES + WARPS * (TILE_BYTES + NOTE_BYTES);
  // Of each stage: a barrier, the unit that it holds, tiles of it that are finished.
  const u32 dropout_columns = columns + (HAS_LINES ? 4 * KEYS : 0);
  const u32 ready = (dropout_columns + (DROPOUT ? 4 * KEYS : 0) + 7) & ~7u, held = ready + 8 * STAGES, finished = held + 4 * STAGES, next_tile = finished + 4 * STAGES;

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
  const float rate = gated(a.rate, a.gate);
  const u32 limit = limit_of(rate);
#if HAS_LINES
  for (int i = threadIdx.x; i < KEYS; i += WARPS * 32) {
    const u32 place = DROP == LARGEST ? mark_of_key(i) : i;
    store_word(columns + 4 * place, column_word(key, SHARE ? i - i % a.span : i));
  }
#endif
#endif
#if DROPOUT
  const Key dropout_key = stream_key(*a.seed, a.dropout_stream);
  const float dropout_rate = gated(a.dropout_rate, a.dropout_gate);
  const u32 dropout_limit = limit_of(dropout_rate);
  for (int i = threadIdx.x; i < KEYS; i += WARPS * 32) store_word(dropout_columns + 4 * i, column_word(dropout_key, i));
#endif
  __syncthreads();
#if RADIUS > 0
  bring_first(a, stages, held, ready, units, warp, lane);
#else
  for (int first = warp; first < STAGES && first < units; first += WARPS) bring(a, stages + first * STAGE_BYTES, held + 4 * first, ready + 8 * first, first, lane);
#endif

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
    if (lane == 0) taken = count_shared(next_tile);
    item = __shfl_sync(WHOLE_WARP, taken, 0);
    const int next_local = divided(item, a.by_tiles), next = item - next_local * tiles;
    if (next_local < units) copy_queries(queries, a, Unit(blockIdx.x + next_local * gridDim.x, a.key_heads, a.by_heads), next, row_tiles, lane);
    end_of_copies();

    wait_for_unit(held + 4 * which, ready + 8 * which, local);
    __syncwarp();
    float logits[EIGHTS][4];
#if DROP != EVERY
    compute_logits(logits, q, a, stage, head_line, place.first, lane);
#endif

    // From here on, logits are in units of log2 and relative to `reference`.
    float reference[2];
#if DROP != NOTHING
    int kept[2] = {-1, -1};
#endif
#if HAS_LINES
    u32 lines[2];
    words_of_rows(lines, key, line + place.first, lane);
#endif
#if DROP == LARGEST
    const bool inside[2] = {row < a.rows, row + 8 < a.rows};
    static_assert(NOTE_BYTES <= 32 * 16, "each lane clears, and later writes, one piece of 16 bytes");
    if (lane < NOTE_BYTES / 16) store_16(notes + 16 * lane, {0, 0, 0, 0});
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
    note_drops(notes, chosen.dropped, lane);
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
    float largest_left[2] = {HIDDEN, HIDDEN};
#if DROP == EVERY
#if COLUMNS
    const Draws draws(a, key, head_line, rate, lane);
#else
    const Draws draws{{lines[0], lines[1]}, columns, limit};
#endif
#if SHARE
    float of_all[2], largest_of_all[2];
#endif
    // Once, and hardly ever twice.
#pragma unroll 1
    for (bool is_again = false;; is_again = true) {
      compute_logits(logits, q, a, stage, head_line, place.first, lane);
#if SHARE
#pragma unroll
      for (int r = 0; r < 2; r++) of_all[r] = lse_of_all(logits, scale, r, largest_of_all[r]);
#endif
#if HIDE
      Largest largest;
      if (is_again) largest.find(logits, lane);
#endif
      drop_drawn(logits, largest_left, draws, lane);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        largest_left[r] = largest_of_quad(largest_left[r]);
#if SHARE
        if ((largest_left[r] - largest_of_all[r]) * scale < LEAST_SHARE) largest_left[r] = HIDDEN;
#endif
      }
#if HIDE
      if (is_again) largest.put_back(logits, largest_left, kept, lane);
      // Hardly ever: a row has lost everything.
      if (!is_again && __any_sync(WHOLE_WARP, IS_HIDDEN(largest_left[0]) || IS_HIDDEN(largest_left[1]))) {
        read_queries(q, a, unit, place, lane);
        continue;
      }
#endif
      break;
    }
#else
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
      for (int j = 0; j < EIGHTS; j++) largest_left[r] = fmaxf(largest_left[r], fmaxf(logits[j][2 * r], logits[j][2 * r + 1]));
      largest_left[r] = largest_of_quad(largest_left[r]);
    }
#endif
#pragma unroll
    for (int r = 0; r < 2; r++) {
      reference[r] = IS_HIDDEN(largest_left[r]) ? 0.f : largest_left[r] * scale;
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
#if DROPOUT
    u32 dropout_lines[2];
    words_of_rows(dropout_lines, dropout_key, line + place.first, lane);
#endif
    const u32 v_rows = stage + KEY_BYTES + (lane & 15) * PITCH + (lane >> 4) * 16;
#pragma unroll
    for (int j = 0; j < KEY_TILES; j++) {
      multiply(total, weights[j], ONES, ONES);
#if DROPOUT
#pragma unroll
      for (int half = 0; half < 2; half++) {
        u32 words[2];
        load_two_words(dropout_columns + 4 * (16 * j + 8 * half + 2 * t), words[0], words[1]);
#pragma unroll
        for (int r = 0; r < 2; r++)
          weights[j][2 * half + r] &=
              (dropout_lines[r] * words[0] <= dropout_limit ? 0u : 0x0000ffffu) | (dropout_lines[r] * words[1] <= dropout_limit ? 0u : 0xffff0000u);
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

#if DROP == LARGEST
    const i64 at = (i64)line + row;  // 64 bits: with 32, the compiler spills more here
#else
    const u32 at = line + row;
#endif
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float sum = total[2 * r];
      factor[r] = sum == 0.f ? 0.f : reciprocal(sum);
      if (t == 0 && row + 8 * r < a.rows) {
        const float lse = sum == 0.f ? BLIND : reference[r] + logarithm(sum);
#if SHARE
        a.lse[at + 8 * r] = of_all[r];
        a.share[at + 8 * r] = sum == 0.f ? 0.f : power_of_two(of_all[r] - lse);
#else
        a.lse[at + 8 * r] = lse;
#endif
#if HIDE
        a.kept[at + 8 * r] = kept[r];
#endif
      }
#if DROPOUT
      factor[r] *= factor_of(dropout_rate);
#endif
    }
    write_rows(a.output + unit.batch * a.of_output.batch + place.head * a.of_output.head, a.of_output.row, place.first, a.rows, sums, factor[0], factor[1], lane);
#if DROP == LARGEST
    __syncwarp();
    const i64 note = ((i64)head_line * row_tiles + place.first / 16) * (KEY_TILES * 8);
    if (lane < NOTE_BYTES / 16) {
      const Four x = load_16(notes + 16 * lane);
      *(uint4*)(a.dropped + note + 4 * lane) = make_uint4(x.x, x.y, x.z, x.w);
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
