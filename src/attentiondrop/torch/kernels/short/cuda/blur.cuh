// Blur along the keys: attention on blurred keys is attention with blurred logits.
//
// A tile of 16 blurred rows is a product: a band of weights [16 x 32], times the 32 rows around the tile (8 before it, its own, 8
// behind it). Entry (i, c) of the band is the weight at distance c - 8 - i. So all tiles have the same band, apart from rows that are
// not there, and a lane needs three words of it: two weights each, at distances around -8, 0 and 8.
//
// A weight is the sum of two 16-bit numbers, the rounded weight and what is left of it, and each has a product of its own. In
// bfloat16 this leaves an error of 2^-16 of the weight. In float16 it leaves 2^-22, but at least 2^-25 in all, because a rest below
// 2^-14 is a denormal number. A row's weights add up to 1, so both are far below the rounding of the blurred row (2^-8 and 2^-11).
// With sigma 0, the weights are exactly 1 and 0 with no rest, and a row stays what it is.
//
// A product multiplies every row by a weight, if only by 0. So rows that do not count must be zeros in memory: NaN times 0 is NaN.
#if RADIUS > 0
#define WIDTH (2 * RADIUS + 1)

struct Blur {
  const i64* seed;
  const float* gate;
  float sigma_min, sigma_span;
  int stream;
  int per_sigma;  // so many samples, one after the other, share a sigma; 0: each head has its own
};

// What one lane has of the weights of a unit: those at the distances lane - 16 and lane - 15, and what rounding left of them.
struct Weights { u32 high, low; };

DEVICE Weights weights_of(const Blur& blur, int batch, int head, int lane) {
  const int index = blur.per_sigma > 0 ? batch / blur.per_sigma : head;
  float sigma = blur.sigma_min + blur.sigma_span * vector_uniform(stream_key(*blur.seed, blur.stream), index);
  if (blur.gate) sigma *= *blur.gate;
  // With this floor, sigma = 0 is the identity without 0 / 0.
  const float rate = -0.72134752044448f / fmaxf(sigma * sigma, 1.1754943508222875e-38f * 2 * WIDTH * WIDTH);
  float total = 1.f;
#pragma unroll
  for (int d = 1; d <= RADIUS; d++) total += 2.f * power_of_two(rate * (d * d));
  const float norm = 1.f / total;
  float own[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int d = lane - 16 + i;
    own[i] = d >= -RADIUS && d <= RADIUS ? power_of_two(rate * (d * d)) * norm : 0.f;
  }
  const u32 high = packed(own[0], own[1]);
  return {high, packed(own[0] - low_of(high), own[1] - high_of(high))};
}

// What one lane needs of the band.
struct Band {
  u32 high[3], low[3];

  DEVICE_METHOD Band(Weights own, int lane) {
    const int middle = 16 + 2 * (lane & 3) - (lane >> 2);  // distance 2t - g
#pragma unroll
    for (int i = 0; i < 3; i++) {
      high[i] = __shfl_sync(WHOLE_WARP, own.high, middle + 8 * (i - 1));
      low[i] = __shfl_sync(WHOLE_WARP, own.low, middle + 8 * (i - 1));
    }
  }
};

// The band of a tile in the layout of `multiply`'s first argument: [its first 16 columns, its last 16][...]. `there`: a bit for each
// of the 32 rows around the tile. A row of the tile that is not there becomes zeros.
struct BandOfTile {
  u32 part[2][4];

  DEVICE_METHOD BandOfTile(const u32 (&words)[3], int tile, u32 there, int lane) {
    const bool one = there >> (8 + (lane >> 2)) & 1, two = there >> (16 + (lane >> 2)) & 1;  // rows g and g + 8
    part[0][0] = one && tile > 0 ? words[0] : 0;
    part[0][1] = 0;  // more than 8 rows away
    part[0][2] = one ? words[1] : 0;
    part[0][3] = two ? words[0] : 0;
    part[1][0] = one ? words[2] : 0;
    part[1][1] = two ? words[1] : 0;
    part[1][2] = 0;
    part[1][3] = two && tile < KEY_TILES - 1 ? words[2] : 0;
  }
};

// A bit for each of the 32 rows around a tile: whether it is a key that counts.
template <class Visible>
DEVICE u32 rows_around(int tile, int keys, int lane, Visible is_visible) {
  const int row = tile * 16 - 8 + lane;
  return __ballot_sync(WHOLE_WARP, row >= 0 && row < keys && is_visible(row));
}

// The blurred rows of a tile, from all rows at `from`, as sums of products. (The band is symmetric, so the transposed blur is the same.)
DEVICE void blur_tile(float (&sums)[2 * STEPS][4], const Band& band, u32 from, int tile, u32 there, int lane) {
  const BandOfTile high(band.high, tile, there, lane), low(band.low, tile, there, lane);
#pragma unroll
  for (int n = 0; n < 2 * STEPS; n++) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.f;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int row = tile * 16 - 8 + 16 * half + (lane & 15);
    // Before the first tile and behind the last one there is nothing: their weights are 0, so any row will do.
    if (half == 0 && row < 0) row += 8;
    if (half == 1 && row >= KEYS) row -= 8;
    const u32 piece = piece_of_row(row, lane >> 4);
#pragma unroll
    for (int n = 0; n < STEPS; n++) {
      u32 x[4];
      load_transposed(x, from + further_in_row(piece, 2 * n));
      multiply(sums[2 * n], high.part[half], x[0], x[1]);
      multiply(sums[2 * n + 1], high.part[half], x[2], x[3]);
      multiply(sums[2 * n], low.part[half], x[0], x[1]);
      multiply(sums[2 * n + 1], low.part[half], x[2], x[3]);
    }
  }
}

// By what a lane's two rows of a tile (g and g + 8) are multiplied after the blur, or before the transposed one: with RENORMALIZE, one
// over what the weights of the row add up to where there are keys. The sum is a product, too: of the band and a column of ones.
struct RowFactors {
  float one, two;

  DEVICE_METHOD RowFactors(const Band& band, int tile, u32 there, int lane) : one(1.f), two(1.f) {
#if RENORMALIZE
    const BandOfTile high(band.high, tile, there, lane), low(band.low, tile, there, lane);
    float sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const u32 bits = there >> (16 * half + 2 * (lane & 3));
      const u32 b0 = (bits & 1 ? ONES & 0xffffu : 0) | (bits & 2 ? ONES & 0xffff0000u : 0);
      const u32 b1 = (bits & 0x100 ? ONES & 0xffffu : 0) | (bits & 0x200 ? ONES & 0xffff0000u : 0);
      multiply(sum, high.part[half], b0, b1);
      multiply(sum, low.part[half], b0, b1);
    }
    one = sum[0] > 0.f ? 1.f / sum[0] : 0.f;
    two = sum[2] > 0.f ? 1.f / sum[2] : 0.f;
#endif
  }
};

// 16 rows, rounded, in the layout of `multiply`'s first argument.
struct RoundedTile {
  u32 columns[STEPS][4];

  DEVICE_METHOD void round(const float (&sums)[2 * STEPS][4], float one, float two) {
#pragma unroll
    for (int n = 0; n < 2 * STEPS; n++) {
      columns[n / 2][2 * (n & 1)] = packed(sums[n][0] * one, sums[n][1] * one);
      columns[n / 2][2 * (n & 1) + 1] = packed(sums[n][2] * two, sums[n][3] * two);
    }
  }
  DEVICE_METHOD void blur(const Band& band, u32 from, int tile, u32 there, int lane) {
    float sums[2 * STEPS][4];
    blur_tile(sums, band, from, tile, there, lane);
    const RowFactors factors(band, tile, there, lane);
    round(sums, factors.one, factors.two);
  }
  DEVICE_METHOD void store(u32 to, int tile, int lane) const {
#pragma unroll
    for (int n = 0; n < STEPS; n++) {
#if SWIZZLED
      store_matrices_at(to + further_in_row(piece_of_row(tile * 16 + (lane & 15), lane >> 4), 2 * n), columns[n]);
#else
      store_matrices(to + tile * TILE + n * 32, ROW_BYTES, columns[n], lane);
#endif
    }
  }
};

#if MASKED
// A hidden key counts as zeros, whatever is in memory. `seen`: a bit for each row of the tile.
DEVICE void clear_hidden(u32 keys, int tile, u32 seen, int lane) {
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    const int row = i * (32 / CHUNKS) + lane / CHUNKS;
    if (!(seen >> row & 1)) store_16(keys + piece_of_row(tile * 16 + row, lane % CHUNKS), {0, 0, 0, 0});
  }
}
#endif
#endif
