// The logits of a tile of 16 keys and 16 rows, and the gradients of their weights, become weights and gradients of logits.

// What a warp knows of its 16 keys. A thread has two of them.
struct OwnKeys {
  int tile;
  bool is_seen[2];
  bool hides;      // whether a row may not see some of them
  u32 columns[2];  // DRAWS_EVERY: their words
  u32 limit;
  float factor;    // WEIGHTS: on what is kept
};

// `logits` and `d_weights` [half of 8 rows][4]: element e has key g + 8 * (e / 2) and row 2 t + e % 2. `first` is the first row of the run.
DEVICE void weigh(const Arguments& a, const float (&logits)[2][4], const float (&d_weights)[2][4], const Shared& at, const OwnKeys& own, int first, int tile, int lane,
                  u32 (&weights)[4], u32 (&gradients)[4]) {
  const int t = lane & 3, g = lane >> 2;
#if DROP == LARGEST
  const u32 bits = load_byte(at.notes + (own.tile * ROW_TILES + tile) * 32 + lane);
  const bool any = __any_sync(WHOLE_WARP, bits != 0);
#endif
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float s[4], d_s[4];
    const Four known = load_16(at.rows + (tile * 16 + h * 8 + 2 * t) * 8);
    const float lse[2] = {__uint_as_float(known.x), __uint_as_float(known.z)};
    const float delta[2] = {__uint_as_float(known.y), __uint_as_float(known.w)};
#if DRAWS_EVERY
    u32 lines[2];
    load_two_words(at.words + (tile * 16 + h * 8 + 2 * t) * 4, lines[0], lines[1]);
#endif
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const float weight = power_of_two(fmaf(logits[h][e], a.log2_scale, -lse[e & 1]));
#if DRAWS_EVERY
      const bool is_dropped = lines[e & 1] * own.columns[e >> 1] <= own.limit;
#endif
#if DROP == WEIGHTS
      const float factor = is_dropped ? 0.f : own.factor;
      s[e] = weight * factor;
      d_s[e] = weight * fmaf(d_weights[h][e], factor, -delta[e & 1]);
#elif DROP == EVERY && HIDE
      s[e] = is_dropped ? 0.f : weight;
      d_s[e] = s[e] * (d_weights[h][e] - delta[e & 1]);
#elif DROP == EVERY
      s[e] = is_dropped ? power_of_two(-lse[e & 1]) : weight;
      d_s[e] = is_dropped ? 0.f : weight * (d_weights[h][e] - delta[e & 1]);
#else
      s[e] = weight;
      d_s[e] = weight * (d_weights[h][e] - delta[e & 1]);
#endif
    }
#if DROP == LARGEST
    if (any) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (bits & (1u << (h * 4 + e))) {
          s[e] = HIDE ? 0.f : power_of_two(-lse[e & 1]);
          d_s[e] = 0.f;
        }
    }
#endif
#if HIDE
    // A row that would have lost everything has one key, with weight 1 and no gradient.
    u32 kept[2];
    load_two_words(at.kept + (tile * 16 + h * 8 + 2 * t) * 4, kept[0], kept[1]);
    if (__any_sync(WHOLE_WARP, (kept[0] & kept[1]) != 0xffffffffu)) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (kept[e & 1] != 0xffffffffu) {
          s[e] = kept[e & 1] == (u32)(own.tile * 16 + g + (e >> 1) * 8) ? 1.f : 0.f;
          d_s[e] = 0.f;
        }
    }
#endif
    // The weights of keys that a row does not see could be anything here, even infinite.
    if (own.hides) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        bool hidden = !own.is_seen[e >> 1];
#if CAUSAL
        hidden = hidden || own.tile * 16 + g + (e >> 1) * 8 > first + tile * 16 + h * 8 + 2 * t + (e & 1);
#endif
        if (hidden) s[e] = d_s[e] = 0.f;
      }
    }
    weights[2 * h] = packed(s[0], s[1]);
    weights[2 * h + 1] = packed(s[2], s[3]);
    gradients[2 * h] = packed(d_s[0], d_s[1]);
    gradients[2 * h + 1] = packed(d_s[2], d_s[3]);
  }
}

// What does not change from unit to unit.
DEVICE OwnKeys own_keys(const Arguments& a, Key key, int tile, int lane) {
  OwnKeys own;
  own.tile = tile;
  own.hides = CAUSAL || MASKED || (tile + 1) * 16 > a.keys;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    own.is_seen[h] = tile * 16 + (lane >> 2) + 8 * h < a.keys;
#if DRAWS_EVERY
    own.columns[h] = column_word(key, tile * 16 + (lane >> 2) + 8 * h);
#endif
  }
#if DRAWS_EVERY
  const float rate = a.gate ? a.rate * *a.gate : a.rate;
  own.limit = limit_of(rate);
  own.factor = factor_of(rate);
#endif
  return own;
}
// What does.
DEVICE void look_at_mask(const Arguments& a, OwnKeys& own, int unit, int lane) {
#if MASKED
  const Unit where(unit, a.key_heads, a.by_heads);
  const u8* visible = a.visible + where.batch * a.of_visible.batch + where.head * a.of_visible.head;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int key = own.tile * 16 + (lane >> 2) + 8 * h;
    own.is_seen[h] = key < a.keys && visible[key * a.of_visible.row] != 0;
  }
#endif
}
