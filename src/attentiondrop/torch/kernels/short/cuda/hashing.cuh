// The hash of `attentiondrop.hashing`, with exactly the same results.
struct Key { u32 k0, k1; };

DEVICE u32 mix(u32 x) {
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  return x ^ (x >> 16);
}
DEVICE u32 mix31(u32 x) {
  x &= 0x7FFFFFFFu;
  x ^= x >> 16;
  x = (x * 0x7FEB352Du) & 0x7FFFFFFFu;
  x ^= x >> 15;
  x = (x * 0x046CA68Bu) & 0x7FFFFFFFu;
  return x ^ (x >> 16);
}
DEVICE Key stream_key(i64 seed, u32 stream) {
  const u32 low = (u32)seed, high = (u32)((u64)seed >> 32);
  const u32 k0 = mix(low ^ mix(high + stream * 0x9E3779B1u));
  return {k0, mix(high ^ mix(k0 + stream * 0x85EBCA77u + 0x165667B1u))};
}
// The word of a row, counted over batch, heads and queries.
DEVICE u32 line_word(Key key, u32 row) {
  const u32 x = mix31((row ^ (key.k0 >> 1)) + key.k1);
  return mix31((x ^ (key.k1 >> 1)) + key.k0) * 2 + 1;
}
DEVICE u32 column_word(Key key, u32 column) { return line_word(key, 0x7FFFFFFFu - column); }
// The uniform number of a column, a sample, a head or a call.
DEVICE float vector_uniform(Key key, u32 index) { return (float)(mix(mix(index + key.k0) ^ key.k1) >> 8) * 5.9604644775390625e-08f; }

// The largest word whose uniform number is below the rate; 0 if there is none. (The word of a logit is odd.)
DEVICE u32 limit_of(float rate) {
  const int steps = (int)ceilf(rate * 16777216.0f);
  return steps > 0 ? ((u32)steps << 8) - 1 : 0;
}
// A rate, times the factor that a schedule may have put into memory.
DEVICE float gated(float rate, const float* gate) { return gate ? rate * *gate : rate; }
// What is kept of dropped weights is scaled up by this.
DEVICE float factor_of(float rate) { return 1.0f / fmaxf(1.0f - rate, 5.9604644775390625e-08f); }
