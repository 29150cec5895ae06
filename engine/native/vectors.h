/* Sixteen lanes of float or int32: one AVX-512 register, or two of AVX2.
 *
 * `i_dot` multiplies unsigned with signed bytes and adds them by fours. Bytes of up to 15 are exact
 * everywhere; `i_dot_wide` takes unsigned bytes of up to 255.
 */
#ifndef VECTORS_H
#define VECTORS_H

#include <immintrin.h>
#include <stdint.h>

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

typedef __m512 vf;
typedef __m512i vi;

INLINE vf f_set(float value) { return _mm512_set1_ps(value); }
INLINE vf f_load(const float *at) { return _mm512_loadu_ps(at); }
INLINE void f_store(float *at, vf v) { _mm512_storeu_ps(at, v); }
INLINE vf f_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf f_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf f_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf f_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf f_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf f_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf f_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf f_abs(vf a) { return _mm512_abs_ps(a); }
INLINE float f_sum(vf a) { return _mm512_reduce_add_ps(a); }
INLINE float f_most(vf a) { return _mm512_reduce_max_ps(a); }
INLINE int f_unordered(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; } /* has either a NaN */
INLINE vf f_two(vf x, vf y) { /* sums of neighbours but one, of both in turns */
    return _mm512_add_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));
}
INLINE vf f_four(vf x, vf y) {
    __m512d a = _mm512_castps_pd(x), b = _mm512_castps_pd(y);
    return _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) + _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
}
INLINE vf f_lanes(vf x, vf y) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
}
INLINE vf f_sums(const vf *x) { /* the sums of sixteen vectors */
    vf four[4];
    for (int i = 0; i < 4; i++)
        four[i] = f_four(f_two(x[4 * i], x[4 * i + 1]), f_two(x[4 * i + 2], x[4 * i + 3]));
    return f_lanes(f_lanes(four[0], four[1]), f_lanes(four[2], four[3]));
}
INLINE vf f_of(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE vi i_of(vf a) { return _mm512_cvtps_epi32(a); } /* to the nearest, ties to even */
INLINE vf f_half(const void *at) { return _mm512_cvtph_ps(_mm256_loadu_si256(at)); }
INLINE vf f_low16(vi a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }
INLINE vf f_high16(vi a) {
    return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32((int)0xffff0000u)));
}
INLINE vf f_power2(vi a) { /* 2^a, by its exponent */
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(a, _mm512_set1_epi32(127)), 23));
}
INLINE vi i_set(int32_t value) { return _mm512_set1_epi32(value); }
INLINE vi i_load(const void *at) { return _mm512_loadu_si512(at); }
INLINE vi i_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi i_times256(vi a) { return _mm512_slli_epi32(a, 8); }
INLINE int32_t i_sum(vi a) { return _mm512_reduce_add_epi32(a); }
INLINE vi i_low4(vi a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
INLINE vi i_high4(vi a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
INLINE void i_store8(int8_t *at, vi a) { _mm_storeu_si128((__m128i *)at, _mm512_cvtepi32_epi8(a)); }
INLINE void f_store_bf16(uint16_t *at, vf a) {
    __m512i bits = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    _mm256_storeu_si256((__m256i *)at, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}
#if defined(__AVX512VNNI__)
INLINE vi i_dot(vi sum, vi bytes, vi x) { return _mm512_dpbusd_epi32(sum, bytes, x); }
INLINE vi i_dot_wide(vi sum, vi bytes, vi x) { return _mm512_dpbusd_epi32(sum, bytes, x); }
#define PRODUCTS "AVX-512 VNNI"
#else
INLINE vi i_dot(vi sum, vi bytes, vi x) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(bytes, x), _mm512_set1_epi16(1)));
}
INLINE vi i_dot_wide(vi sum, vi bytes, vi x) { /* in two halves: the sums of 16 bits would not hold it */
    vi high = i_dot(_mm512_setzero_si512(), i_high4(bytes), x);
    return i_add(i_dot(sum, i_low4(bytes), x), _mm512_slli_epi32(high, 4));
}
#define PRODUCTS "AVX-512"
#endif

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

typedef struct { __m256 a, b; } vf;
typedef struct { __m256i a, b; } vi;

#define EACH_F(name, op) \
    INLINE vf name(vf x, vf y) { return (vf){op(x.a, y.a), op(x.b, y.b)}; }
EACH_F(f_add, _mm256_add_ps)
EACH_F(f_sub, _mm256_sub_ps)
EACH_F(f_mul, _mm256_mul_ps)
EACH_F(f_div, _mm256_div_ps)
EACH_F(f_max, _mm256_max_ps)
EACH_F(f_min, _mm256_min_ps)
#undef EACH_F
INLINE vf f_set(float value) { return (vf){_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
INLINE vf f_load(const float *at) { return (vf){_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)}; }
INLINE void f_store(float *at, vf v) {
    _mm256_storeu_ps(at, v.a);
    _mm256_storeu_ps(at + 8, v.b);
}
INLINE vf f_fma(vf x, vf y, vf z) {
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
INLINE vf f_abs(vf x) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
INLINE float f_sum(vf x) {
    __m256 both = _mm256_add_ps(x.a, x.b);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
INLINE float f_most(vf x) {
    __m256 both = _mm256_max_ps(x.a, x.b);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
INLINE int f_unordered(vf x, vf y) {
    __m256 low = _mm256_cmp_ps(x.a, y.a, _CMP_UNORD_Q), high = _mm256_cmp_ps(x.b, y.b, _CMP_UNORD_Q);
    return _mm256_movemask_ps(_mm256_or_ps(low, high));
}
INLINE __m256 eight_sums(const vf *x) {
    __m256 four[2];
    for (int i = 0; i < 2; i++) {
        const vf *from = x + 4 * i;
        __m256 low = _mm256_hadd_ps(_mm256_add_ps(from[0].a, from[0].b), _mm256_add_ps(from[1].a, from[1].b));
        __m256 high = _mm256_hadd_ps(_mm256_add_ps(from[2].a, from[2].b), _mm256_add_ps(from[3].a, from[3].b));
        four[i] = _mm256_hadd_ps(low, high);
    }
    return _mm256_add_ps(_mm256_permute2f128_ps(four[0], four[1], 0x20), _mm256_permute2f128_ps(four[0], four[1], 0x31));
}
INLINE vf f_sums(const vf *x) { return (vf){eight_sums(x), eight_sums(x + 8)}; }
INLINE vf f_of(vi x) { return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
INLINE vi i_of(vf x) { return (vi){_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
INLINE vf f_half(const void *at) {
    const __m128i *from = at;
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from + 1))};
}
INLINE vf f_low16(vi x) {
    return (vf){_mm256_castsi256_ps(_mm256_slli_epi32(x.a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(x.b, 16))};
}
INLINE vf f_high16(vi x) {
    __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    return (vf){_mm256_castsi256_ps(_mm256_and_si256(x.a, high)), _mm256_castsi256_ps(_mm256_and_si256(x.b, high))};
}
INLINE __m256 power2_of(__m256i a) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(a, _mm256_set1_epi32(127)), 23));
}
INLINE vf f_power2(vi x) { return (vf){power2_of(x.a), power2_of(x.b)}; }
INLINE vi i_set(int32_t value) { return (vi){_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
INLINE vi i_load(const void *at) {
    const __m256i *from = at;
    return (vi){_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
}
INLINE vi i_add(vi x, vi y) { return (vi){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
INLINE vi i_times256(vi x) { return (vi){_mm256_slli_epi32(x.a, 8), _mm256_slli_epi32(x.b, 8)}; }
INLINE int32_t i_sum(vi x) {
    __m256i both = _mm256_add_epi32(x.a, x.b);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
INLINE vi i_low4(vi x) {
    __m256i low = _mm256_set1_epi8(15);
    return (vi){_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low)};
}
INLINE vi i_high4(vi x) {
    __m256i low = _mm256_set1_epi8(15);
    return (vi){_mm256_and_si256(_mm256_srli_epi16(x.a, 4), low), _mm256_and_si256(_mm256_srli_epi16(x.b, 4), low)};
}
INLINE void i_store8(int8_t *at, vi x) {
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
    __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(words, words), 0xd8);
    _mm_storeu_si128((__m128i *)at, _mm256_castsi256_si128(bytes));
}
INLINE __m256i rounded_of(__m256 x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
}
INLINE void f_store_bf16(uint16_t *at, vf x) {
    __m256i words = _mm256_packus_epi32(rounded_of(x.a), rounded_of(x.b));
    _mm256_storeu_si256((__m256i *)at, _mm256_permute4x64_epi64(words, 0xd8));
}
#if defined(__AVXVNNI__)
INLINE vi i_dot(vi sum, vi bytes, vi x) {
    return (vi){_mm256_dpbusd_avx_epi32(sum.a, bytes.a, x.a), _mm256_dpbusd_avx_epi32(sum.b, bytes.b, x.b)};
}
INLINE vi i_dot_wide(vi sum, vi bytes, vi x) { return i_dot(sum, bytes, x); }
#define PRODUCTS "AVX-VNNI"
#else
INLINE __m256i dot_of(__m256i sum, __m256i bytes, __m256i x) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, x), _mm256_set1_epi16(1)));
}
INLINE vi i_dot(vi sum, vi bytes, vi x) {
    return (vi){dot_of(sum.a, bytes.a, x.a), dot_of(sum.b, bytes.b, x.b)};
}
INLINE vi i_dot_wide(vi sum, vi bytes, vi x) { /* in two halves: the sums of 16 bits would not hold it */
    vi high = i_dot(i_set(0), i_high4(bytes), x);
    high = (vi){_mm256_slli_epi32(high.a, 4), _mm256_slli_epi32(high.b, 4)};
    return i_add(i_dot(sum, i_low4(bytes), x), high);
}
#define PRODUCTS "AVX2"
#endif

#else
#error "needs AVX-512 or AVX2 with FMA and F16C"
#endif

INLINE vf f_zero(void) { return f_set(0.0f); }

/* e^x, from -87 to 88: 2^n times a polynomial of degree 6 on [-ln 2 / 2, ln 2 / 2]. */
INLINE vf f_exp(vf x) {
    x = f_min(f_max(x, f_set(-87.0f)), f_set(88.0f));
    vi n = i_of(f_mul(x, f_set(1.44269504f)));
    vf whole = f_of(n);
    vf rest = f_fma(whole, f_set(-0.693359375f), x); /* ln 2 in two parts, the first exact in products */
    rest = f_fma(whole, f_set(2.12194440e-4f), rest);
    vf sum = f_set(1.0f / 720);
    sum = f_fma(sum, rest, f_set(1.0f / 120));
    sum = f_fma(sum, rest, f_set(1.0f / 24));
    sum = f_fma(sum, rest, f_set(1.0f / 6));
    sum = f_fma(sum, rest, f_set(0.5f));
    sum = f_fma(sum, rest, f_set(1.0f));
    sum = f_fma(sum, rest, f_set(1.0f));
    return f_mul(sum, f_power2(n));
}

#endif
