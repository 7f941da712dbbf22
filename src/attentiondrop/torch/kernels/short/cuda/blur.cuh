// Blur along the keys: attention on blurred keys is attention with blurred logits.
#if RADIUS > 0
#define WIDTH (2 * RADIUS + 1)

struct Blur {
  const i64* seed;
  const float* gate;
  float sigma_min, sigma_span;
  int stream, sampling;  // 0: one sigma for the call, 1: for each sample, 2: for each head
};

// The weights of the Gaussian at distances 0 to RADIUS.
struct Gaussian {
  float weight[RADIUS + 1];

  DEVICE_METHOD Gaussian(const Blur& blur, int batch, int head) {
    const int index = blur.sampling == 1 ? batch : blur.sampling == 2 ? head : 0;
    float sigma = blur.sigma_min + blur.sigma_span * vector_uniform(stream_key(*blur.seed, blur.stream), index);
    if (blur.gate) sigma *= *blur.gate;
    // With this floor, sigma = 0 is the identity without 0 / 0.
    const float rate = -0.72134752044448f / fmaxf(sigma * sigma, 1.1754943508222875e-38f * 2 * WIDTH * WIDTH);
    float total = 1.f;
    weight[0] = 1.f;
#pragma unroll
    for (int d = 1; d <= RADIUS; d++) {
      weight[d] = power_of_two(rate * (d * d));
      total += 2.f * weight[d];
    }
    const float norm = 1.f / total;
#pragma unroll
    for (int d = 0; d <= RADIUS; d++) weight[d] *= norm;
  }
};

// 16 bytes of a row as numbers.
DEVICE void add_row(float (&sum)[8], Four row, float weight) {
  const u32 x[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    sum[2 * i] = fmaf(low_of(x[i]), weight, sum[2 * i]);
    sum[2 * i + 1] = fmaf(high_of(x[i]), weight, sum[2 * i + 1]);
  }
}
DEVICE Four rounded(const float (&sum)[8]) {
  return {packed(sum[0], sum[1]), packed(sum[2], sum[3]), packed(sum[4], sum[5]), packed(sum[6], sum[7])};
}
#endif
