// Sizes that follow from the variant, rows of a head in shared memory, and how a warp writes rows to global memory.
//
// A variant is given by macros: KEY_TILES (tiles of 16 keys), HEAD (head size), FLOAT16, DROP, TOP, HIDE, COLUMNS, SHARE,
// DROPOUT, CAUSAL, MASKED, RADIUS and RENORMALIZE (blur), and those of the one kernel. Rows, keys, rates and strides are
// run-time arguments.
#define KEYS (16 * KEY_TILES)
#define EIGHTS (2 * KEY_TILES)  // tiles of 8 keys
#define STEPS (HEAD / 16)       // a product over the head size takes this many steps
#define CHUNKS (HEAD / 8)       // pieces of 16 bytes in a row
// A row has an odd number of 16-byte pieces, so that eight rows at one column lie in different banks.
#define PITCH (2 * HEAD + 16)
#define TILE_BYTES (16 * PITCH)
#define KEY_BYTES (KEYS * PITCH)

// Eight rows at one column must lie in different banks: rows are padded, or (as wgmma wants it) their pieces change places.
#ifndef SWIZZLED
#define SWIZZLED 0
#endif
#define ROW_BYTES (SWIZZLED ? 2 * HEAD : PITCH)
#define TILE (16 * ROW_BYTES)
// Piece `chunk` of a row.
DEVICE u32 piece_of_row(int row, int chunk) { return row * ROW_BYTES + ((SWIZZLED ? chunk ^ (row & 7) : chunk) << 4); }
// From there, an even number of pieces further.
DEVICE u32 further_in_row(u32 piece, int pieces) { return SWIZZLED ? piece ^ (pieces << 4) : piece + (pieces << 4); }

#define NOTHING 0  // DROP: attention is not changed
#define LARGEST 1  // hard masking: drawn logits of the TOP largest
#define EVERY 2    // drawn logits, of all; COLUMNS: drawn once for all rows of a head
// SHARE: weights are dropped by EVERY instead, and a row is divided by the share of them that is left. This share is a constant
// in the backward. So the forward is that of dropped logits, and only the gradient differs.
// DROPOUT: afterwards, weights are drawn and dropped, and the others scaled up.

// Whether each row has a word for the draws of DROP: columns have draws of their own.
#define HAS_LINES (DROP == LARGEST || (DROP == EVERY && !COLUMNS))
// A causal mask truncates the blur of the last RADIUS keys that a row sees. Their logits come from another kernel.
#define BAND (CAUSAL && RADIUS > 0)

// A logit that no row sees. Its weight is 0, and it is far below every other.
#define HIDDEN (-1e30f)
#define IS_HIDDEN(x) ((x) < -1e29f)

// The log-sum-exp of a row that sees no key: all its weights are 0 in the backward.
#define BLIND 1e30f

// How far things of 16-bit numbers are apart. A stride has 31 bits and counts bytes, so that one instruction multiplies it and adds
// it to an address. Products have 64 bits. (The host copies tensors with larger strides.)
struct Stride { u32 bytes; };
struct Offset { u64 bytes; };
DEVICE Offset operator*(u32 count, Stride stride) { return {(u64)count * stride.bytes}; }
DEVICE Offset operator+(Offset offset, u32 numbers) { return {offset.bytes + 2 * numbers}; }
template <class Number>
DEVICE Number* operator+(Number* from, Offset offset) { return (Number*)((char*)from + offset.bytes); }
template <class Number>
DEVICE void operator+=(Number*& pointer, Offset offset) { pointer = pointer + offset; }
template <class Number>
DEVICE void operator+=(Number*& pointer, Stride stride) { pointer = pointer + Offset{stride.bytes}; }

struct Strides { Stride batch, head, row; };
struct MaskStrides { i64 batch, head, row; };

// Copy rows of a head into shared memory; the warp waits for them later.
DEVICE void copy_rows(u32 to, const u16* from, Stride stride, int rows, int lane) {
  constexpr int at_once = 32 / CHUNKS;
  const int chunk = lane % CHUNKS;
  int row = lane / CHUNKS;
  from += row * stride + chunk * 8;
  to += row * PITCH + chunk * 16;
#pragma unroll 4
  for (; row < rows; row += at_once) {
    copy_16(to, from);
    from += at_once * stride;
    to += at_once * PITCH;
  }
}

// The same for a tile of 16 rows, of which `rows` or more exist.
DEVICE void copy_tile_rows(u32 to, const u16* from, Stride stride, int rows, int lane) {
  constexpr int at_once = 32 / CHUNKS;
  const int row = lane / CHUNKS, chunk = lane % CHUNKS;
  from += row * stride + chunk * 8;
  to += row * PITCH + chunk * 16;
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    if (row + i * at_once < rows) copy_16(to + i * at_once * PITCH, from);
    from += at_once * stride;
  }
}

// A unit: one sample and one head of the keys.
struct Unit {
  int batch, head;
  DEVICE_METHOD Unit(int number, int heads, Divisor by_heads) {
    batch = divided(number, by_heads);
    head = number - batch * heads;
  }
};

// Rows g and g + 8 of a 16-row tile from the sums of products, times a factor for each. Pairs of lanes exchange a word, so
// that four lanes write 32 neighbouring bytes.
template <int eights>
DEVICE void write_rows(u16* to, Stride stride, int first, int rows, const float (&sums)[eights][4], float factor0, float factor1, int lane) {
  const int t = lane & 3, g = lane >> 2;
  const bool odd = t & 1;
  const int column = odd ? 8 + 2 * (t - 1) : 2 * t;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = first + g + 8 * r;
    const float factor = r ? factor1 : factor0;
    u16* line = to + row * stride + column;
#pragma unroll
    for (int n = 0; n < eights; n += 2) {
      const u32 one = packed(sums[n][2 * r] * factor, sums[n][2 * r + 1] * factor);
      const u32 two = packed(sums[n + 1][2 * r] * factor, sums[n + 1][2 * r + 1] * factor);
      const u32 received = __shfl_xor_sync(WHOLE_WARP, odd ? one : two, 1);
      if (row < rows) *(uint2*)(line + n * 8) = make_uint2(odd ? received : one, odd ? two : received);
    }
  }
}

// A bit for each key of a tile: whether it is inside and visible.
DEVICE u32 seen_keys(const u8* visible, i64 stride, int tile, int keys, int lane) {
  const int key = tile * 16 + (lane & 15);
  bool seen = key < keys;
#if MASKED
  seen = seen && visible[key * stride] != 0;
#endif
  return __ballot_sync(WHOLE_WARP, seen) & 0xffffu;
}
