/* Threads that share work out and meet between its parts, hundreds of times a pass.
 *
 * A meeting is a microsecond away while all of them run. Where another program has taken the core of one, those
 * who wait go on looking, and let others have their core meanwhile: to sleep and be woken takes longer than
 * such programs need it.
 */
#ifndef TEAM_H
#define TEAM_H

#include <immintrin.h>
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#define SPINS 20000 /* a millisecond or less; then others may have the core */

typedef struct {
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_int meetings;
    _Alignas(64) atomic_int taken; /* pieces since the last meeting */
} Team;

/* Wait until all threads of the team are here. What they wrote before is seen by all afterwards. */
static inline void meet(Team *team) {
    const int all = omp_get_num_threads();
    if (all == 1) {
        atomic_store_explicit(&team->taken, 0, memory_order_relaxed);
        return;
    }
    const int met = atomic_load_explicit(&team->meetings, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == all) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&team->taken, 0, memory_order_relaxed);
        atomic_store_explicit(&team->meetings, met + 1, memory_order_release);
        return;
    }
    for (int waited = 0; atomic_load_explicit(&team->meetings, memory_order_acquire) == met; waited++) {
        if (waited < SPINS) _mm_pause();
        else sched_yield();
    }
}

/* The next piece that nobody has taken since the last meeting. */
static inline int next_piece(Team *team) {
    return atomic_fetch_add_explicit(&team->taken, 1, memory_order_relaxed);
}

typedef struct { int begin, end; } Span;

/* This thread's share of `count` pieces. */
static inline Span share(int count) {
    const int threads = omp_get_num_threads(), thread = omp_get_thread_num();
    return (Span){(int)((int64_t)count * thread / threads), (int)((int64_t)count * (thread + 1) / threads)};
}

#define SHARE_OUT(index, count) for (int index = share(count).begin; index < share(count).end; index++)

#endif
