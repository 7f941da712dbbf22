// The logits of a tile of 16 keys and 16 rows, and the gradients of their weights, become weights and gradients of logits.

// What a warp knows of its 16 keys. A thread has two of them.
struct OwnKeys {
  int tile;
  bool is_seen[2];
  bool hides;      // whether a row may not see some of them
  u32 columns[2];  // DRAWS_EVERY: their words
  bool is_drawn[2];  // COLUMNS: whether their draws drop them
  u32 limit;
  u32 dropout_columns[2], dropout_limit;  // DROPOUT: the same for weights
  float factor;                           // on weights that are kept
  bool is_special;  // whether a row may not see some of them, or (HIDE) keeps one key only
};

// Where a thread finds its part of the first row tile in shared memory. Found once for all tiles: they lie equally far apart.
struct FirstTile {
  u32 rows;   // what is known of its rows
  u32 notes;  // its byte of the bit map
  DEVICE_METHOD FirstTile(const Shared& at, int key_tile, int lane) {
    rows = at.rows + (lane & 3) * 16;
    notes = at.notes + key_tile * (ROW_TILES * 32) + lane;
  }
};

#if BAND
// What lies near the diagonal has logits that come from elsewhere, and so their gradients go there.
// Calls `change(h, e, place)` for each of a thread's elements of a tile; `place` is that in the band of the head `line`.
template <class Change>
DEVICE void in_band(const Arguments& a, int key_tile, int line, int first, int tile, int lane, Change change) {
  const int from = first + tile * 16 - key_tile * 16;  // distance of the first row from the first key
  if (from <= -16 || from >= 16 + RADIUS - 1) return;
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int row = tile * 16 + h * 8 + 2 * (lane & 3) + (e & 1), distance = from + row - tile * 16 - ((lane >> 2) + (e >> 1) * 8);
      if (distance >= 0 && distance < RADIUS && first + row < a.rows) change(h, e, ((i64)line * RADIUS + distance) * a.rows + first + row);
    }
}
#endif

#define NO_KEY 0xffffffffu  // of a row that keeps more than one key
// By what dropout multiplies the weights of two rows from `row` on.
DEVICE void factors_of_dropout(float (&after)[4], const Shared& at, const OwnKeys& own, int row) {
#if DROPOUT
  u32 lines[2];
  load_two_words(at.dropout_words + row * 4, lines[0], lines[1]);
#endif
#pragma unroll
  for (int e = 0; e < 4; e++) {
#if DROPOUT
    after[e] = lines[e & 1] * own.dropout_columns[e >> 1] <= own.dropout_limit ? 0.f : own.factor;
#else
    after[e] = 1.f;
#endif
  }
}

// `logits` and `d_weights` [half of 8 rows][4]: element e has key g + 8 * (e / 2) and row 2 t + e % 2. `line` is the number of the
// head over all samples, `first` the first row of the run.
DEVICE void weigh(const Arguments& a, float (&logits)[2][4], const float (&d_weights)[2][4], const Shared& at, const FirstTile& from,
                  const OwnKeys& own, int line, int first, int tile, int lane, u32 (&weights)[4], u32 (&gradients)[4]) {
  const int t = lane & 3, g = lane >> 2;
#if DROP == LARGEST
  const u32 bits = load_byte(from.notes + tile * 32);
  const bool any = __any_sync(WHOLE_WARP, bits != 0);
#endif
#if BAND
  in_band(a, own.tile, line, first, tile, lane, [&](int h, int e, i64 place) {
    if (own.is_seen[e >> 1]) logits[h][e] = a.band[place];
  });
#endif
  float s[2][4], d_s[2][4];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = tile * 16 + h * 8 + 2 * t;  // the first of two
    const Four known = load_16(from.rows + tile * 128 + h * 64);
    const float lse[2] = {__uint_as_float(known.x), __uint_as_float(known.z)};
    const float delta[2] = {__uint_as_float(known.y), __uint_as_float(known.w)};
#if DRAWS_EVERY
    u32 lines[2];
    load_two_words(at.words + row * 4, lines[0], lines[1]);
#endif
#if SHARE
    u32 kept[2] = {NO_KEY, NO_KEY}, shares[2];
    if (own.is_special) load_two_words(at.kept + row * 4, kept[0], kept[1]);
    load_two_words(at.share + row * 4, shares[0], shares[1]);
#endif
    float after[4];  // by what dropout multiplies a weight
    factors_of_dropout(after, at, own, row);
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const float weight = power_of_two(fmaf(logits[h][e], a.log2_scale, -lse[e & 1]));
      const float d_weight = d_weights[h][e] * after[e];
#if DROP == EVERY
#if COLUMNS
      bool is_dropped = own.is_drawn[e >> 1];
#else
      bool is_dropped = lines[e & 1] * own.columns[e >> 1] <= own.limit;
#endif
#endif
#if SHARE
      if (own.is_special && kept[e & 1] != NO_KEY) is_dropped = kept[e & 1] != (u32)(own.tile * 16 + g + (e >> 1) * 8);
      s[h][e] = is_dropped ? 0.f : weight * __uint_as_float(shares[e & 1]);
      d_s[h][e] = fmaf(s[h][e], d_weight, -weight * delta[e & 1]);
#elif DROP == EVERY && HIDE
      s[h][e] = is_dropped ? 0.f : weight;
      d_s[h][e] = s[h][e] * (d_weight - delta[e & 1]);
#elif DROP == EVERY
      s[h][e] = is_dropped ? power_of_two(-lse[e & 1]) : weight;
      d_s[h][e] = is_dropped ? 0.f : weight * (d_weight - delta[e & 1]);
#else
      s[h][e] = weight;
      d_s[h][e] = weight * (d_weight - delta[e & 1]);
#endif
#if DROPOUT
      s[h][e] *= after[e];
#endif
    }
  }
#if DROP == LARGEST
  if (any) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = tile * 16 + h * 8 + 2 * t;
      // Once more: registers are scarce.
      const Four known = HIDE ? Four{0, 0, 0, 0} : load_16(from.rows + tile * 128 + h * 64);
      float after[4];
      factors_of_dropout(after, at, own, row);
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (bits & (1u << (h * 4 + e))) {
          s[h][e] = HIDE ? 0.f : power_of_two(-__uint_as_float(e & 1 ? known.z : known.x)) * after[e];
          d_s[h][e] = 0.f;
        }
    }
  }
#endif
  if (own.is_special) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = tile * 16 + h * 8 + 2 * t;
#if HIDE && !SHARE
      // The weight of the one key that a row keeps is 1, without a gradient.
      u32 kept[2];
      float after[4];
      load_two_words(at.kept + row * 4, kept[0], kept[1]);
      factors_of_dropout(after, at, own, row);
#endif
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int key = own.tile * 16 + g + (e >> 1) * 8;
#if HIDE && !SHARE
        if (kept[e & 1] != NO_KEY) {
          s[h][e] = kept[e & 1] == (u32)key ? after[e] : 0.f;
          d_s[h][e] = 0.f;
        }
#endif
        // The weights of keys that a row does not see could be anything here, even infinite.
        bool hidden = MASKED ? !own.is_seen[e >> 1] : key >= a.keys;
#if CAUSAL
        hidden = hidden || key > first + row + (e & 1);
#endif
        if (hidden) s[h][e] = d_s[h][e] = 0.f;
      }
    }
  }
#if BAND
  in_band(a, own.tile, line, first, tile, lane, [&](int h, int e, i64 place) {
    if (own.tile * 16 + g + (e >> 1) * 8 < a.keys) a.d_band[place] = d_s[h][e];
    d_s[h][e] = 0.f;
  });
#endif
#pragma unroll
  for (int h = 0; h < 2; h++) {
    weights[2 * h] = packed(s[h][0], s[h][1]);
    weights[2 * h + 1] = packed(s[h][2], s[h][3]);
    gradients[2 * h] = packed(d_s[h][0], d_s[h][1]);
    gradients[2 * h + 1] = packed(d_s[h][2], d_s[h][3]);
  }
}

// What does not change from unit to unit.
DEVICE OwnKeys own_keys(const Arguments& a, const Keys& draws, int tile, int lane) {
  OwnKeys own;
  own.tile = tile;
  own.hides = CAUSAL || MASKED || (tile + 1) * 16 > a.keys;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int key = tile * 16 + (lane >> 2) + 8 * h;
    own.is_seen[h] = key < a.keys;
#if DRAWS_EVERY
    own.columns[h] = column_word(draws.drop, SHARE ? key - key % a.span : key);
#endif
#if DROPOUT
    own.dropout_columns[h] = column_word(draws.dropout, key);
#endif
  }
#if DRAWS_EVERY
  own.limit = limit_of(gated(a.rate, a.gate));
#endif
#if DROPOUT
  const float rate = gated(a.dropout_rate, a.dropout_gate);
  own.dropout_limit = limit_of(rate);
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
// The draws of whole columns of a head.
DEVICE void draw_columns(const Arguments& a, OwnKeys& own, Key key, int line, int lane) {
#if COLUMNS
  const float rate = gated(a.rate, a.gate);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int at = own.tile * 16 + (lane >> 2) + 8 * h;
    own.is_drawn[h] = vector_uniform(key, (u32)line * (u32)a.keys + (at - at % a.span)) < rate;
  }
#endif
}
