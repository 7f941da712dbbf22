// Blur in the backward: of the keys on their way in, and of their gradient on its way out.
#if RADIUS > 0
// The 16 rows of a key tile after the blur (or its transpose), read from all keys of the unit at `from`. A lane has one piece of
// 16 bytes of STEPS neighbouring rows, so that it reads few rows twice.
struct BlurredTile {
  Four piece[STEPS];
  int first, chunk;  // its first row, and which piece

  DEVICE_METHOD BlurredTile(const Arguments& a, u32 from, int unit, bool transposed, int tile, int lane) {
    const Unit own(unit, a.key_heads, a.by_heads);
    const Gaussian gaussian({a.seed, a.blur_gate, a.sigma_min, a.sigma_span, a.blur_stream, a.sampling}, own.batch, own.head);
    const u8* visible = a.visible + own.batch * a.of_visible.batch + own.head * a.of_visible.head;
    first = tile * 16 + lane / CHUNKS * STEPS;
    chunk = lane % CHUNKS;
    float sum[STEPS][8];
#pragma unroll
    for (int i = 0; i < STEPS; i++)
#pragma unroll
      for (int e = 0; e < 8; e++) sum[i][e] = 0.f;
#pragma unroll
    for (int d = -RADIUS; d < STEPS + RADIUS; d++) {
      const int k = first + d;
      const bool is_there = k >= 0 && k < a.keys;
      // A hidden key counts as zeros.
      const float factor = !is_there || (!transposed && !is_visible(a, visible, k)) ? 0.f : RENORMALIZE && transposed ? share(a, visible, gaussian, k) : 1.f;
      const Four x = load_16(from + piece_of_row(is_there ? k : first, chunk));
#pragma unroll
      for (int i = 0; i < STEPS; i++)
        if (d - i >= -RADIUS && d - i <= RADIUS) add_row(sum[i], x, gaussian.weight[d < i ? i - d : d - i] * factor);
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      // A hidden key gets no gradient.
      if (RENORMALIZE || MASKED) {
        const bool is_there = first + i < a.keys;
        const float factor = !is_there || (transposed && !is_visible(a, visible, first + i)) ? 0.f
                             : RENORMALIZE && !transposed ? share(a, visible, gaussian, first + i) : 1.f;
#pragma unroll
        for (int e = 0; e < 8; e++) sum[i][e] *= factor;
      }
      piece[i] = rounded(sum[i]);
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
      if (blurred.first + i < a.keys) store_16(keys + piece_of_row(blurred.first + i, blurred.chunk), blurred.piece[i]);
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
    const Unit own(unit, a.key_heads, a.by_heads);
    u16* to = a.d_k + own.batch * a.of_d_k.batch + own.head * a.of_d_k.head;
    to += found.first * a.of_d_k.row + found.chunk * 8;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      const Four x = found.piece[i];
      if (found.first + i < a.keys) *(uint4*)to = make_uint4(x.x, x.y, x.z, x.w);
      to += a.of_d_k.row;
    }
  }
  __syncthreads();
}
#endif
