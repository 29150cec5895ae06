/* A forward pass of a decoder of the Llama family over rows of several sequences, in one call.
 *
 * Threads are those that torch computes with: its OpenMP library is already in the process. They meet
 * between the parts of a layer, and share out tiles of weights or pairs of rows and heads.
 */
#include <omp.h>
#include "attention.h"
#include "matrix.h"
#include "team.h"

#define MOST_PARTS 64   /* of a row's context */
#define PART_TOKENS 128 /* at least; they depend on nothing but the row, so that its sums do not either */
#define ROW_BLOCK 64    /* rows whose bytes stay close while tiles go by */

typedef struct {
    Matrix query, key, value, out, gate, up, down;
    const float *input_norm, *post_norm, *query_norm, *key_norm; /* the last two [heads, dim] or NULL */
    uint16_t *keys, *values;                                     /* pages of the cache */
    int32_t window, rotary;                                      /* 0: all tokens are seen */
} Layer;

typedef struct {
    const Layer *layers;
    const float *norm;
    Matrix head;
    int32_t num_layers, hidden, intermediate, heads, kv_heads, dim, block_size, unused;
    float eps, scale;
} Model;

typedef struct {
    float *x;                    /* [rows, hidden], the embeddings; overwritten */
    const float *cosine, *sine;  /* [rows, dim / 2] */
    const int64_t *slots;        /* [rows], -1 writes nothing */
    const int32_t *tables;       /* [sequences, width] */
    const int32_t *sequence;     /* [rows] */
    const int32_t *context;      /* [rows], tokens seen, the row's own included */
    const int64_t *wanted;       /* [num_wanted] rows whose logits are asked for */
    float *logits;               /* [num_wanted, vocab] */
    uint8_t *space;              /* `space_bytes` */
    uint64_t *spent;             /* [PHASES] clock ticks of the first thread, added to */
    int32_t rows, width, num_wanted, threads;
} Batch;

enum { NORMS, PROJECTIONS, CACHE, ATTENTION, OUTPUT, GATED, DOWN, HEAD, PHASES };

typedef struct {
    Rows hidden, wide; /* inputs of width hidden, and of attention's or the MLP's */
    float *query, *key, *value;
    float *parts; /* [rows or threads, num_parts, heads, dim + 2] */
    int num_parts, shared; /* parts of the longest row; whether several threads take parts of one row */
} Space;

static uint8_t *cut(uint8_t **at, int64_t bytes) {
    uint8_t *taken = *at;
    *at += (bytes + 63) / 64 * 64;
    return taken;
}
static Rows rows_in(uint8_t **at, int64_t rows, int32_t inputs) {
    Rows made = {.inputs = inputs};
    made.value = (float *)cut(at, rows * inputs * 4);
    made.high = (int8_t *)cut(at, rows * inputs);
    made.low = (int8_t *)cut(at, rows * inputs);
    made.scale = (float *)cut(at, rows * (inputs / GROUP) * 4);
    made.sum = (float *)cut(at, rows * (inputs / GROUP) * 4);
    made.high_sum = (float *)cut(at, rows * (inputs / GROUP) * 4);
    return made;
}
/* Tokens of a part of a context that long. */
static int part_tokens(int tokens) {
    int part = PART_TOKENS;
    while (tokens > part * MOST_PARTS) part *= 2;
    return part;
}
static int parts_of(int tokens) {
    return (tokens + part_tokens(tokens) - 1) / part_tokens(tokens);
}
static int most_parts(const Batch *batch) {
    int most = 1;
    for (int row = 0; row < batch->rows; row++)
        if (parts_of(batch->context[row]) > most) most = parts_of(batch->context[row]);
    return most;
}
static Space space_in(const Model *model, const Batch *batch, uint8_t **at) {
    int64_t rows = batch->rows, query = (int64_t)model->heads * model->dim, key = (int64_t)model->kv_heads * model->dim;
    Space space = {.num_parts = most_parts(batch), .shared = rows < 2 * batch->threads};
    space.hidden = rows_in(at, rows, model->hidden);
    space.wide = rows_in(at, rows, query > model->intermediate ? query : model->intermediate);
    space.query = (float *)cut(at, rows * query * 4);
    space.key = (float *)cut(at, rows * key * 4);
    space.value = (float *)cut(at, rows * key * 4);
    int64_t kept = space.shared ? rows : batch->threads;
    space.parts = (float *)cut(at, kept * space.num_parts * model->heads * (model->dim + 2) * 4);
    return space;
}

int64_t space_bytes(const Model *model, const Batch *batch) {
    uint8_t *at = 0;
    space_in(model, batch, &at);
    return (int64_t)at;
}
int layer_size(void) { return sizeof(Layer); }
int model_size(void) { return sizeof(Model); }
int batch_size(void) { return sizeof(Batch); }
const char *products(void) { return PRODUCTS; }

static float inverse_rms(const float *x, int count, float eps) {
    vf sum = f_zero();
    for (int at = 0; at < count; at += LANES) sum = f_fma(f_load(x + at), f_load(x + at), sum);
    return 1.0f / sqrtf(f_sum(sum) / (float)count + eps);
}

/* RMS norm of a row, into both forms. */
static void norm_row(const float *x, const float *weight, float eps, const Rows *out, int row) {
    vf factor = f_set(inverse_rms(x, out->inputs, eps));
    float *to = out->value + (int64_t)row * out->inputs;
    for (int at = 0; at < out->inputs; at += LANES)
        f_store(to + at, f_mul(f_mul(f_load(x + at), factor), f_load(weight + at)));
    for (int group = 0; group < out->inputs / GROUP; group++) to_bytes(out, row, group);
}

/* Norm and rotary position of one head [dim]; a norm or position that is NULL is left out. */
static void turn_head(float *head, int dim, const float *norm, float eps, const float *cosine, const float *sine) {
    if (norm) {
        vf factor = f_set(inverse_rms(head, dim, eps));
        for (int at = 0; at < dim; at += LANES)
            f_store(head + at, f_mul(f_mul(f_load(head + at), factor), f_load(norm + at)));
    }
    if (!cosine) return;
    const int half = dim / 2;
    for (int at = 0; at < half; at++) {
        float left = head[at], right = head[half + at];
        head[at] = left * cosine[at] - right * sine[at];
        head[half + at] = right * cosine[at] + left * sine[at];
    }
}

static void store_tile(float *to, vf tile, int count) {
    if (count >= LANES) {
        f_store(to, tile);
        return;
    }
    float all[LANES];
    f_store(all, tile);
    memcpy(to, all, count * sizeof(float));
}

/* out [rows, outputs] = x times w, or out += it; of several matrices the tiles are shared out together. */
static void multiply(const Matrix *const *w, float *const *out, int matrices, const Rows *x, int rows, int add) {
    int total = 0;
    for (int i = 0; i < matrices; i++) total += tiles_of(w[i]);
    const Span own = share(total);
    for (int block = 0; block < rows; block += ROW_BLOCK) {
        const int last = block + ROW_BLOCK < rows ? block + ROW_BLOCK : rows;
        int first = 0;
        for (int i = 0; i < matrices; first += tiles_of(w[i]), i++) {
            int from = own.begin > first ? own.begin - first : 0;
            int to = own.end - first < tiles_of(w[i]) ? own.end - first : tiles_of(w[i]);
            for (int tile = from; tile < to; tile++) {
                int count = w[i]->outputs - tile * LANES;
                for (int row = block; row < last; row += AT_ONCE) {
                    vf sums[AT_ONCE];
                    int m = last - row < AT_ONCE ? last - row : AT_ONCE;
                    product(w[i], tile, x, row, m, sums);
                    for (int r = 0; r < m; r++) {
                        float *place = out[i] + (int64_t)(row + r) * w[i]->outputs + tile * LANES;
                        store_tile(place, add ? f_add(sums[r], f_load(place)) : sums[r], count);
                    }
                }
            }
        }
    }
}

/* SiLU(gate) * up for groups of 32, whose bytes are made at once. */
static void gated(const Layer *layer, const Rows *x, const Rows *out, int rows) {
    const Span own = share(layer->gate.outputs / GROUP);
    for (int block = 0; block < rows; block += ROW_BLOCK) {
        const int last = block + ROW_BLOCK < rows ? block + ROW_BLOCK : rows;
        for (int group = own.begin; group < own.end; group++) {
            for (int row = block; row < last; row += AT_ONCE) {
                vf gate[AT_ONCE], up[AT_ONCE];
                int m = last - row < AT_ONCE ? last - row : AT_ONCE;
                for (int half = 0; half < 2; half++) {
                    product(&layer->gate, 2 * group + half, x, row, m, gate);
                    product(&layer->up, 2 * group + half, x, row, m, up);
                    for (int r = 0; r < m; r++) {
                        vf open = f_div(gate[r], f_add(f_set(1.0f), f_exp(f_sub(f_zero(), gate[r]))));
                        float *place = out->value + (int64_t)(row + r) * out->inputs + group * GROUP + half * LANES;
                        f_store(place, f_mul(open, up[r]));
                    }
                }
                for (int r = 0; r < m; r++) to_bytes(out, row + r, group);
            }
        }
    }
}

/* Norm, rotate and scale a row's queries; rotate its keys, and write keys and values to their slot. */
static void place_row(const Model *model, const Layer *layer, const Batch *batch, const Space *space, int row) {
    const int dim = model->dim;
    const float *cosine = layer->rotary ? batch->cosine + (int64_t)row * (dim / 2) : NULL;
    const float *sine = batch->sine + (int64_t)row * (dim / 2);
    for (int head = 0; head < model->heads; head++) {
        float *query = space->query + ((int64_t)row * model->heads + head) * dim, scaled[MOST_DIM];
        turn_head(query, dim, layer->query_norm ? layer->query_norm + head * dim : NULL, model->eps, cosine, sine);
        for (int at = 0; at < dim; at += LANES) f_store(scaled + at, f_mul(f_load(query + at), f_set(model->scale)));
        split_pairs(scaled, query, dim);
    }
    for (int head = 0; head < model->kv_heads; head++) {
        const int64_t at = ((int64_t)row * model->kv_heads + head) * dim;
        turn_head(space->key + at, dim, layer->key_norm ? layer->key_norm + head * dim : NULL, model->eps, cosine, sine);
        if (batch->slots[row] < 0) continue;
        const int64_t to = (batch->slots[row] * model->kv_heads + head) * dim;
        for (int v = 0; v < dim; v += LANES) {
            f_store_bf16(layer->keys + to + v, f_load(space->key + at + v));
            f_store_bf16(layer->values + to + v, f_load(space->value + at + v));
        }
    }
}

static int span_of(const Layer *layer, const Batch *batch, int row) {
    return layer->window && batch->context[row] > layer->window ? layer->window : batch->context[row];
}

/* One part of a row's context, if it has so many. */
static void attend_part(const Model *model, const Layer *layer, const Batch *batch, const Space *space, int row,
                        int part, float *parts) {
    const int dim = model->dim, end = batch->context[row], span = span_of(layer, batch, row);
    const Pages pages = {layer->keys, layer->values, model->block_size, model->kv_heads, dim, model->heads / model->kv_heads};
    const int from = end - span + part * part_tokens(span), to = from + part_tokens(span);
    if (from < end)
        attend(&pages, batch->tables + (int64_t)batch->sequence[row] * batch->width, from, to < end ? to : end,
               space->query + (int64_t)row * model->heads * dim, parts + (int64_t)part * model->heads * (dim + 2));
}

/* A row's parts joined, and its bytes. */
static void join_row(const Model *model, const Layer *layer, const Batch *batch, const Rows *attended, int row,
                     float *parts) {
    const int64_t stride = (int64_t)model->heads * (model->dim + 2);
    const int count = parts_of(span_of(layer, batch, row));
    float *to = attended->value + (int64_t)row * attended->inputs;
    for (int head = 0; head < model->heads; head++)
        join_parts(parts + head * (model->dim + 2), count, stride, model->dim, to + head * model->dim);
    for (int group = 0; group < attended->inputs / GROUP; group++) to_bytes(attended, row, group);
}

/* Attention of all rows: of few rows the parts are shared out, of many the rows. */
static void attend_rows(Team *team, const Model *model, const Layer *layer, const Batch *batch, const Space *space,
                        const Rows *attended) {
    const int rows = batch->rows, count = space->num_parts;
    const int64_t each = (int64_t)count * model->heads * (model->dim + 2);
    if (space->shared) {
        for (int item; (item = next_piece(team)) < rows * count;)
            attend_part(model, layer, batch, space, item / count, item % count, space->parts + item / count * each);
        meet(team);
        SHARE_OUT(row, rows) join_row(model, layer, batch, attended, row, space->parts + row * each);
    } else {
        float *parts = space->parts + omp_get_thread_num() * each;
        for (int row; (row = next_piece(team)) < rows;) {
            for (int part = 0; part < count; part++) attend_part(model, layer, batch, space, row, part, parts);
            join_row(model, layer, batch, attended, row, parts);
        }
    }
}

/* Book the ticks since the last call on a phase: the first thread's, behind a meeting of all. */
INLINE uint64_t lap(const Batch *batch, int phase, uint64_t since) {
    if (omp_get_thread_num()) return 0;
    uint64_t now = __rdtsc();
    batch->spent[phase] += now - since;
    return now;
}

static void run_layer(Team *team, const Model *model, const Layer *layer, const Batch *batch, const Space *space) {
    const int rows = batch->rows;
    uint64_t since = __rdtsc();
    Rows attended = space->wide, gate = space->wide;
    attended.inputs = model->heads * model->dim;
    gate.inputs = model->intermediate;
    const Matrix *projections[3] = {&layer->query, &layer->key, &layer->value};
    float *targets[3] = {space->query, space->key, space->value};
    const Matrix *out = &layer->out, *down = &layer->down;
    float *x = batch->x;
    SHARE_OUT(row, rows)
        norm_row(x + (int64_t)row * model->hidden, layer->input_norm, model->eps, &space->hidden, row);
    meet(team);
    since = lap(batch, NORMS, since);
    multiply(projections, targets, 3, &space->hidden, rows, 0);
    meet(team);
    since = lap(batch, PROJECTIONS, since);
    SHARE_OUT(row, rows) place_row(model, layer, batch, space, row);
    meet(team);
    since = lap(batch, CACHE, since);
    attend_rows(team, model, layer, batch, space, &attended);
    meet(team);
    since = lap(batch, ATTENTION, since);
    multiply(&out, &x, 1, &attended, rows, 1);
    meet(team);
    since = lap(batch, OUTPUT, since);
    SHARE_OUT(row, rows)
        norm_row(x + (int64_t)row * model->hidden, layer->post_norm, model->eps, &space->hidden, row);
    meet(team);
    since = lap(batch, NORMS, since);
    gated(layer, &space->hidden, &gate, rows);
    meet(team);
    since = lap(batch, GATED, since);
    multiply(&down, &x, 1, &gate, rows, 1);
    meet(team);
    lap(batch, DOWN, since);
}

void forward(const Model *model, const Batch *batch) {
    uint8_t *at = batch->space;
    const Space space = space_in(model, batch, &at);
    Team team = {0};
#pragma omp parallel num_threads(batch->threads)
    {
        for (int layer = 0; layer < model->num_layers; layer++)
            run_layer(&team, model, model->layers + layer, batch, &space);
        uint64_t since = __rdtsc();
        SHARE_OUT(n, batch->num_wanted)
            norm_row(batch->x + batch->wanted[n] * model->hidden, model->norm, model->eps, &space.hidden, n);
        meet(&team);
        const Matrix *head = &model->head;
        float *logits = batch->logits;
        multiply(&head, &logits, 1, &space.hidden, batch->num_wanted, 0);
        meet(&team);
        lap(batch, HEAD, since);
    }
}
