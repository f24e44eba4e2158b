#include "engine/backend/cpu/pack.h"

#include <string.h>

#include "base/half.h"

static size_t n_rows_of(const struct tw_cpu_pack *pack) {
    size_t n = 0;
    for (size_t i = 0; i < pack->n_matrices; i++) n += pack->matrices[i]->n_rows;
    return n;
}

size_t tw_cpu_pack_tasks(const struct tw_cpu_pack *pack) {
    return (n_rows_of(pack) + TW_CPU_PACK_ROWS - 1) / TW_CPU_PACK_ROWS;
}

/* The stored row that stands `row` rows below the top of the stack; NULL behind the last. */
static const uint8_t *find_row(const struct tw_cpu_pack *pack, size_t row, enum tw_type *type) {
    for (size_t i = 0; i < pack->n_matrices; i++) {
        const struct tw_matrix *m = pack->matrices[i];
        if (row < m->n_rows) {
            *type = m->type;
            return m->data + row * m->row_bytes;
        }
        row -= m->n_rows;
    }
    return NULL;
}

static void expand(const struct tw_cpu_common *common, float *out, const uint8_t *row, enum tw_type type, size_t n) {
    tw_cpu_expand_fn *fast = common->expand[type];
    if (fast)
        fast(out, row, n);
    else
        tw_type_traits(type)->dequantise(out, row, n);
}

#define PIECE 256 /* columns at a time: a multiple of every block */

/* Any types, any rows missing: through float32, a piece of each row at a time. */
static void pack_generic(const struct tw_cpu_pack *pack, char *out, const uint8_t *const *rows,
                         const enum tw_type *types, size_t n_columns) {
    float piece[16][PIECE];
    const size_t step = pack->bf16 ? 32 : 16, n_padded = (n_columns + step - 1) / step * step;
    for (size_t at = 0; at < n_padded; at += PIECE) {
        const size_t n = n_columns - at < PIECE ? n_columns - at : PIECE;
        const size_t n_out = n_padded - at < PIECE ? n_padded - at : PIECE;
        memset(piece, 0, sizeof piece);
        for (size_t r = 0; r < 16; r++)
            if (rows[r])
                expand(pack->common, piece[r], rows[r] + tw_type_row_bytes(tw_type_traits(types[r]), at), types[r], n);
        for (size_t i = 0; i < n_out; i += pack->bf16 ? 2 : 1) {
            if (pack->bf16) {
                uint16_t *to = (uint16_t *)(void *)(out + (at + i) / 2 * 256);
                for (size_t r = 0; r < 16; r++) {
                    to[2 * r] = tw_bf16_from_float(piece[r][i]);
                    to[2 * r + 1] = tw_bf16_from_float(piece[r][i + 1]);
                }
            } else {
                float *to = (float *)(void *)(out + (at + i) * 256);
                for (size_t r = 0; r < 16; r++) to[r] = piece[r][i];
            }
        }
    }
}

void tw_cpu_pack_run(const struct tw_cpu_pack *pack, size_t task) {
    const size_t n_columns = pack->matrices[0]->n_columns, first = task * TW_CPU_PACK_ROWS;
    if (!pack->packed) {
        for (size_t r = first; r < first + TW_CPU_PACK_ROWS; r++) {
            enum tw_type type;
            const uint8_t *row = find_row(pack, r, &type);
            if (row) expand(pack->common, (float *)(void *)pack->out + r * n_columns, row, type, n_columns);
        }
        return;
    }
    const size_t step = pack->bf16 ? 32 : 16;
    const size_t dwords = (n_columns + step - 1) / step * 16; /* of a row */
    char *column = pack->out + task * dwords * 256;
    for (size_t quarter = 0; quarter < 4; quarter++) {
        const uint8_t *rows[16];
        enum tw_type types[16] = {0};
        bool same = true;
        for (size_t r = 0; r < 16; r++) {
            rows[r] = find_row(pack, first + quarter * 16 + r, &types[r]);
            same = same && rows[r] && types[r] == types[0];
        }
        tw_cpu_pack_fn *fast = NULL;
        if (same) fast = (pack->bf16 ? pack->common->pack_bf16 : pack->common->pack_f32)[types[0]];
        if (fast)
            fast(column + quarter * 64, rows, n_columns);
        else
            pack_generic(pack, column + quarter * 64, rows, types, n_columns);
    }
}
