/* Matrices in tiles of 16 outputs, multiplied with up to 8 rows at once.
 *
 * A tile holds its inputs one group of 32 after another, each followed by its 16 scales: what a product
 * reads stands in the order in which it is read. Bytes of a group, for 4 inputs at a time, are the 16
 * outputs' one after another, as the instruction that multiplies bytes by fours wants them.
 *
 *   4 bits: 256 bytes (inputs 0-15 in the low halves, 16-31 in the high ones), 16 scales, 16 least values
 *   8 bits: 512 bytes, 16 scales; the numbers are stored with 128 added
 *   16 bits: pairs of bfloat16, no groups
 */
#ifndef MATRIX_H
#define MATRIX_H

#include "vectors.h"

#define GROUP 32
#define AT_ONCE 8 /* rows, whose sums fit the registers */

enum { NONE = 0, BITS4 = 4, BITS8 = 8, BITS16 = 16 };
enum { TILE4 = 320, TILE8 = 544, TILE16 = 1024 }; /* bytes of 32 inputs in a tile */

typedef struct {
    const uint8_t *data;
    const float *bias; /* or NULL */
    int32_t kind, outputs, inputs, unused;
} Matrix;

/* Rows of activations in both forms: as they are, and in groups of signed bytes with scale and sum. */
typedef struct {
    float *value;   /* [M, inputs] */
    int8_t *byte;   /* [M, inputs] */
    float *scale;   /* [M, inputs / 32] */
    float *sum;     /* [M, inputs / 32], of the bytes times their scale */
    int32_t inputs;
} Rows;

INLINE int64_t tile_bytes(const Matrix *w) {
    int64_t groups = w->inputs / GROUP;
    return groups * (w->kind == BITS4 ? TILE4 : w->kind == BITS8 ? TILE8 : TILE16);
}
INLINE int tiles_of(const Matrix *w) { return (w->outputs + LANES - 1) / LANES; }

/* Give a row's 32 values of one group their bytes. */
INLINE void to_bytes(const Rows *x, int row, int group) {
    int64_t at = (int64_t)row * x->inputs + group * GROUP, place = (int64_t)row * (x->inputs / GROUP) + group;
    vf first = f_load(x->value + at), second = f_load(x->value + at + LANES);
    float most = f_most(f_max(f_abs(first), f_abs(second)));
    vf inverse = f_set(most > 0 ? 127.0f / most : 0.0f);
    vi low = i_of(f_mul(first, inverse)), high = i_of(f_mul(second, inverse));
    i_store8(x->byte + at, low);
    i_store8(x->byte + at + LANES, high);
    x->scale[place] = most / 127.0f;
    x->sum[place] = most / 127.0f * (float)i_sum(i_add(low, high));
}

INLINE int32_t four_of(const int8_t *at) {
    int32_t four;
    __builtin_memcpy(&four, at, 4);
    return four;
}

INLINE void product4(const uint8_t *tile, const Rows *x, int row, int m, vf *out) {
    int groups = x->inputs / GROUP;
    const int8_t *byte = x->byte + (int64_t)row * x->inputs;
    const float *scale = x->scale + (int64_t)row * groups, *sum = x->sum + (int64_t)row * groups;
    for (int r = 0; r < m; r++) out[r] = f_zero();
    for (int group = 0; group < groups; group++, tile += TILE4, byte += GROUP) {
        vi sums[AT_ONCE];
        for (int r = 0; r < m; r++) sums[r] = i_set(0);
        for (int four = 0; four < 4; four++) {
            vi both = i_load(tile + 64 * four), low = i_low4(both), high = i_high4(both);
            for (int r = 0; r < m; r++) {
                const int8_t *from = byte + (int64_t)r * x->inputs + 4 * four;
                sums[r] = i_dot(sums[r], low, i_set(four_of(from)));
                sums[r] = i_dot(sums[r], high, i_set(four_of(from + 16)));
            }
        }
        vf factor = f_half(tile + 256), least = f_half(tile + 288);
        for (int r = 0; r < m; r++) {
            out[r] = f_fma(f_of(sums[r]), f_mul(factor, f_set(scale[r * groups + group])), out[r]);
            out[r] = f_fma(least, f_set(sum[r * groups + group]), out[r]);
        }
    }
}

INLINE void product8(const uint8_t *tile, const Rows *x, int row, int m, vf *out) {
    int groups = x->inputs / GROUP;
    const int8_t *byte = x->byte + (int64_t)row * x->inputs;
    const float *scale = x->scale + (int64_t)row * groups, *sum = x->sum + (int64_t)row * groups;
    for (int r = 0; r < m; r++) out[r] = f_zero();
    for (int group = 0; group < groups; group++, tile += TILE8, byte += GROUP) {
        vi sums[AT_ONCE];
        for (int r = 0; r < m; r++) sums[r] = i_set(0);
        for (int four = 0; four < 8; four++) {
            vi numbers = i_load(tile + 64 * four);
            for (int r = 0; r < m; r++) {
                vi from = i_set(four_of(byte + (int64_t)r * x->inputs + 4 * four));
                sums[r] = i_dot_wide(sums[r], numbers, from);
            }
        }
        vf factor = f_half(tile + 512);
        for (int r = 0; r < m; r++) {
            vf whole = f_fma(f_of(sums[r]), f_set(scale[r * groups + group]), f_set(-128.0f * sum[r * groups + group]));
            out[r] = f_fma(whole, factor, out[r]);
        }
    }
}

INLINE void product16(const uint8_t *tile, const Rows *x, int row, int m, vf *out) {
    const float *value = x->value + (int64_t)row * x->inputs;
    for (int r = 0; r < m; r++) out[r] = f_zero();
    for (int input = 0; input < x->inputs; input += 2, tile += 64) {
        vi pairs = i_load(tile);
        vf even = f_low16(pairs), odd = f_high16(pairs);
        for (int r = 0; r < m; r++) {
            const float *from = value + (int64_t)r * x->inputs + input;
            out[r] = f_fma(odd, f_set(from[1]), f_fma(even, f_set(from[0]), out[r]));
        }
    }
}

INLINE void product_of(const Matrix *w, int tile, const Rows *x, int row, int m, vf *out) {
    const uint8_t *data = w->data + tile * tile_bytes(w);
    if (w->kind == BITS4) product4(data, x, row, m, out);
    else if (w->kind == BITS8) product8(data, x, row, m, out);
    else product16(data, x, row, m, out);
    if (w->bias)
        for (int r = 0; r < m; r++) out[r] = f_add(out[r], f_load(w->bias + tile * LANES));
}

/* One tile times rows `row` to `row + m`, m at most AT_ONCE: out[r] are its 16 outputs. Biases are padded. */
static void product(const Matrix *w, int tile, const Rows *x, int row, int m, vf *out) {
    switch (m) {
    case 1: product_of(w, tile, x, row, 1, out); break;
    case 2: product_of(w, tile, x, row, 2, out); break;
    case 3: product_of(w, tile, x, row, 3, out); break;
    case 4: product_of(w, tile, x, row, 4, out); break;
    case 5: product_of(w, tile, x, row, 5, out); break;
    case 6: product_of(w, tile, x, row, 6, out); break;
    case 7: product_of(w, tile, x, row, 7, out); break;
    default: product_of(w, tile, x, row, 8, out);
    }
}

#endif
