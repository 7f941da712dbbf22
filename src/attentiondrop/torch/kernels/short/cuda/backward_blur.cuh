// Blur in the backward: of the keys on their way in, and of their gradient on its way out.
#if RADIUS > 0
// The 16 rows of a key tile after the blur (or its transpose), read from all keys of the unit at `from`.
struct BlurredTile {
  Four piece[STEPS];

  DEVICE_METHOD BlurredTile(const Arguments& a, u32 from, int unit, bool transposed, int tile, int lane) {
    const int batch = unit / a.key_heads, head = unit % a.key_heads;
    const Gaussian gaussian({a.seed, a.blur_gate, a.sigma_min, a.sigma_span, a.blur_stream, a.sampling}, batch, head);
    const u8* visible = a.visible + batch * a.of_visible.batch + head * a.of_visible.head;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      const int j = tile * 16 + piece_row(i, lane);
      float sum[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
#pragma unroll
      for (int d = -RADIUS; d <= RADIUS; d++) {
        const int k = j + d;
        if (k < 0 || k >= a.keys) continue;
        float weight = gaussian.weight[d < 0 ? -d : d];
        // A hidden key counts as zeros, and gets no gradient.
        if (!is_visible(a, visible, transposed ? j : k)) weight = 0.f;
        if (RENORMALIZE) weight *= share(a, visible, gaussian, transposed ? k : j);
        add_row(sum, load_16(from + piece_of_row(k, piece_column(i, lane) / 8)), weight);
      }
      piece[i] = rounded(sum);
    }
  }
  DEVICE_METHOD static bool is_visible(const Arguments& a, const u8* visible, int key) { return !MASKED || visible[key * a.of_visible.row] != 0; }
  // One over what the kernel of a key weighs on keys that are there.
  DEVICE_METHOD static float share(const Arguments& a, const u8* visible, const Gaussian& gaussian, int key) {
    float sum = 0.f;
#pragma unroll
    for (int d = -RADIUS; d <= RADIUS; d++)
      if (key + d >= 0 && key + d < a.keys && is_visible(a, visible, key + d)) sum += gaussian.weight[d < 0 ? -d : d];
    return sum > 0.f ? 1.f / sum : 0.f;
  }
};

// Each warp has written its own keys; all of them become blurred. All warps of the block call this.
DEVICE void blur_keys(const Arguments& a, u32 keys, int unit, int warp, int lane) {
  __syncthreads();
  if (warp < KEY_TILES) {
    const BlurredTile blurred(a, keys, unit, false, warp, lane);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < STEPS; i++)
      if (warp * 16 + piece_row(i, lane) < a.keys) store_16(keys + warp * TILE + piece_at(i, lane), blurred.piece[i]);
  } else {
    __syncthreads();
  }
}

// From the gradient of the blurred keys to that of the keys, through the memory of the keys, which are not needed any more.
// `has_tile`: this warp holds the gradient of key tile `warp`. All warps of the block call this.
DEVICE void blur_gradient(const Arguments& a, const float (&d_k)[2 * STEPS][4], u32 keys, int unit, bool has_tile, int warp, int lane) {
  __syncthreads();
  if (has_tile) {
    const int row = warp * 16 + (lane >> 2);
#pragma unroll
    for (int n = 0; n < 2 * STEPS; n++) {
      store_word(keys + piece_of_row(row, n) + (lane & 3) * 4, packed(d_k[n][0] * a.scale, d_k[n][1] * a.scale));
      store_word(keys + piece_of_row(row + 8, n) + (lane & 3) * 4, packed(d_k[n][2] * a.scale, d_k[n][3] * a.scale));
    }
  }
  __syncthreads();
  if (has_tile && warp < KEY_TILES) {
    const BlurredTile found(a, keys, unit, true, warp, lane);
    u16* to = a.d_k + unit / a.key_heads * a.of_d_k.batch + unit % a.key_heads * a.of_d_k.head;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      const int row = warp * 16 + piece_row(i, lane);
      const Four x = found.piece[i];
      if (row < a.keys) *(uint4*)(to + row * a.of_d_k.row + piece_column(i, lane)) = make_uint4(x.x, x.y, x.z, x.w);
    }
  }
  __syncthreads();
}
#endif
