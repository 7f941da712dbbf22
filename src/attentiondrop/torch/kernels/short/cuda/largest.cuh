// Hard masking: which of the TOP largest logits of a row are dropped.
//
// Sorting out the TOP largest exactly takes long, so it is done only where it matters:
// 1. A floor that at least TOP logits reach: from the largest logits of small groups (or by bisection if TOP is large).
// 2. The logits that reach it are the candidates, usually hardly more than TOP. Only they are drawn.
// 3. If a row has more than TOP candidates and one of them was drawn, the smallest are taken out until TOP are left.

#if DROP == LARGEST
// Rank `rank` (from 1) of the union of two lists in falling order.
template <int first, int second, int rank>
DEVICE float rank_of_union(const float* a, const float* b) {
  float best = HIDDEN;
#pragma unroll
  for (int i = 0; i <= rank; i++) {
    const int j = rank - i;
    if (i > first || j > second) continue;
    best = fmaxf(best, i == 0 ? b[j - 1] : j == 0 ? a[i - 1] : fminf(a[i - 1], b[j - 1]));
  }
  return best;
}
template <int first, int second, int length, int rank = 1>
struct Union {
  DEVICE_METHOD static void write(const float* a, const float* b, float* to) {
    to[rank - 1] = rank_of_union<first, second, rank>(a, b);
    if constexpr (rank < length) Union<first, second, length, rank + 1>::write(a, b, to);
  }
};

// The larger one becomes the first.
DEVICE void put_in_order(float& a, float& b) {
  const float low = fminf(a, b);
  a = fmaxf(a, b);
  b = low;
}

#define SMALLER(a, b) ((a) < (b) ? (a) : (b))
// Lists of a few group maxima in each thread find the floor, unless TOP is large or a row has hardly more groups than TOP.
#define NETWORK (TOP <= 16 && TOP <= 8 * KEY_TILES)
// A group is the largest of four logits of a thread. Rows so short that a thread has few of them are grouped by two.
#define OWN_GROUPS SMALLER(SMALLER(4, TOP), KEY_TILES)
#define PAIRS (4 * OWN_GROUPS < TOP)
// The groups of a row that has one key in its last tile. With fewer than TOP of them, the floor of the row is hidden.
#define FEWEST_GROUPS ((PAIRS ? 8 : 4) * (KEY_TILES - 1) + 1)
#define MAY_HIDE_FLOOR (CAUSAL || MASKED || (NETWORK && FEWEST_GROUPS < TOP))

// A number that at least TOP logits of row `r` of a thread reach, and the largest logit. The number is hidden if the row sees
// fewer keys, or if the keys that it sees are in fewer groups.
DEVICE float floor_of_row(const float (&logits)[EIGHTS][4], int r, float& largest) {
#if NETWORK
  // The largest of every four logits of a thread, and of these the largest ones, in order.
  constexpr bool pairs = PAIRS;
  constexpr int length = pairs ? SMALLER(SMALLER(8, TOP), EIGHTS) : OWN_GROUPS;
  float top[length];
  constexpr int groups = pairs ? EIGHTS : EIGHTS / 2;
  auto largest_of_group = [&](int i) {
    const int j = pairs ? i : 2 * i;
    const float x = fmaxf(logits[j][2 * r], logits[j][2 * r + 1]);
    return pairs ? x : fmaxf(x, fmaxf(logits[j + 1][2 * r], logits[j + 1][2 * r + 1]));
  };
  // Four groups at a time as long as there are so many, then one by one.
  constexpr int by_four = length == 4 ? groups / 4 * 4 : 0;
#pragma unroll
  for (int i = 0; i < length; i++) top[i] = HIDDEN;
#pragma unroll
  for (int i = 0; i < by_four; i += 4) {
    float four[4];
#pragma unroll
    for (int n = 0; n < 4; n++) four[n] = largest_of_group(i + n);
    put_in_order(four[0], four[1]);
    put_in_order(four[2], four[3]);
    put_in_order(four[0], four[2]);
    put_in_order(four[1], four[3]);
    put_in_order(four[1], four[2]);
#pragma unroll
    for (int n = 0; n < 4; n++) top[n] = i == 0 ? four[n] : fmaxf(top[n], four[3 - n]);
    if (i == 0) continue;
    // The four largest of both, first rising and then falling (or the other way round).
    put_in_order(top[0], top[2]);
    put_in_order(top[1], top[3]);
    put_in_order(top[0], top[1]);
    put_in_order(top[2], top[3]);
  }
#pragma unroll
  for (int i = by_four; i < groups; i++) {
    float x = largest_of_group(i);
#pragma unroll
    for (int n = 0; n < length; n++) put_in_order(top[n], x);
  }
  constexpr int merged = SMALLER(2 * length, TOP);
  float other[merged > length ? merged : length], both[merged];
#pragma unroll
  for (int i = 0; i < length; i++) other[i] = __shfl_xor_sync(WHOLE_WARP, top[i], 1);
  Union<length, length, merged>::write(top, other, both);
#pragma unroll
  for (int i = 0; i < merged; i++) other[i] = __shfl_xor_sync(WHOLE_WARP, both[i], 2);
  largest = fmaxf(both[0], other[0]);
  return rank_of_union<merged, merged, TOP>(both, other);
#else
  float low = -HIDDEN, high = HIDDEN;
#pragma unroll
  for (int j = 0; j < EIGHTS; j++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const float x = logits[j][2 * r + e];
      high = fmaxf(high, x);
      if (!IS_HIDDEN(x)) low = fminf(low, x);
    }
  low = smallest_of_quad(low);
  largest = high = largest_of_quad(high);
  // At least TOP logits reach `low` (or all that are seen), and fewer exceed `high`.
  bool searching = true;
  while (__any_sync(WHOLE_WARP, searching)) {
    const float middle = 0.5f * low + 0.5f * high;
    int reached = 0;
#pragma unroll
    for (int j = 0; j < EIGHTS; j++) reached += (logits[j][2 * r] >= middle) + (logits[j][2 * r + 1] >= middle);
    reached = sum_of_quad(reached);
    // (A middle that is no longer between the two ends the search; a NaN does, too.)
    searching = searching && middle > low && middle < high;
    if (searching) {
      if (reached >= TOP) low = middle;
      else high = middle;
      searching = reached != TOP;
    }
  }
  return low < -HIDDEN ? low : 0.f;  // 0: the row sees no key
#endif
}

// What `drop_largest` leaves behind.
struct Chosen {
  Marks dropped[2];
  // Logits are now in units of log2 and relative to this, which is the floor of the row.
  float reference[2];
  // Weights relative to that would overflow: another reference is needed.
  bool is_far;
};

// `logits` become relative to the floor, in units of log2; `scale` is that of the dot products in the same units.
// `lines` are the words of the two rows of the thread, `columns` the address of those of the keys, in the order of `mark_of_key`.
DEVICE void drop_largest(float (&logits)[EIGHTS][4], Chosen& chosen, float scale, const u32 (&lines)[2], u32 columns, u32 limit,
                         const bool (&inside)[2], int lane) {
  const u32 t = lane & 3;
  Marks candidates[2];
  int excess[2];
  u32 smallest[2], gone[2] = {0, 0};
  // The floor is a good reference unless some weight overflows, or all of the largest are dropped.
#if FLOAT16
  const float most = 14.f;
#else
  const float most = 60.f;
#endif
  chosen.is_far = false;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float largest, floor = floor_of_row(logits, r, largest);
#if MAY_HIDE_FLOOR
    if (__any_sync(WHOLE_WARP, IS_HIDDEN(floor))) {
      // All keys that the row sees are candidates.
      float low = -HIDDEN;
#pragma unroll
      for (int j = 0; j < EIGHTS; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
          if (!IS_HIDDEN(logits[j][2 * r + e])) low = fminf(low, logits[j][2 * r + e]);
      low = smallest_of_quad(low);
      if (IS_HIDDEN(floor)) floor = low < -HIDDEN ? low : 0.f;
    }
#endif
    const float scaled = floor * scale;
    // A little lower, so that the floor itself passes in spite of rounding. Step 3 takes out what passes as well.
    const float reference = scaled - fabsf(scaled) * 2.4e-7f;
    u32 negative[MARK_WORDS];
#pragma unroll
    for (int w = 0; w < MARK_WORDS; w++) negative[w] = 0;
#pragma unroll
    for (int j = 0; j < EIGHTS; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float y = fmaf(logits[j][2 * r + e], scale, -reference);
        logits[j][2 * r + e] = y;
        negative[j / 16] = __funnelshift_l(__float_as_uint(y), negative[j / 16], 1);
      }
#pragma unroll
    for (int w = 0; w < MARK_WORDS; w++) {
      const int filled = SMALLER(32, MARKS - 32 * w);
      candidates[r].word[w] = inside[r] ? ~negative[w] << (32 - filled) : 0;
    }
    excess[r] = sum_of_quad(candidates[r].count()) - TOP;
    smallest[r] = __float_as_uint(fmaf(floor, scale, -reference));
    chosen.is_far = chosen.is_far || (largest - floor) * scale > most;
    chosen.reference[r] = reference;
    chosen.dropped[r].clear();
  }
  // Draw the candidates, one of each word of marks at a time. Where there is none, a word before the right ones is read (there is
  // one before the first, too) and no mark is set: that takes fewer instructions than a condition.
  {
    Marks left[2] = {candidates[0], candidates[1]};
    u32 own = columns + 4 * t * MARKS;
    asm volatile("" : "+r"(own));  // outside the loop
    while (left[0].any() || left[1].any()) {
#pragma unroll
      for (int r = 0; r < 2; r++)
#pragma unroll
        for (int w = 0; w < MARK_WORDS; w++) {
          const u32 i = first_in(left[r].word[w]), mark = only_mark(i);
          const u32 word = lines[r] * load_word(own + 4 * i + 128 * w);
          left[r].word[w] &= ~mark;
          if (word <= limit) chosen.dropped[r].word[w] |= mark;
        }
    }
  }
  // Rows that have too many candidates, one of them drawn: take out the smallest; of equal ones those with the highest keys.
  const u32 quad = 0xfu << (lane & 28);
#pragma unroll
  for (int r = 0; r < 2; r++)
    if (!(__ballot_sync(WHOLE_WARP, chosen.dropped[r].any()) & quad)) excess[r] = 0;
  bool is_floor = true;  // the smallest candidate is the floor itself, if nothing slightly below it passed
  while (__any_sync(WHOLE_WARP, excess[0] > 0 || excess[1] > 0)) {
    Marks equal[2];
    int equals[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      equal[r].clear();
      equals[r] = 0;
      if (!__any_sync(WHOLE_WARP, excess[r] > 0)) continue;
      if (!is_floor) {
        // The smallest one that is not gone. Negative numbers have the top bit, so they are larger as unsigned ones.
        u32 x = 0x7fffffffu;
#pragma unroll
        for (int j = 0; j < EIGHTS; j++)
#pragma unroll
          for (int e = 0; e < 2; e++) x = min(x, __float_as_uint(logits[j][2 * r + e]) - gone[r]);
        smallest[r] = smallest_of_quad(x) + gone[r];
      }
#pragma unroll
      for (int j = 0; j < EIGHTS; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
          if (__float_as_uint(logits[j][2 * r + e]) <= smallest[r]) equal[r].add(2 * j + e);
      equal[r].keep_only(candidates[r]);
      equals[r] = sum_of_quad(equal[r].count());
    }
    if (is_floor) {
      is_floor = false;
      if (__any_sync(WHOLE_WARP, (excess[0] > 0 && equals[0] != 1) || (excess[1] > 0 && equals[1] != 1))) continue;
    }
    // Equal ones on both sides of the border: the lowest keys stay.
    while (__any_sync(WHOLE_WARP, (excess[0] > 0 && equals[0] > excess[0]) || (excess[1] > 0 && equals[1] > excess[1]))) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const u32 key = equal[r].any() ? key_of(equal[r].first(), t) : 0x7fffffffu;
        const u32 lowest = smallest_of_quad(key);
        if (excess[r] > 0 && equals[r] > excess[r]) {
          if (key == lowest && equal[r].any()) equal[r].remove_first();
          equals[r]--;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (excess[r] > 0) {
        chosen.dropped[r].remove(equal[r]);
        candidates[r].remove(equal[r]);
        excess[r] -= equals[r];
        gone[r] = smallest[r] + 1;
      }
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int drops = sum_of_quad(chosen.dropped[r].count());
    const bool zero_is_far = !HIDE && drops && -chosen.reference[r] > most;
#if CAUSAL || MASKED
    const int most_drops = TOP + excess[r];  // fewer than TOP if the row sees fewer keys
#else
    const int most_drops = TOP;
#endif
    chosen.is_far = chosen.is_far || (drops && drops >= most_drops) || zero_is_far;
  }
}
#endif
