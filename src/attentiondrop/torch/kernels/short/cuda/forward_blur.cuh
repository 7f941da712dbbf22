// Blur in the forward: keys come into a stage as they are, and are blurred there.
//
// A tile needs keys of the tiles beside it, so it may be stored only when those are found.
DEVICE Band band_of(const Arguments& a, int local, int lane) {
  const Unit unit(blockIdx.x + local * gridDim.x, a.key_heads, a.by_heads);
  return Band(weights_of({a.seed, a.blur_gate, a.sigma_min, a.sigma_span, a.blur_stream, a.per_sigma}, unit.batch, unit.head, lane), lane);
}

// A bit for each of the 32 rows around a tile. `seen`: a word of bits for each tile.
DEVICE u32 keys_around(const Arguments& a, u32 seen, int tile, int lane) {
#if MASKED
  return rows_around(tile, a.keys, lane, [&](int key) { return (load_word(seen + (key >> 4) * 4) >> (key & 15) & 1) != 0; });
#else
  return rows_around(tile, a.keys, lane, [](int) { return true; });
#endif
}

// Wait for the keys that this warp has sent for.
DEVICE void wait_for_keys(u32 stage, int lane) {
  wait_for_ended_copies();
  __syncwarp();
#if MASKED
#pragma unroll 1
  for (int tile = 0; tile < KEY_TILES; tile++) clear_hidden(stage, tile, load_word(stage + 2 * KEY_BYTES + tile * 4), lane);
  __syncwarp();
#endif
}

// One warp blurs the keys of the unit that it has sent for.
DEVICE void blur_alone(const Arguments& a, u32 stage, int local, int lane) {
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
  const u32 seen = stage + 2 * KEY_BYTES;
  const Band band = band_of(a, local, lane);
  wait_for_keys(stage, lane);
  RoundedTile before = {};  // (Without a value, it would take registers all the time.)
#pragma unroll 1
  for (int tile = 0; tile < KEY_TILES; tile++) {
    RoundedTile next;
    next.blur(band, stage, tile, keys_around(a, seen, tile, lane), lane);
    __syncwarp();
    if (tile > 0) before.store(stage, tile - 1, lane);
    before = next;
  }
  __syncwarp();
  before.store(stage, KEY_TILES - 1, lane);
}

// Bring the first units. No warp has anything to do before the very first one is there, so all of them blur it.
DEVICE void bring_first(const Arguments& a, u32 stages, u32 held, u32 ready, int units, int warp, int lane) {
  for (int local = warp; local < STAGES && local < units; local += WARPS) send_for(a, stages + local * STAGE_BYTES, held + 4 * local, ready + 8 * local, local, lane);
  const Band band = band_of(a, 0, lane);
  if (warp == 0) wait_for_keys(stages, lane);
  __syncthreads();
  constexpr int rounds = (KEY_TILES + WARPS - 1) / WARPS;
  RoundedTile found[rounds];
#pragma unroll
  for (int i = 0; i < rounds; i++) {
    const int tile = warp + i * WARPS;
    if (tile < KEY_TILES) found[i].blur(band, stages, tile, keys_around(a, stages + 2 * KEY_BYTES, tile, lane), lane);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < rounds; i++) {
    const int tile = warp + i * WARPS;
    if (tile < KEY_TILES) found[i].store(stages, tile, lane);
  }
  __syncthreads();
  if (warp == 0) arrive(ready);
  for (int local = warp > 0 ? warp : WARPS; local < STAGES && local < units; local += WARPS) {
    blur_alone(a, stages + local * STAGE_BYTES, local, lane);
    arrive(ready + 8 * local);
  }
}
