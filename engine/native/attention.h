/* Attention of a query row over the pages of the cache, in bfloat16.
 *
 * Keys and values are read once for all query heads of a group. A long context is cut into parts, which
 * different threads take; each part leaves its weighted values, its greatest score and its sum of weights,
 * and `join_parts` puts them together (Flash-Decoding's way, Dao et al. 2023).
 */
#ifndef ATTENTION_H
#define ATTENTION_H

#include <math.h>
#include <stddef.h>
#include <string.h>
#include "vectors.h"

#define MOST_DIM 256
#define KEYS 64 /* scored before their values are read */

typedef struct {
    const uint16_t *keys, *values; /* [blocks, block size, kv heads, dim] bfloat16 */
    int32_t block_size, kv_heads, dim, heads_each;
} Pages;

/* Where the numbers of KEYS tokens begin; those past the end stand for the last one. */
INLINE void slots_of(const Pages *pages, const int32_t *table, int begin, int end, int64_t *slots) {
    const int64_t stride = (int64_t)pages->kv_heads * pages->dim;
    for (int t = 0; t < KEYS; t++) {
        const int token = begin + t < end ? begin + t : end - 1;
        slots[t] = ((int64_t)table[token / pages->block_size] * pages->block_size + token % pages->block_size) * stride;
    }
}

/* Ask for numbers that are taken in next: the processor does not guess them across pages and heads. */
INLINE void fetch(const uint16_t *at, int dim) {
    for (int line = 0; line < dim; line += 32) __builtin_prefetch(at + line, 0, 2);
}

/* Numbers at even places, then those at odd ones: the order in which pairs of bfloat16 are taken apart. */
INLINE void split_pairs(const float *from, float *to, int dim) {
    for (int at = 0; at < dim; at += 2 * LANES)
        for (int i = 0; i < LANES; i++) to[at + i] = from[at + 2 * i], to[at + LANES + i] = from[at + 2 * i + 1];
}
INLINE void join_pairs(const float *from, float *to, int dim) {
    for (int at = 0; at < dim; at += 2 * LANES)
        for (int i = 0; i < LANES; i++) to[at + 2 * i] = from[at + i], to[at + 2 * i + 1] = from[at + LANES + i];
}

/* Scores of up to 16 tokens from `first` on, whose keys stand at `slots`. */
INLINE void score(const uint16_t *keys, const int64_t *slots, const int64_t *later, int count, const float *query, float (*scores)[KEYS],
                  int first, int heads, int dim) {
    vf sums[4][LANES];
    for (int t = 0; t < LANES; t++) {
        const uint16_t *key = keys + slots[t < count ? t : 0];
        fetch(keys + later[t], dim);
        for (int at = 0; at < dim; at += 2 * LANES) {
            vi pairs = i_load(key + at);
            vf even = f_low16(pairs), odd = f_high16(pairs);
            for (int h = 0; h < heads; h++) {
                const float *own = query + h * dim + at;
                vf sum = at ? f_fma(f_load(own), even, sums[h][t]) : f_mul(f_load(own), even);
                sums[h][t] = f_fma(f_load(own + LANES), odd, sum);
            }
        }
    }
    for (int h = 0; h < heads; h++) {
        f_store(scores[h] + first, f_sums(sums[h]));
        for (int t = count; t < LANES; t++) scores[h][first + t] = -INFINITY;
    }
}

/* Scores of one head become weights; returns what sums of older tokens are to be multiplied with. */
INLINE float soften(float *scores, int count, float *most, float *total) {
    vf greatest = f_load(scores), sum = f_zero();
    for (int t = LANES; t < count; t += LANES) greatest = f_max(greatest, f_load(scores + t));
    const float now = fmaxf(f_most(greatest), *most), less = expf(*most - now);
    for (int t = 0; t < count; t += LANES) {
        vf weight = f_exp(f_sub(f_load(scores + t), f_set(now)));
        sum = f_add(sum, weight);
        f_store(scores + t, weight);
    }
    *total = *total * less + f_sum(sum);
    *most = now;
    return less;
}

/* Take `count` tokens at `slots` into the state [heads, dim + 2] of some query heads of one key-value head. */
INLINE void take_in(const uint16_t *keys, const uint16_t *values, const int64_t *slots, const int64_t *later,
                    int count, const float *query, float *state, int heads, int dim) {
    const int vectors = dim / LANES;
    vf sums[4][MOST_DIM / LANES];
    float scores[4][KEYS];
    for (int t = 0; t < count; t += LANES)
        score(keys, slots + t, later + t, count - t < LANES ? count - t : LANES, query, scores, t, heads, dim);
    for (int h = 0; h < heads; h++) {
        float *own = state + h * (dim + 2);
        vf less = f_set(soften(scores[h], count, own + dim, own + dim + 1));
        for (int v = 0; v < vectors; v++) sums[h][v] = f_mul(f_load(own + v * LANES), less);
    }
    for (int t = 0; t < count; t++) {
        fetch(values + later[t], dim);
        for (int v = 0; v < vectors; v += 2) {
            vi pairs = i_load(values + slots[t] + v * LANES);
            vf even = f_low16(pairs), odd = f_high16(pairs);
            for (int h = 0; h < heads; h++) {
                vf weight = f_set(scores[h][t]);
                sums[h][v] = f_fma(weight, even, sums[h][v]);
                sums[h][v + 1] = f_fma(weight, odd, sums[h][v + 1]);
            }
        }
    }
    for (int h = 0; h < heads; h++)
        for (int v = 0; v < vectors; v++) f_store(state + h * (dim + 2) + v * LANES, sums[h][v]);
}

#define TAKE_IN(count, dim) take_in(keys, values, slots, later, tokens, query, state, count, dim)

/* The same for all query heads of the group, as many at once as registers hold. */
static void take_in_group(const uint16_t *keys, const uint16_t *values, const int64_t *slots, const int64_t *later,
                          int tokens, const float *query, float *state, int heads, int dim) {
    for (int taken; heads > 0; heads -= taken, query += taken * dim, state += taken * (dim + 2)) {
        taken = dim == 64 && heads < 4 ? heads : dim == 64 ? 4 : dim == 128 && heads > 1 ? 2 : 1;
        if (dim == 64 && taken == 4) TAKE_IN(4, 64);
        else if (dim == 64 && taken == 3) TAKE_IN(3, 64);
        else if (dim == 64 && taken == 2) TAKE_IN(2, 64);
        else if (dim == 64) TAKE_IN(1, 64);
        else if (dim == 128 && taken == 2) TAKE_IN(2, 128);
        else if (dim == 128) TAKE_IN(1, 128);
        else TAKE_IN(1, dim);
    }
}

/* Tokens `begin` to `end` for all heads of a row; the query is scaled, its pairs are split.
 *
 * Heads take turns over a few tokens, so that memory is read in its own order. */
static void attend(const Pages *pages, const int32_t *table, int begin, int end, const float *query, float *state) {
    const int dim = pages->dim, each = pages->heads_each;
    int64_t slots[2][KEYS];
    for (int h = 0; h < pages->kv_heads * each; h++) {
        float *own = state + h * (dim + 2);
        for (int at = 0; at < dim; at += LANES) f_store(own + at, f_zero());
        own[dim] = -INFINITY, own[dim + 1] = 0;
    }
    slots_of(pages, table, begin, end, slots[0]);
    for (int from = begin, now = 0; from < end; from += KEYS, now = !now) {
        const int count = end - from < KEYS ? end - from : KEYS;
        slots_of(pages, table, from + count < end ? from + count : from, end, slots[!now]);
        for (int head = 0; head < pages->kv_heads; head++)
            take_in_group(pages->keys + head * dim, pages->values + head * dim, slots[now], slots[!now], count,
                          query + head * each * dim, state + head * each * (dim + 2), each, dim);
    }
}

/* Parts [parts, stride] of one head to its output [dim], pairs joined again; the parts' scores become weights. */
static void join_parts(float *part, int parts, int64_t stride, int dim, float *out) {
    float most = -INFINITY, total = 0, split[MOST_DIM];
    for (int p = 0; p < parts; p++) most = fmaxf(most, part[p * stride + dim]);
    for (int p = 0; p < parts; p++) {
        float *weight = part + p * stride + dim;
        *weight = expf(*weight - most);
        total += *weight * weight[1];
    }
    for (int at = 0; at < dim; at += LANES) {
        vf sum = f_zero();
        for (int p = 0; p < parts; p++) sum = f_fma(f_set(part[p * stride + dim]), f_load(part + p * stride + at), sum);
        f_store(split + at, f_div(sum, f_set(total)));
    }
    join_pairs(split, out, dim);
}

#endif
