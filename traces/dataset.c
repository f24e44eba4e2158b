#include "traces/dataset.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "traces/filter.h"
#include "traces/h5.h"

/* Chunks of sound traces are some hundred kilobytes; one that unpacks to more than this is not worth believing. */
static const size_t largest_chunk_bytes = (size_t)1 << 28;

#define REFUSE(dataset, ...) REFUSE_(dataset, __VA_ARGS__, "")
#define REFUSE_(dataset, format, ...)                                                                                  \
    TW_FAIL(err, TW_E_INPUT, "trace '%s': '%s' " format "%s", (dataset)->file_path, (dataset)->path, __VA_ARGS__)

/* ---- opening: everything is looked at before any data is read --------------------------------------------------- */

/* True when the path exists and every part of it is a hard link: no data from other files. */
static tw_status find(bool *found, const struct tw_dataset *dataset, hid_t file, struct tw_error *err) {
    char part[64];
    const size_t length = strlen(dataset->path);
    assert(length < sizeof part);
    *found = false;
    for (size_t end = 1; end <= length; end++) {
        if (end < length && dataset->path[end] != '/') continue;
        memcpy(part, dataset->path, end);
        part[end] = '\0';
        const htri_t exists = H5Lexists(file, part, H5P_DEFAULT);
        if (exists < 0) return REFUSE(dataset, "cannot be found: %s", tw_h5_reason());
        if (!exists) return TW_OK;
        H5L_info_t link;
        if (H5Lget_info(file, part, &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD)
            return REFUSE(dataset, "is a link to somewhere else, expected the data itself");
    }
    *found = true;
    return TW_OK;
}

static bool examine_real(hid_t type, size_t size) {
    size_t sign, exponent, exponent_size, mantissa, mantissa_size;
    if (H5Tget_fields(type, &sign, &exponent, &exponent_size, &mantissa, &mantissa_size) < 0) return false;
    const size_t bias = H5Tget_ebias(type);
    if (mantissa != 0 || exponent != mantissa_size || sign != 8 * size - 1 || H5Tget_norm(type) != H5T_NORM_IMPLIED)
        return false;
    return (size == 2 && mantissa_size == 10 && exponent_size == 5 && bias == 15) ||
           (size == 4 && mantissa_size == 23 && exponent_size == 8 && bias == 127);
}

static tw_status examine_type(struct tw_dataset *dataset, bool real, struct tw_error *err) {
    const hid_t type = H5Dget_type(dataset->id);
    hid_t base = type;
    H5T_class_t class = H5Tget_class(type);
    if (class == H5T_ENUM && !real) { /* how numpy's bool is stored */
        base = H5Tget_super(type);
        class = H5Tget_class(base);
    }
    struct tw_element *const element = &dataset->element;
    *element = (struct tw_element){
        .real = real,
        .size = H5Tget_size(base),
        .is_signed = !real && class == H5T_INTEGER && H5Tget_sign(base) == H5T_SGN_2,
        .big_endian = H5Tget_order(base) == H5T_ORDER_BE,
    };
    const bool order = H5Tget_order(base) == H5T_ORDER_LE || element->big_endian || element->size == 1;
    bool sound = class == (real ? H5T_FLOAT : H5T_INTEGER) && order && H5Tget_precision(base) == 8 * element->size &&
                 H5Tget_offset(base) == 0;
    if (sound && real) sound = examine_real(base, element->size);
    if (sound && !real) sound = element->size == 1 || element->size == 2 || element->size == 4 || element->size == 8;
    if (base != type) H5Tclose(base);
    H5Tclose(type);
    if (!sound) return REFUSE(dataset, "has a type that is no %s", real ? "16 or 32 bit float" : "integer");
    return TW_OK;
}

static tw_status examine_space(struct tw_dataset *dataset, unsigned rank, struct tw_error *err) {
    const hid_t space = H5Dget_space(dataset->id);
    const int found = H5Sget_simple_extent_type(space) == H5S_SIMPLE ? H5Sget_simple_extent_ndims(space) : 0;
    hsize_t extent[H5S_MAX_RANK] = {0};
    if (found == (int)rank) H5Sget_simple_extent_dims(space, extent, NULL);
    H5Sclose(space);
    if (found != (int)rank) return REFUSE(dataset, "has rank %d, expected %u", found, rank);
    dataset->rank = rank;
    for (unsigned d = 0; d < rank; d++) {
        if (extent[d] > INT32_MAX) return REFUSE(dataset, "has an extent of %llu", (unsigned long long)extent[d]);
        dataset->extent[d] = (size_t)extent[d];
    }
    return TW_OK;
}

static tw_status examine_filters(struct tw_dataset *dataset, hid_t plan, struct tw_error *err) {
    const int n_filters = H5Pget_nfilters(plan);
    if (n_filters < 0) return REFUSE(dataset, "has unreadable filters: %s", tw_h5_reason());
    for (int i = 0; i < n_filters; i++) {
        unsigned flags, config, values[8] = {0};
        size_t n_values = 8;
        const H5Z_filter_t id = H5Pget_filter2(plan, (unsigned)i, &flags, &n_values, values, 0, NULL, &config);
        if (id == H5Z_FILTER_SHUFFLE && i == 0) {
            if (n_values && values[0] != dataset->element.size)
                return REFUSE(dataset, "is shuffled by %u bytes, its elements have %zu", values[0],
                              dataset->element.size);
            dataset->shuffled = true;
        } else if (id == H5Z_FILTER_DEFLATE && i == n_filters - 1) {
            dataset->compression = TW_DEFLATED;
        } else if (id == TW_FILTER_ZSTD && i == n_filters - 1) {
            dataset->compression = TW_ZSTD;
        } else {
            return REFUSE(dataset, "uses filter %d, accepted are shuffle, then deflate or zstd (32015)", (int)id);
        }
    }
    return TW_OK;
}

static tw_status examine_chunked(struct tw_dataset *dataset, hid_t plan, struct tw_error *err) {
    hsize_t chunk[TW_DATASET_MAX_RANK] = {0};
    dataset->chunked = true;
    if (H5Pget_chunk(plan, (int)dataset->rank, chunk) != (int)dataset->rank)
        return REFUSE(dataset, "has unreadable chunks: %s", tw_h5_reason());
    dataset->chunk_elements = 1;
    for (unsigned d = 0; d < dataset->rank; d++) {
        dataset->chunk[d] = (size_t)chunk[d];
        if (!tw_mul_size(&dataset->chunk_elements, dataset->chunk_elements, dataset->chunk[d]) ||
            !tw_mul_size(&dataset->chunk_bytes, dataset->chunk_elements, dataset->element.size) ||
            dataset->chunk_bytes == 0 || dataset->chunk_bytes > largest_chunk_bytes)
            return REFUSE(dataset, "has chunks of an implausible size");
    }
    return examine_filters(dataset, plan, err);
}

static tw_status examine_contiguous(struct tw_dataset *dataset, hid_t plan, struct tw_error *err) {
    size_t bytes = dataset->element.size;
    for (unsigned d = 0; d < dataset->rank; d++) {
        dataset->chunk[d] = d ? dataset->extent[d] : 1;
        if (!tw_mul_size(&bytes, bytes, dataset->extent[d])) return REFUSE(dataset, "has an implausible size");
    }
    if (H5Pget_external_count(plan) != 0) return REFUSE(dataset, "has its data in another file");
    if (bytes == 0) return TW_OK;
    const haddr_t offset = H5Dget_offset(dataset->id);
    if (offset == HADDR_UNDEF) {
        H5Eclear2(H5E_DEFAULT);
        return REFUSE(dataset, "has no data");
    }
    if (offset > dataset->file_size || bytes > dataset->file_size - offset)
        return REFUSE(dataset, "lies beyond the end of the file");
    return TW_OK;
}

static tw_status examine(struct tw_dataset *dataset, unsigned rank, bool real, struct tw_error *err) {
    TW_TRY(examine_space(dataset, rank, err));
    TW_TRY(examine_type(dataset, real, err));
    const hid_t plan = H5Dget_create_plist(dataset->id);
    if (plan < 0) return REFUSE(dataset, "has an unreadable layout: %s", tw_h5_reason());
    const H5D_layout_t layout = H5Pget_layout(plan);
    const tw_status status = layout == H5D_CHUNKED      ? examine_chunked(dataset, plan, err)
                             : layout == H5D_CONTIGUOUS ? examine_contiguous(dataset, plan, err)
                                                        : REFUSE(dataset, "is stored neither contiguous nor chunked");
    H5Pclose(plan);
    return status;
}

tw_status tw_dataset_open(struct tw_dataset *dataset, hid_t file, const char *path, unsigned rank, bool real,
                          const char *file_path, uint64_t file_size, _Atomic uint64_t *unpacked, struct tw_error *err) {
    assert(rank >= 1 && rank <= TW_DATASET_MAX_RANK);
    *dataset = (struct tw_dataset){
        .id = -1, .path = path, .file_path = file_path, .file_size = file_size, .unpacked = unpacked};
    tw_h5_enter_reading(dataset->file_path);
    bool found = false;
    tw_status status = find(&found, dataset, file, err);
    if (status == TW_OK && found) {
        dataset->id = H5Dopen2(file, path, H5P_DEFAULT);
        status = dataset->id < 0 ? REFUSE(dataset, "cannot be opened as a dataset: %s", tw_h5_reason())
                                 : examine(dataset, rank, real, err);
    }
    if (status != TW_OK) tw_dataset_close(dataset);
    tw_h5_leave();
    return status;
}

void tw_dataset_close(struct tw_dataset *dataset) {
    if (dataset->id < 0) return;
    tw_h5_enter_reading(dataset->file_path);
    H5Dclose(dataset->id);
    tw_h5_leave();
    dataset->id = -1;
}

/* ---- which chunks are there ---------------------------------------------------------------------------------------
 */

/* Chunks that a range of `count` from `start` touches along dimension d. */
static size_t chunks_along(const struct tw_dataset *dataset, unsigned d, size_t start, size_t count) {
    if (count == 0) return 0;
    return (start + count - 1) / dataset->chunk[d] - start / dataset->chunk[d] + 1;
}

tw_status tw_dataset_check_chunks(const struct tw_dataset *dataset, struct tw_error *err) {
    if (!dataset->chunked) return TW_OK;
    size_t needed = 1;
    bool sound = true;
    for (unsigned d = 0; d < dataset->rank; d++)
        sound = sound && tw_mul_size(&needed, needed, chunks_along(dataset, d, 0, dataset->extent[d]));
    if (!sound) return REFUSE(dataset, "has an implausible number of chunks");
    if (needed == 0) return TW_OK;
    hsize_t there = 0;
    tw_h5_enter_reading(dataset->file_path);
    const hid_t space = H5Dget_space(dataset->id);
    const bool counted = H5Dget_num_chunks(dataset->id, space, &there) >= 0;
    H5Sclose(space);
    const tw_status status = counted ? TW_OK : REFUSE(dataset, "has an unreadable index of chunks: %s", tw_h5_reason());
    tw_h5_leave();
    if (status == TW_OK && there < needed)
        return REFUSE(dataset, "lacks data: %llu of %zu chunks are there", (unsigned long long)there, needed);
    return status;
}

static bool stored(const struct tw_dataset *dataset, const size_t *start) {
    hsize_t at[TW_DATASET_MAX_RANK], size = 0;
    for (unsigned d = 0; d < dataset->rank; d++) at[d] = start[d];
    if (H5Dget_chunk_storage_size(dataset->id, at, &size) < 0) H5Eclear2(H5E_DEFAULT);
    return size > 0;
}

/* Steps through the chunks of a box, row major; `at` and `first` are chunk starts. False when all were visited. */
static bool next_chunk(const struct tw_dataset *dataset, size_t *at, const size_t *first, const size_t *end) {
    for (unsigned d = dataset->rank; d-- > 0;) {
        at[d] += dataset->chunk[d];
        if (at[d] < end[d]) return true;
        at[d] = first[d];
    }
    return false;
}

size_t tw_dataset_stored_rows(const struct tw_dataset *dataset, size_t n_rows) {
    if (!dataset->chunked) return n_rows;
    size_t at[TW_DATASET_MAX_RANK] = {0}, end[TW_DATASET_MAX_RANK] = {0};
    const size_t first[TW_DATASET_MAX_RANK] = {0};
    for (unsigned d = 0; d < dataset->rank; d++) end[d] = dataset->extent[d];
    end[0] = tw_min_size(end[0], n_rows);
    for (unsigned d = 0; d < dataset->rank; d++)
        if (end[d] == 0) return 0;
    tw_h5_enter_reading(dataset->file_path);
    size_t rows = end[0];
    do {
        if (!stored(dataset, at)) {
            rows = at[0];
            break;
        }
    } while (next_chunk(dataset, at, first, end));
    tw_h5_leave();
    return rows;
}

/* ---- raw chunks ---------------------------------------------------------------------------------------------------
 */

static tw_status grow(void **memory, size_t *capacity, size_t needed, size_t size, const struct tw_dataset *dataset,
                      struct tw_error *err) {
    if (needed <= *capacity) return TW_OK;
    const size_t wanted = tw_max_size(needed, *capacity + *capacity / 2);
    size_t bytes;
    void *const larger = tw_mul_size(&bytes, wanted, size) ? realloc(*memory, bytes) : NULL;
    if (!larger)
        return TW_FAIL(err, TW_E_MEMORY, "trace '%s': out of memory for %zu bytes of '%s'", dataset->file_path,
                       wanted * size, dataset->path);
    *memory = larger;
    *capacity = wanted;
    return TW_OK;
}

static tw_status read_contiguous(struct tw_box *box, struct tw_error *err) {
    const struct tw_dataset *const dataset = box->dataset;
    hsize_t start[TW_DATASET_MAX_RANK], count[TW_DATASET_MAX_RANK], n = 1;
    for (unsigned d = 0; d < dataset->rank; d++) {
        start[d] = box->start[d];
        count[d] = box->count[d];
        n *= count[d];
    }
    box->n_bytes = (size_t)n * dataset->element.size; /* inside the extent, whose bytes were checked against the file */
    TW_TRY(grow((void **)&box->bytes, &box->capacity, box->n_bytes, 1, dataset, err));
    const hid_t type = H5Dget_type(dataset->id), from = H5Dget_space(dataset->id), to = H5Screate_simple(1, &n, NULL);
    H5Sselect_hyperslab(from, H5S_SELECT_SET, start, NULL, count, NULL);
    const herr_t failed = H5Dread(dataset->id, type, to, from, H5P_DEFAULT, box->bytes);
    const tw_status status = failed < 0 ? REFUSE(dataset, "cannot be read: %s", tw_h5_reason()) : TW_OK;
    H5Sclose(to);
    H5Sclose(from);
    H5Tclose(type);
    return status;
}

static tw_status read_piece(struct tw_box *box, const size_t *at, struct tw_error *err) {
    const struct tw_dataset *const dataset = box->dataset;
    hsize_t offset[TW_DATASET_MAX_RANK], size = 0;
    for (unsigned d = 0; d < dataset->rank; d++) offset[d] = at[d];
    if (H5Dget_chunk_storage_size(dataset->id, offset, &size) < 0)
        return REFUSE(dataset, "cannot be read at row %zu: %s", at[0], tw_h5_reason());
    if (size == 0) return REFUSE(dataset, "has no data at row %zu", at[0]);
    if (size > dataset->file_size) return REFUSE(dataset, "has a chunk larger than the file at row %zu", at[0]);
    TW_TRY(grow((void **)&box->pieces, &box->pieces_capacity, box->n_pieces + 1, sizeof *box->pieces, dataset, err));
    TW_TRY(grow((void **)&box->bytes, &box->capacity, box->n_bytes + (size_t)size, 1, dataset, err));
    struct tw_piece *const piece = &box->pieces[box->n_pieces];
    *piece = (struct tw_piece){.offset = box->n_bytes, .size = (size_t)size};
    memcpy(piece->start, at, dataset->rank * sizeof *at);
    if (H5Dread_chunk(dataset->id, H5P_DEFAULT, offset, &piece->skipped, box->bytes + box->n_bytes) < 0)
        return REFUSE(dataset, "cannot be read at row %zu: %s", at[0], tw_h5_reason());
    box->n_bytes += (size_t)size;
    box->n_pieces++;
    return TW_OK;
}

static tw_status read_chunked(struct tw_box *box, struct tw_error *err) {
    const struct tw_dataset *const dataset = box->dataset;
    size_t first[TW_DATASET_MAX_RANK], at[TW_DATASET_MAX_RANK], end[TW_DATASET_MAX_RANK];
    for (unsigned d = 0; d < dataset->rank; d++) {
        at[d] = first[d] = box->start[d] / dataset->chunk[d] * dataset->chunk[d];
        end[d] = box->start[d] + box->count[d];
    }
    do TW_TRY(read_piece(box, at, err));
    while (next_chunk(dataset, at, first, end));
    return TW_OK;
}

tw_status tw_box_read(struct tw_box *box, const struct tw_dataset *dataset, const size_t *start, const size_t *count,
                      struct tw_error *err) {
    box->dataset = dataset;
    box->n_bytes = box->n_pieces = 0;
    bool empty = false;
    for (unsigned d = 0; d < dataset->rank; d++) {
        assert(start[d] <= dataset->extent[d] && count[d] <= dataset->extent[d] - start[d]);
        box->start[d] = start[d];
        box->count[d] = count[d];
        empty = empty || count[d] == 0;
    }
    if (empty) return TW_OK;
    tw_h5_enter_reading(dataset->file_path);
    const tw_status status = dataset->chunked ? read_chunked(box, err) : read_contiguous(box, err);
    tw_h5_leave();
    return status;
}

void tw_box_release(struct tw_box *box) {
    free(box->bytes);
    free(box->pieces);
    *box = (struct tw_box){0};
}
