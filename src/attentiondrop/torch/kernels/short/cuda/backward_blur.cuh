// Blur in the backward: of the keys on their way in, and of their gradient on its way out.
#if RADIUS > 0
// The weights of a unit's blur are found once, by the last warp, and noted for all others: 8 bytes for each lane.
DEVICE void note_weights(const Arguments& a, const Shared& at, int unit, int warp, int lane) {
  if (warp != (int)(blockDim.x >> 5) - 1) return;
  const Unit own(unit, a.key_heads, a.by_heads);
  const Weights weights = weights_of({a.seed, a.blur_gate, a.sigma_min, a.sigma_span, a.blur_stream, a.per_sigma}, own.batch, own.head, lane);
  store_word(at.weights + 8 * lane, weights.high);
  store_word(at.weights + 8 * lane + 4, weights.low);
}
// The same for the next unit, if it may have other weights.
DEVICE void note_next_weights(const Arguments& a, const Shared& at, int unit, int warp, int lane) {
  if ((i64)a.per_sigma * a.key_heads < a.units) note_weights(a, at, unit, warp, lane);
}
DEVICE Band noted_band(const Shared& at, int lane) {
  Weights own;
  load_two_words(at.weights + 8 * lane, own.high, own.low);
  return Band(own, lane);
}

// A bit for each of the 32 rows around a tile of the unit's keys.
DEVICE u32 keys_around(const Arguments& a, int unit, int tile, int lane) {
#if MASKED
  const Unit own(unit, a.key_heads, a.by_heads);
  const u8* visible = a.visible + own.batch * a.of_visible.batch + own.head * a.of_visible.head;
  return rows_around(tile, a.keys, lane, [&](int key) { return visible[key * a.of_visible.row] != 0; });
#else
  return rows_around(tile, a.keys, lane, [](int) { return true; });
#endif
}

// Clear what is hidden of the 16 keys that this warp has brought.
DEVICE void clear_hidden_of(const Arguments& a, u32 keys, int unit, int warp, int lane) {
#if MASKED
  if (warp < KEY_TILES) clear_hidden(keys, warp, keys_around(a, unit, warp, lane) >> 8 & 0xffffu, lane);
#endif
}
// The same where the next unit waits, once its copies are there.
DEVICE void clear_hidden_waiting(const Arguments& a, const Shared& at, int unit, int warp, int lane) {
  if (WAITING) clear_hidden_of(a, at.waiting, unit, warp, lane);
}

// The keys of a unit become blurred: from where they wait, or (from registers) in their place. All warps of the block call this.
DEVICE void bring_blurred_keys(const Arguments& a, const Shared& at, const Fetched& fetched, int unit, int warp, int lane) {
  RoundedTile tile;
#if WAITING
  if (warp < KEY_TILES) {
    tile.blur(noted_band(at, lane), at.waiting, warp, keys_around(a, unit, warp, lane), lane);
    tile.store(at.keys, warp, lane);
  } else if (warp < LOADED_TILES) {
    store_keys(at, fetched, warp, lane);
  }
#else
  if (warp < LOADED_TILES) {
    store_keys(at, fetched, warp, lane);
    clear_hidden_of(a, at.keys, unit, warp, lane);
  }
  __syncthreads();
  if (warp < KEY_TILES) tile.blur(noted_band(at, lane), at.keys, warp, keys_around(a, unit, warp, lane), lane);
  __syncthreads();
  if (warp < KEY_TILES) tile.store(at.keys, warp, lane);
#endif
}

// The gradient of a tile of blurred keys, rounded. (Renormalised rows are divided before the transposed blur.)
DEVICE void round_gradient(RoundedTile& tile, const Arguments& a, const Shared& at, const float (&d_k)[2 * STEPS][4], int unit, int warp, int lane) {
  float one = a.scale, two = a.scale;
#if RENORMALIZE
  const RowFactors factors(noted_band(at, lane), warp, keys_around(a, unit, warp, lane), lane);
  one *= factors.one;
  two *= factors.two;
#endif
  tile.round(d_k, one, two);
}

// From the gradient of the blurred keys to that of the keys, through the memory of the keys, which are not needed any more. (The
// gradient of a hidden key is 0, and so is that of a row behind the last key.) `has_tile`: this warp holds the gradient of key tile
// `warp`. All warps of the block call this, and wait for each other once more before the next keys come.
DEVICE void blur_gradient(const Arguments& a, const Shared& at, const RoundedTile& gradient, int unit, bool has_tile, int warp, int lane) {
  has_tile = has_tile && warp < KEY_TILES;
  __syncthreads();
  const Band band = noted_band(at, lane);  // here, because behind the next barrier those of the next unit may be noted
  if (has_tile) gradient.store(at.keys, warp, lane);
  __syncthreads();
  if (has_tile) {
    float sums[2 * STEPS][4];
    blur_tile(sums, band, at.keys, warp, keys_around(a, unit, warp, lane), lane);
    const Unit own(unit, a.key_heads, a.by_heads);
    write_rows(a.d_k + own.batch * a.of_d_k.batch + own.head * a.of_d_k.head, a.of_d_k.row, warp * 16, a.keys, sums, 1.f, 1.f, lane);
  }
}
#endif
