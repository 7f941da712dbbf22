// Drawn logits are dropped, of all logits: one by one, or whole columns of a head.
//
// A dropped logit is overwritten at once, because a note of it would take instructions for every logit. Hardly ever does a row lose
// all that it sees (or, with SHARE, nearly all). Then the logits of the tile are computed again.
#if DROP == EVERY
#define COLUMN_WORDS ((KEYS + 31) / 32)

struct Draws {
#if COLUMNS
  u32 bits[COLUMN_WORDS];  // of each key of the head: whether its draw drops it

  DEVICE_METHOD Draws(const Arguments& a, Key key, int head_line, float rate, int lane) {
#pragma unroll
    for (int w = 0; w < COLUMN_WORDS; w++) {
      const int i = 32 * w + lane;
      bits[w] = __ballot_sync(WHOLE_WARP, vector_uniform(key, (u32)head_line * (u32)a.keys + (i - i % a.span)) < rate);
    }
  }
#else
  u32 lines[2], columns, limit;  // words of the two rows, address of those of the keys
#endif

  // Whether the four logits are dropped that a thread holds of keys 8 j to 8 j + 7.
  DEVICE_METHOD void look_up(bool (&is_drawn)[4], int j, int lane) const {
    const int t = lane & 3;
#if COLUMNS
    const u32 own = bits[j / 4] >> (8 * (j & 3) + 2 * t);
#pragma unroll
    for (int e = 0; e < 4; e++) is_drawn[e] = own >> (e & 1) & 1;
#else
    u32 words[2];
    load_two_words(columns + 4 * (8 * j + 2 * t), words[0], words[1]);
#pragma unroll
    for (int e = 0; e < 4; e++) is_drawn[e] = lines[e / 2] * words[e & 1] <= limit;
#endif
  }
};

// Drop what is drawn. `largest` becomes the largest logit that a thread has left of each row.
DEVICE void drop_drawn(float (&logits)[EIGHTS][4], float (&largest)[2], const Draws& draws, int lane) {
  largest[0] = largest[1] = HIDDEN;
#pragma unroll
  for (int j = 0; j < EIGHTS; j++) {
    bool is_drawn[4];
    draws.look_up(is_drawn, j, lane);
#pragma unroll
    for (int e = 0; e < 4; e++) {
      float& x = logits[j][e];
      if (is_drawn[e]) x = HIDE || IS_HIDDEN(x) ? HIDDEN : 0.f;
      largest[e / 2] = fmaxf(largest[e / 2], x);
    }
  }
}

#if HIDE
// The largest logit of each row, and its key, of equal ones the lowest. It is what a row keeps that would lose everything.
struct Largest {
  float logit[2];
  u32 key[2];

  DEVICE_METHOD void find(const float (&logits)[EIGHTS][4], int lane) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      u32 lowest;
      logit[r] = largest_and_its_key(logits, r, lane, lowest);
      key[r] = smallest_of_quad(lowest);
    }
  }
  // Rows that have lost everything, which `largest` tells, get it back. (A row that sees no key stays as it is.)
  DEVICE_METHOD void put_back(float (&logits)[EIGHTS][4], float (&largest)[2], int (&kept)[2], int lane) const {
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (IS_HIDDEN(largest[r]) && !IS_HIDDEN(logit[r])) {
        largest[r] = logit[r];
        kept[r] = (int)key[r];
#pragma unroll
        for (int i = 0; i < 2 * EIGHTS; i++)
          if (key[r] == 8 * (i / 2) + 2 * (lane & 3) + i % 2) logits[i / 2][2 * r + i % 2] = logit[r];
      }
  }
};
#endif
#endif
