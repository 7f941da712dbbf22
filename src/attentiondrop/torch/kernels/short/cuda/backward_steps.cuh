// What both backward kernels share: their arguments, the steps of a unit, and what each warp brings for the next step.
//
// A step is one head of the queries of a unit (see `forward.cu`) and a run of ROW_TILES tiles of its rows. Warp w looks after key
// tile w of the unit and row tile w of the run. The next step's queries and gradients, and the next unit's values, travel into
// shared memory. Outputs wait in registers. So do the next unit's keys, because the keys are still needed, unless there is shared
// memory for them to wait in (WAITING).
#ifndef WAITING
#define WAITING 0
#endif
struct Arguments {
  const u16 *grad, *q, *k, *v, *output;
  const float* lse;
  const u32* dropped;
  const int* kept;
  const float *share, *band;
  float* d_band;  // BAND: the gradients of its logits, after their scale
  const i64* seed;
  const float *gate, *dropout_gate;
  const u8* visible;
  const float* blur_gate;
  u16 *d_q, *d_k, *d_v;
  Strides of_grad, of_q, of_k, of_v, of_output, of_d_q, of_d_k, of_d_v;
  MaskStrides of_visible;
  float scale, log2_scale, rate, dropout_rate, sigma_min, sigma_span;  // log2_scale: of logits in units of log2
  int units, key_heads, group, rows, keys, stream, dropout_stream, blur_stream, per_sigma, span;
  Divisor by_heads;
};

#define RUN (16 * ROW_TILES)
#define DRAWS_EVERY (DROP == EVERY && !COLUMNS)

// The keys of the streams of draws.
struct Keys {
  Key drop, dropout;
  DEVICE_METHOD Keys(const Arguments& a) : drop{0, 0}, dropout{0, 0} {
#if DROP == EVERY
    drop = stream_key(*a.seed, a.stream);
#endif
#if DROPOUT
    dropout = stream_key(*a.seed, a.dropout_stream);
#endif
  }
};

struct Step {
  int batch, head, first, tiles;  // sample, head of the queries, first row, row tiles
  int key_head;
  DEVICE_METHOD Step(const Arguments& a, int unit, int step, int runs) {
    const int member = ONE_STEP ? 0 : step / runs, run = ONE_STEP ? 0 : step - member * runs;
    const Unit found(unit, a.key_heads, a.by_heads);
    batch = found.batch;
    key_head = found.head;
    head = key_head * a.group + member;
    first = run * RUN;
    tiles = min(ROW_TILES, (a.rows - first + 15) / 16);
  }
  // The number of the head over all samples.
  DEVICE_METHOD u32 line(const Arguments& a) const { return batch * a.key_heads * a.group + head; }
};

// The pieces of 16 bytes of a 16-row tile that a lane moves: all of one column.
#define ROWS_AT_ONCE (32 / CHUNKS)
DEVICE int piece_row(int i, int lane) { return i * ROWS_AT_ONCE + lane / CHUNKS; }
DEVICE int piece_column(int i, int lane) { return lane % CHUNKS * 8; }
DEVICE u32 piece_at(int i, int lane) { return piece_of_row(piece_row(i, lane), piece_column(i, lane) / 8); }

// A tile of rows; rows beyond the end become zeros.
DEVICE void copy_tile(u32 to, const u16* from, Stride stride, int rows, int lane) {
  from += piece_row(0, lane) * stride + piece_column(0, lane);
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    copy_16_or_zeros(to + piece_at(i, lane), from, piece_row(i, lane) < rows);
    from += ROWS_AT_ONCE * stride;
  }
}
DEVICE void read_tile(Four (&to)[STEPS], const u16* from, Stride stride, int rows, int lane) {
  from += piece_row(0, lane) * stride + piece_column(0, lane);
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    to[i] = {0, 0, 0, 0};
    if (piece_row(i, lane) < rows) {
      const uint4 x = *(const uint4*)from;
      to[i] = {x.x, x.y, x.z, x.w};
    }
    from += ROWS_AT_ONCE * stride;
  }
}

// Where things lie in shared memory.
struct Shared {
  u32 queries, grads, keys, values;
  u32 rows;   // of each row: log-sum-exp, delta
  u32 words;  // DRAWS_EVERY: of each row
  u32 dropout_words;  // DROPOUT: of each row
  u32 kept;   // HIDE: of each row
  u32 share;  // SHARE: of each row
  u32 notes;  // LARGEST: bit maps [key tile][row tile]
  u32 weights;  // RADIUS: of the blur
  u32 waiting;  // WAITING: the keys of the next unit

  // The keys that waited are those of the unit now, and the next ones may wait where the last ones were.
  DEVICE_METHOD void take_turns() {
    const u32 last = keys;
    keys = waiting;
    waiting = last;
  }
  // Place what is known of rows from `start` on; returns the end.
  DEVICE_METHOD u32 place_rows(u32 start) {
    rows = start;
    words = rows + RUN * 8;
    dropout_words = words + (DRAWS_EVERY ? RUN * 4 : 0);
    kept = dropout_words + (DROPOUT ? RUN * 4 : 0);
    share = kept + (HIDE ? RUN * 4 : 0);
    notes = share + (SHARE ? RUN * 4 : 0);
    weights = notes + (DROP == LARGEST ? KEY_TILES * ROW_TILES * 32 : 0);
    return weights + (RADIUS > 0 ? 256 : 0);
  }
};

// What waits in registers.
struct Fetched {
  Four output[STEPS];
#if !WAITING
  Four keys[STEPS];
#endif
  float lse;
};

// Start copies of what may be overwritten now.
DEVICE void start_copies(const Arguments& a, const Shared& at, int unit, int step, int runs, int row_tiles, int warp, int lane) {
  const Step s(a, unit, step, runs);
  if (warp < ROW_TILES) {
    const int first = s.first + warp * 16, rows = a.rows - first;
    copy_tile(at.queries + warp * TILE, a.q + s.batch * a.of_q.batch + s.head * a.of_q.head + first * a.of_q.row, a.of_q.row, rows, lane);
    copy_tile(at.grads + warp * TILE, a.grad + s.batch * a.of_grad.batch + s.head * a.of_grad.head + first * a.of_grad.row, a.of_grad.row, rows, lane);
  }
  if ((ONE_STEP || step == 0) && warp < LOADED_TILES) {
    copy_tile(at.values + warp * TILE, a.v + s.batch * a.of_v.batch + s.key_head * a.of_v.head + warp * 16 * a.of_v.row, a.of_v.row, a.keys - warp * 16, lane);
#if WAITING
    copy_tile(at.waiting + warp * TILE, a.k + s.batch * a.of_k.batch + s.key_head * a.of_k.head + warp * 16 * a.of_k.row, a.of_k.row, a.keys - warp * 16, lane);
#endif
  }
#if DROP == LARGEST
  if (warp < KEY_TILES) {
    // Two pieces of 16 bytes for each row tile.
    static_assert(2 * ROW_TILES <= 32, "each lane copies one piece");
    const u32 tile = s.line(a) * row_tiles + s.first / 16 + lane / 2;
    const u32* from = a.dropped + (u64)tile * (KEY_TILES * 8) + warp * 8 + (lane & 1) * 4;
    if (lane < 2 * s.tiles) copy_16(at.notes + (warp * ROW_TILES + lane / 2) * 32 + (lane & 1) * 16, from);
  }
#endif
}

// A tile of rows comes into the L2 cache. Lanes ask for each 32 bytes, in case a request brings no more than that.
DEVICE void send_for_tile(const u16* from, Stride stride, int rows, int lane) {
  constexpr int rows_at_once = 32 / STEPS;
  int row = lane / STEPS;
  from += row * stride + lane % STEPS * 16;
#pragma unroll
  for (int i = 0; i < 16 / rows_at_once; i++) {
    if (row < rows) prefetch(from);
    from += rows_at_once * stride;
    row += rows_at_once;
  }
}
// All that the next step will copy and read of row tile and key tile `tile` comes nearer while the warps work on this one.
// Otherwise memory would rest now, and all would wait for it later.
DEVICE void send_for_next(const Arguments& a, int unit, int step, int steps, int runs, int row_tiles, int tile, int lane) {
  const bool is_last = ONE_STEP || step + 1 == steps;
  if (is_last) unit += gridDim.x;
  step = is_last ? 0 : step + 1;
  if (unit >= a.units) return;
  const Step s(a, unit, step, runs);
  if (tile < s.tiles) {
    const int first = s.first + tile * 16, rows = a.rows - first;
    auto send_for = [&](const u16* from, Strides of) {
      send_for_tile(from + s.batch * of.batch + s.head * of.head + first * of.row, of.row, rows, lane);
    };
    send_for(a.q, a.of_q);
    send_for(a.grad, a.of_grad);
    send_for(a.output, a.of_output);
    if (lane < 16 && lane < rows) prefetch(a.lse + s.line(a) * a.rows + first + lane);
#if DROP == LARGEST
    if (lane < KEY_TILES) prefetch(a.dropped + ((u64)(s.line(a) * row_tiles + first / 16) * KEY_TILES + lane) * 8);
#endif
  }
  if ((ONE_STEP || step == 0) && tile < KEY_TILES) {
    const int first = tile * 16, rows = a.keys - first;
    auto send_for = [&](const u16* from, Strides of) {
      send_for_tile(from + s.batch * of.batch + s.key_head * of.head + first * of.row, of.row, rows, lane);
    };
    send_for(a.k, a.of_k);
    send_for(a.v, a.of_v);
  }
}

// The rows that `read_rest` will read come nearer.
DEVICE void send_for_rest(const Arguments& a, int unit, int step, int runs, int warp, int lane) {
  const Step s(a, unit, step, runs);
  const int row = warp * 16 + (lane & 15);
  if (lane < 16) {
    if (warp < ROW_TILES && s.first + row < a.rows) prefetch(a.output + s.batch * a.of_output.batch + s.head * a.of_output.head + (s.first + row) * a.of_output.row);
  } else if (!WAITING && (ONE_STEP || step == 0) && row < a.keys) {
    prefetch(a.k + s.batch * a.of_k.batch + s.key_head * a.of_k.head + row * a.of_k.row);
  }
}

// Read the rest into registers.
DEVICE void read_rest(const Arguments& a, const Shared& at, Fetched& fetched, const Keys& draws, int unit, int step, int runs, int warp, int lane) {
  const Step s(a, unit, step, runs);
  if (warp < ROW_TILES) {
    const int first = s.first + warp * 16, rows = a.rows - first, row = lane & 15;
    read_tile(fetched.output, a.output + s.batch * a.of_output.batch + s.head * a.of_output.head + first * a.of_output.row, a.of_output.row, rows, lane);
    const u32 line = s.line(a) * a.rows + first + row;
    fetched.lse = row < rows ? a.lse[line] : BLIND;
#if DRAWS_EVERY
    if (lane < 16) store_word(at.words + (warp * 16 + row) * 4, line_word(draws.drop, (u32)line));
#endif
#if DROPOUT
    if (lane < 16) store_word(at.dropout_words + (warp * 16 + row) * 4, line_word(draws.dropout, (u32)line));
#endif
#if SHARE
    if (lane < 16) store_float(at.share + (warp * 16 + row) * 4, row < rows ? a.share[line] : 0.f);
#endif
#if HIDE
    if (lane < 16) store_word(at.kept + (warp * 16 + row) * 4, row < rows ? (u32)a.kept[line] : 0xffffffffu);
#endif
  }
#if !WAITING
  if ((ONE_STEP || step == 0) && warp < LOADED_TILES) {
    read_tile(fetched.keys, a.k + s.batch * a.of_k.batch + s.key_head * a.of_k.head + warp * 16 * a.of_k.row, a.of_k.row, a.keys - warp * 16, lane);
  }
#endif
}

// Wait for the copies, and note the log-sum-exp and delta of each row: delta is the sum of gradient times output. Returns whether
// a row of this lane keeps one key only (HIDE).
DEVICE bool note_rows(const Shared& at, const Fetched& fetched, int warp, int lane) {
  wait_for_copies();
  __syncwarp();
  if (warp < ROW_TILES) {
    if (lane < 16) store_float(at.rows + (warp * 16 + lane) * 8, fetched.lse);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      const Four x = fetched.output[i], y = load_16(at.grads + warp * TILE + piece_at(i, lane));
      const u32 xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
      float sum = 0.f;
#pragma unroll
      for (int e = 0; e < 4; e++) sum = fmaf(high_of(xs[e]), high_of(ys[e]), fmaf(low_of(xs[e]), low_of(ys[e]), sum));
#pragma unroll
      for (int far = 1; far < CHUNKS; far *= 2) sum += __shfl_xor_sync(WHOLE_WARP, sum, far);
      if (piece_column(i, lane) == 0) store_float(at.rows + (warp * 16 + piece_row(i, lane)) * 8 + 4, sum);
    }
#if HIDE
    return load_word(at.kept + (warp * 16 + (lane & 15)) * 4) != 0xffffffffu;
#endif
  }
  return false;
}
// All warps have noted their rows. Returns whether one of these keeps one key only: hardly ever, so that tiles need not ask.
DEVICE bool wait_for_rows(bool is_one_of_mine) {
#if HIDE
  return __syncthreads_or(is_one_of_mine);
#else
  __syncthreads();
  return false;
#endif
}
DEVICE void store_keys(const Shared& at, const Fetched& fetched, int warp, int lane) {
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
#if WAITING
    const Four x = load_16(at.waiting + warp * TILE + piece_at(i, lane));
#else
    const Four x = fetched.keys[i];
#endif
    store_16(at.keys + warp * TILE + piece_at(i, lane), x);
  }
}
