// What happens to the logits of the 16 rows of a warp.

// The logits of queries with all keys, which lie at `k_rows` as `load_matrices` wants them.
DEVICE void multiply_keys(float (&logits)[EIGHTS][4], const u32 (&q)[STEPS][4], u32 k_rows) {
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

#if BAND
// Put in the logits of the last keys that a row sees.
DEVICE void put_band(float (&logits)[EIGHTS][4], const Arguments& a, int head_line, int first, int row, int lane) {
  const float* band = a.band + (i64)head_line * RADIUS * a.rows;
#pragma unroll
  for (int j = 0; j < EIGHTS; j++)
    if (8 * j <= first + 15 && 8 * j + 7 > first - RADIUS) {  // near the diagonal of these rows
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int at = row + (e & 2) * 4, distance = at - (8 * j + 2 * (lane & 3) + (e & 1));
        if (distance >= 0 && distance < RADIUS && at < a.rows && !IS_HIDDEN(logits[j][e])) logits[j][e] = band[distance * a.rows + at];
      }
    }
}
#endif

// The logits of a tile as its rows see them; `stage` is the memory of the unit.
DEVICE void compute_logits(float (&logits)[EIGHTS][4], const u32 (&q)[STEPS][4], const Arguments& a, u32 stage, int head_line, int first, int lane) {
  const int row = first + (lane >> 2);
  multiply_keys(logits, q, stage + ((lane & 7) + (lane >> 4) * 8) * PITCH + ((lane >> 3) & 1) * 16);
  hide(logits, a, stage + 2 * KEY_BYTES, row, lane);
#if BAND
  put_band(logits, a, head_line, first, row, lane);
#endif
}

#if SHARE
// The log-sum-exp of all logits of row `r` of a thread, in units of log2, and the largest logit.
DEVICE float lse_of_all(const float (&logits)[EIGHTS][4], float scale, int r, float& largest) {
  largest = HIDDEN;
#pragma unroll
  for (int j = 0; j < EIGHTS; j++) largest = fmaxf(largest, fmaxf(logits[j][2 * r], logits[j][2 * r + 1]));
  largest = largest_of_quad(largest);
  float sum = 0.f;
#pragma unroll
  for (int j = 0; j < EIGHTS; j++)
#pragma unroll
    for (int e = 0; e < 2; e++) sum += power_of_two((logits[j][2 * r + e] - largest) * scale);
  sum = sum_of_quad(sum);
  return IS_HIDDEN(largest) ? BLIND : largest * scale + logarithm(sum);
}
#define LEAST_SHARE -64.f  // in units of log2: a row that has less left keeps its largest
#endif

// The words of the two rows of a thread: each lane computes one of the tile.
DEVICE void words_of_rows(u32 (&lines)[2], Key key, u32 first, int lane) {
  const u32 own = line_word(key, first + (lane & 15));
  lines[0] = __shfl_sync(WHOLE_WARP, own, lane >> 2);
  lines[1] = __shfl_sync(WHOLE_WARP, own, (lane >> 2) + 8);
}

#if HIDE
// The largest logit of a row, and the lowest key of this thread that has it; a number above all keys if it has none.
DEVICE float largest_and_its_key(const float (&logits)[EIGHTS][4], int r, int lane, u32& key) {
  float most = HIDDEN;
#pragma unroll
  for (int j = 0; j < EIGHTS; j++) most = fmaxf(most, fmaxf(logits[j][2 * r], logits[j][2 * r + 1]));
  most = largest_of_quad(most);
  key = 0x7fffffffu;
#pragma unroll
  for (int j = EIGHTS - 1; j >= 0; j--)
#pragma unroll
    for (int e = 1; e >= 0; e--)
      if (logits[j][2 * r + e] == most) key = 8 * j + 2 * (lane & 3) + e;
  return most;
}
#endif

#if DROP == LARGEST && HIDE && (CAUSAL || MASKED)
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
  u32 lowest;
  const float most = largest_and_its_key(logits, r, lane, lowest);
  const u32 key = smallest_of_quad(lowest);
  if (!IS_HIDDEN(largest) || IS_HIDDEN(most)) return -1;
  largest = most;
  if (lowest == key) dropped.remove_dynamic((key >> 3) * 2 + (key & 1));
  return (int)key;
}
#endif
