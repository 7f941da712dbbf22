// A bit for each of the logits that one thread holds of one row: index i stands for key 8 * (i / 2) + 2 * (lane % 4) + i % 2.
// The first one is the top bit, so that counting leading zeros finds the lowest key.
#define MARKS (2 * EIGHTS)
#define MARK_WORDS ((MARKS + 31) / 32)

struct Marks {
  u32 word[MARK_WORDS];

  DEVICE_METHOD void clear() {
#pragma unroll
    for (int w = 0; w < MARK_WORDS; w++) word[w] = 0;
  }
  DEVICE_METHOD bool any() const {
    u32 all = 0;
#pragma unroll
    for (int w = 0; w < MARK_WORDS; w++) all |= word[w];
    return all != 0;
  }
  DEVICE_METHOD int count() const {
    int n = 0;
#pragma unroll
    for (int w = 0; w < MARK_WORDS; w++) n += __popc(word[w]);
    return n;
  }
  // `i` is known to the compiler wherever these three are called.
  DEVICE_METHOD bool has(int i) const { return word[i / 32] & (0x80000000u >> (i % 32)); }
  DEVICE_METHOD bool has_either(int i) const { return word[i / 32] & (0xC0000000u >> (i % 32)); }  // i or i + 1, i is even
  DEVICE_METHOD void add(int i) { word[i / 32] |= 0x80000000u >> (i % 32); }

  DEVICE_METHOD void remove(const Marks& other) {
#pragma unroll
    for (int w = 0; w < MARK_WORDS; w++) word[w] &= ~other.word[w];
  }
  DEVICE_METHOD void keep_only(const Marks& other) {
#pragma unroll
    for (int w = 0; w < MARK_WORDS; w++) word[w] &= other.word[w];
  }
  // Index of the first one; MARKS or more if there is none.
  DEVICE_METHOD u32 first() const {
    if (MARK_WORDS == 1 || word[0]) return __clz(word[0]);
    return 32 + __clz(word[MARK_WORDS - 1]);
  }
  DEVICE_METHOD void remove_first() {
    if (MARK_WORDS == 1 || word[0]) word[0] &= ~(0x80000000u >> (__clz(word[0]) & 31));
    else word[MARK_WORDS - 1] &= ~(0x80000000u >> (__clz(word[MARK_WORDS - 1]) & 31));
  }
  // Index of the first one, which is removed; there must be one.
  DEVICE_METHOD u32 take_first() {
    const bool is_early = MARK_WORDS == 1 || word[0];
    const u32 i = first_in(is_early ? word[0] : word[MARK_WORDS - 1]), mark = only_mark(i);
    if (is_early) word[0] &= ~mark;
    else word[MARK_WORDS - 1] &= ~mark;
    return is_early ? i : 32 + i;
  }
  DEVICE_METHOD void remove_dynamic(u32 i) {
    const u32 bit = 0x80000000u >> (i & 31);
    if (MARK_WORDS == 1 || i < 32) word[0] &= ~bit;
    else word[MARK_WORDS - 1] &= ~bit;
  }
};

// The key of mark `i` in the thread with `t = lane % 4`.
DEVICE u32 key_of(u32 i, u32 t) { return (i >> 1) * 8 + 2 * t + (i & 1); }
// The number of the marks of all four threads, one thread after the other, that stands for a key: the inverse of `key_of`.
DEVICE u32 mark_of_key(u32 key) { return (key >> 1 & 3) * MARKS + (key >> 3) * 2 + (key & 1); }

// Note the marks of dropped logits of the two rows of a thread in the bit map of the tile (see `bit_map.py`). Mark i
// has key 16 (i / 4) + 8 (i / 2 % 2) + 2 t + i % 2, so what depends on the thread and what on the mark are added.
DEVICE void note_drops(u32 notes, const Marks (&dropped)[2], int lane) {
  const u32 t = lane & 3, g = lane >> 2, own = notes + 8 * t, bit = 1u << ((g >> 1) * 8 + (g & 1));
#pragma unroll
  for (int r = 0; r < 2; r++)
    for (Marks left = dropped[r]; left.any();) {
      const u32 i = left.take_first();
      set_bits(own + (i >> 2) * 32 + (i & 1) * 4, bit << (r * 4 + (i & 2)));
    }
}
