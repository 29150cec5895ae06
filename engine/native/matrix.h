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
    int32_t kind, outputs, inputs;
    int32_t fine; /* inputs are taken with both bytes, else with the high one alone */
} Matrix;

/* Rows of activations as they are, and in groups as numbers of 16 bits with a scale, their bytes apart: 256
 * high + low. Products that are not fine leave the low bytes out, for half of the instructions.
 */
typedef struct {
    float *value;       /* [M, inputs] */
    int8_t *high, *low; /* [M, inputs]: 256 high + low */
    float *scale;       /* [M, inputs / 32] */
    float *sum;         /* [M, inputs / 32], of the numbers times their scale */
    float *high_sum;    /* the same without the low bytes */
    int32_t inputs;
} Rows;

INLINE int64_t tile_bytes(const Matrix *w) {
    int64_t groups = w->inputs / GROUP;
    return groups * (w->kind == BITS4 ? TILE4 : w->kind == BITS8 ? TILE8 : TILE16);
}
INLINE int tiles_of(const Matrix *w) { return (w->outputs + LANES - 1) / LANES; }

/* Give a row's 32 values of one group their bytes. A NaN has none: it becomes the scale, and so reaches every sum. */
INLINE void to_bytes(const Rows *x, int row, int group) {
    int64_t at = (int64_t)row * x->inputs + group * GROUP, place = (int64_t)row * (x->inputs / GROUP) + group;
    vf value[2] = {f_load(x->value + at), f_load(x->value + at + LANES)};
    float most = f_most(f_max(f_abs(value[0]), f_abs(value[1])));
    if (f_unordered(value[0], value[1])) most = __builtin_nanf(""); /* which a maximum leaves out */
    vf inverse = f_set(most > 0 ? 127.0f / most : 0.0f);
    vi highs = i_set(0), lows = i_set(0);
    for (int half = 0; half < 2; half++) {
        vf scaled = f_mul(value[half], inverse);
        vi high = i_of(scaled);
        vf left = f_mul(f_sub(scaled, f_of(high)), f_set(256.0f)); /* from -128 to 128 */
        vi low = i_of(f_min(left, f_set(127.0f)));
        i_store8(x->high + at + half * LANES, high);
        i_store8(x->low + at + half * LANES, low);
        highs = i_add(highs, high), lows = i_add(lows, low);
    }
    x->scale[place] = most / (127.0f * 256.0f);
    x->sum[place] = x->scale[place] * (float)(256 * i_sum(highs) + i_sum(lows));
    x->high_sum[place] = x->scale[place] * (float)(256 * i_sum(highs));
}

INLINE int32_t four_of(const int8_t *at) {
    int32_t four;
    __builtin_memcpy(&four, at, 4);
    return four;
}

INLINE void product4(const uint8_t *tile, const Rows *x, int row, int m, int fine, vf *out) {
    int groups = x->inputs / GROUP;
    const int64_t first = (int64_t)row * x->inputs;
    const float *scale = x->scale + (int64_t)row * groups, *sum = (fine ? x->sum : x->high_sum) + (int64_t)row * groups;
    for (int r = 0; r < m; r++) out[r] = f_zero();
    for (int group = 0; group < groups; group++, tile += TILE4) {
        vi highs[AT_ONCE], lows[AT_ONCE];
        for (int r = 0; r < m; r++) highs[r] = lows[r] = i_set(0);
        for (int four = 0; four < 4; four++) {
            vi both = i_load(tile + 64 * four), early = i_low4(both), late = i_high4(both);
            for (int r = 0; r < m; r++) {
                const int64_t at = first + (int64_t)r * x->inputs + group * GROUP + 4 * four;
                highs[r] = i_dot(highs[r], early, i_set(four_of(x->high + at)));
                highs[r] = i_dot(highs[r], late, i_set(four_of(x->high + at + 16)));
                if (!fine) continue;
                lows[r] = i_dot(lows[r], early, i_set(four_of(x->low + at)));
                lows[r] = i_dot(lows[r], late, i_set(four_of(x->low + at + 16)));
            }
        }
        vf factor = f_half(tile + 256), least = f_half(tile + 288);
        for (int r = 0; r < m; r++) {
            vf whole = f_of(i_add(i_times256(highs[r]), lows[r]));
            out[r] = f_fma(whole, f_mul(factor, f_set(scale[r * groups + group])), out[r]);
            out[r] = f_fma(least, f_set(sum[r * groups + group]), out[r]);
        }
    }
}

INLINE void product8(const uint8_t *tile, const Rows *x, int row, int m, int fine, vf *out) {
    int groups = x->inputs / GROUP;
    const int64_t first = (int64_t)row * x->inputs;
    const float *scale = x->scale + (int64_t)row * groups, *sum = (fine ? x->sum : x->high_sum) + (int64_t)row * groups;
    for (int r = 0; r < m; r++) out[r] = f_zero();
    for (int group = 0; group < groups; group++, tile += TILE8) {
        vi highs[AT_ONCE], lows[AT_ONCE];
        for (int r = 0; r < m; r++) highs[r] = lows[r] = i_set(0);
        for (int four = 0; four < 8; four++) {
            vi numbers = i_load(tile + 64 * four);
            for (int r = 0; r < m; r++) {
                const int64_t at = first + (int64_t)r * x->inputs + group * GROUP + 4 * four;
                highs[r] = i_dot_wide(highs[r], numbers, i_set(four_of(x->high + at)));
                if (fine) lows[r] = i_dot_wide(lows[r], numbers, i_set(four_of(x->low + at)));
            }
        }
        vf factor = f_half(tile + 512);
        for (int r = 0; r < m; r++) {
            vf whole = f_of(i_add(i_times256(highs[r]), lows[r])); /* below 2^29 */
            whole = f_fma(whole, f_set(scale[r * groups + group]), f_set(-128.0f * sum[r * groups + group]));
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
    if (w->kind == BITS4 && w->fine) product4(data, x, row, m, 1, out);
    else if (w->kind == BITS4) product4(data, x, row, m, 0, out);
    else if (w->kind == BITS8 && w->fine) product8(data, x, row, m, 1, out);
    else if (w->kind == BITS8) product8(data, x, row, m, 0, out);
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
