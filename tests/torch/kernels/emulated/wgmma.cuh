// The functions of the real `wgmma.cuh` for a CPU. Products are there at once. A warp has 16 rows of a product of its
// warpgroup.
DEVICE u32 matrix_at(u32 address) { return address >> 4; }
DEVICE void begin_products() {}
DEVICE void send_products() {}
DEVICE void wait_for_products() {}
DEVICE void show_to_matrix_units() {}
DEVICE void wait_for_four(int which) { wait_at(which, 128); }
DEVICE void wait_for_all() { __syncthreads(); }
DEVICE int fresh_lane() { return threadIdx.x & 31; }
DEVICE void set_to_zero(float& x) { x = 0.f; }

// A number of a matrix. The matrix units find the pieces of a row in changed places.
DEVICE float number_at(u32 matrix, int row, int column) {
  u32 address = matrix * 16 + row * 128 + column * 2;
  address ^= (address >> 7 & 7) << 4;
  return number_of(at<u16>(address));
}
template <int eights, class First, class Second>
static void multiply_any(float (&sum)[eights][4], int add, First first, Second second) {
  const int g = (threadIdx.x & 31) / 4, t = threadIdx.x % 4;
  for (int n = 0; n < eights; n++)
    for (int e = 0; e < 4; e++) {
      double total = add ? sum[n][e] : 0.0;
      for (int k = 0; k < 16; k++) total += (double)first(g + e / 2 * 8, k) * second(k, n * 8 + 2 * t + e % 2);
      sum[n][e] = (float)total;
    }
}
DEVICE int first_row() { return threadIdx.x / 32 % 4 * 16; }

DEVICE void multiply_rows(float (&sum)[2][4], u32 a, u32 b, int add) {
  auto first = [&](int i, int k) { return number_at(a, first_row() + i, k); };
  multiply_any(sum, add, first, [&](int k, int j) { return number_at(b, j, k); });
}
DEVICE void multiply_own(float (&sum)[8][4], const u32 (&x)[4], u32 b, int add) {
  const Words* all = exchanged({{x[0], x[1], x[2], x[3]}});
  auto first = [&](int i, int k) { return first_at(all, i, k); };
  multiply_any(sum, add, first, [&](int k, int j) { return number_at(b, k, j); });
}
template <int eights>
static void multiply_transposed(float (&sum)[eights][4], u32 a, u32 b, int add) {
  auto first = [&](int i, int k) { return number_at(a, k, first_row() + i); };
  multiply_any(sum, add, first, [&](int k, int j) { return number_at(b, k, j); });
}
