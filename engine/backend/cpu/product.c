#include "engine/backend/cpu/product.h"

#include <dnnl.h>
#include <omp.h>
#include <stdlib.h>

#include "base/checked.h"
#include "engine/backend/cpu/sizes.h"

#if DNNL_VERSION_MAJOR != 2
#error "the cpu backend is written for oneDNN 2.x (Debian: libdnnl-dev)"
#endif

struct tw_cpu_products {
    dnnl_engine_t engine;
    size_t n_threads;
    dnnl_stream_t *stream; /* [n_threads] */
};

enum { X, WEIGHTS, BIAS, Y, SCRATCH, N_OPERANDS };
static const int argument_of[N_OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST,
                                            DNNL_ARG_SCRATCHPAD};

struct tw_cpu_product {
    const struct tw_cpu_products *products;
    dnnl_primitive_t primitive;
    bool bias, packed;
    dnnl_memory_t (*memory)[N_OPERANDS]; /* [n_threads] */
};

static tw_status failed(struct tw_error *err, dnnl_status_t status, const char *what) {
    return TW_FAIL(err, status == dnnl_out_of_memory ? TW_E_MEMORY : TW_E_UNSUPPORTED, "oneDNN: %s failed (status %d)",
                   what, (int)status);
}

static dnnl_cpu_isa_t isa_of(enum tw_cpu_level level) {
    switch (level) {
    case TW_CPU_PORTABLE: return dnnl_cpu_isa_sse41;
    case TW_CPU_AVX2: return dnnl_cpu_isa_avx2;
    case TW_CPU_AVX512: return dnnl_cpu_isa_avx512_core;
    case TW_CPU_AVX512BF16: return dnnl_cpu_isa_avx512_core_bf16;
    default: return dnnl_cpu_isa_all;
    }
}

static void hold_to(enum tw_cpu_level level) { (void)dnnl_set_max_cpu_isa(isa_of(level)); }

tw_status tw_cpu_products_create(struct tw_cpu_products **products, enum tw_cpu_level level, size_t n_threads,
                                 struct tw_error *err) {
    *products = NULL;
    hold_to(level);
    struct tw_cpu_products *p = calloc(1, sizeof *p);
    if (p) p->stream = calloc(n_threads, sizeof *p->stream);
    if (!p || !p->stream) {
        free(p);
        return TW_FAIL(err, TW_E_MEMORY, "out of memory: products");
    }
    p->n_threads = n_threads;
    dnnl_status_t status = dnnl_engine_create(&p->engine, dnnl_cpu, 0);
    for (size_t i = 0; i < n_threads && status == dnnl_success; i++)
        status = dnnl_stream_create(&p->stream[i], p->engine, dnnl_stream_default_flags);
    if (status != dnnl_success) {
        tw_cpu_products_free(p);
        return failed(err, status, "making an engine");
    }
    *products = p;
    return TW_OK;
}

void tw_cpu_products_free(struct tw_cpu_products *products) {
    if (!products) return;
    for (size_t i = 0; i < products->n_threads; i++)
        if (products->stream[i]) dnnl_stream_destroy(products->stream[i]);
    if (products->engine) dnnl_engine_destroy(products->engine);
    free(products->stream);
    free(products);
}

/* Is it BA16a64b (float32) or BA16a64b2a (bf16), column blocks outermost, as pack.h says? */
static bool is_packed(const dnnl_memory_desc_t *weights, bool bf16) {
    dnnl_memory_desc_t wanted;
    return dnnl_memory_desc_init_by_tag(&wanted, 2, weights->dims, weights->data_type,
                                        bf16 ? dnnl_BA16a64b2a : dnnl_BA16a64b) == dnnl_success &&
           dnnl_memory_desc_equal(weights, &wanted);
}

static dnnl_status_t describe(dnnl_primitive_desc_t *description, dnnl_engine_t engine,
                              const struct tw_cpu_product_shape *shape, dnnl_format_tag_t weights_tag) {
    const dnnl_data_type_t type = shape->bf16 ? dnnl_bf16 : dnnl_f32;
    const dnnl_dims_t x_dims = {(dnnl_dim_t)shape->block_rows, (dnnl_dim_t)shape->n_columns};
    const dnnl_dims_t weights_dims = {(dnnl_dim_t)shape->n_columns, (dnnl_dim_t)shape->n_rows};
    const dnnl_dims_t y_dims = {(dnnl_dim_t)shape->block_rows, (dnnl_dim_t)shape->n_rows};
    const dnnl_dims_t bias_dims = {1, (dnnl_dim_t)shape->n_rows};
    dnnl_memory_desc_t x, weights, bias, y;
    dnnl_matmul_desc_t operation;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t after = NULL;
    *description = NULL;
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(&x, 2, x_dims, type, dnnl_ab);
    if (status == dnnl_success) status = dnnl_memory_desc_init_by_tag(&weights, 2, weights_dims, type, weights_tag);
    if (status == dnnl_success)
        status = dnnl_memory_desc_init_by_tag(&y, 2, y_dims, shape->float_output ? dnnl_f32 : type, dnnl_ab);
    if (status == dnnl_success) status = dnnl_memory_desc_init_by_tag(&bias, 2, bias_dims, dnnl_f32, dnnl_ab);
    if (status == dnnl_success)
        status = dnnl_matmul_desc_init(&operation, &x, &weights, shape->bias ? &bias : NULL, &y);
    if (status == dnnl_success) status = dnnl_primitive_attr_create(&attributes);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && shape->add) {
        status = dnnl_post_ops_create(&after);
        if (status == dnnl_success) status = dnnl_post_ops_append_sum(after, 1.0f);
        if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(attributes, after);
    }
    if (status == dnnl_success) status = dnnl_primitive_desc_create(description, &operation, attributes, engine, NULL);
    if (after) dnnl_post_ops_destroy(after);
    if (attributes) dnnl_primitive_attr_destroy(attributes);
    return status;
}

/* The product for one thread: its description, with the weights packed if oneDNN takes them so, plain otherwise. */
static dnnl_status_t describe_product(dnnl_primitive_desc_t *description, bool *packed, dnnl_engine_t engine,
                                      const struct tw_cpu_product_shape *shape) {
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1); /* a primitive is cut for as many threads as there are when it is described */
    dnnl_status_t status = describe(description, engine, shape, dnnl_format_tag_any);
    if (status == dnnl_success) {
        *packed = is_packed(dnnl_primitive_desc_query_md(*description, dnnl_query_weights_md, 0), shape->bf16);
        if (!*packed) {
            dnnl_primitive_desc_destroy(*description);
            *description = NULL;
            status = shape->bf16 ? dnnl_unimplemented : describe(description, engine, shape, dnnl_ba);
        }
    }
    omp_set_num_threads(threads);
    return status;
}

size_t tw_cpu_product_scratch_bytes(enum tw_cpu_level level, const struct tw_cpu_product_shape *shapes, size_t n) {
    dnnl_engine_t engine;
    size_t most = 0;
    hold_to(level);
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success) return 0;
    for (size_t i = 0; i < n; i++) {
        dnnl_primitive_desc_t description = NULL;
        bool packed;
        if (describe_product(&description, &packed, engine, &shapes[i]) != dnnl_success) continue;
        const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
        most = tw_max_size(most, dnnl_memory_desc_get_size(scratch));
        dnnl_primitive_desc_destroy(description);
    }
    dnnl_engine_destroy(engine);
    return most;
}

tw_status tw_cpu_product_create(struct tw_cpu_product **product, struct tw_cpu_products *products,
                                const struct tw_cpu_product_shape *shape, struct tw_error *err) {
    *product = NULL;
    struct tw_cpu_product *p = calloc(1, sizeof *p);
    if (p) p->memory = calloc(products->n_threads, sizeof *p->memory);
    if (!p || !p->memory) {
        free(p);
        return TW_FAIL(err, TW_E_MEMORY, "out of memory: products");
    }
    p->products = products;
    p->bias = shape->bias;
    dnnl_primitive_desc_t description = NULL;
    dnnl_status_t status = describe_product(&description, &p->packed, products->engine, shape);
    if (status == dnnl_success) {
        const dnnl_memory_desc_t *operand[N_OPERANDS] = {
            [X] = dnnl_primitive_desc_query_md(description, dnnl_query_src_md, 0),
            [WEIGHTS] = dnnl_primitive_desc_query_md(description, dnnl_query_weights_md, 0),
            [BIAS] = shape->bias ? dnnl_primitive_desc_query_md(description, dnnl_query_weights_md, 1) : NULL,
            [Y] = dnnl_primitive_desc_query_md(description, dnnl_query_dst_md, 0),
            [SCRATCH] = dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0),
        };
        for (size_t t = 0; t < products->n_threads; t++)
            for (int i = 0; i < N_OPERANDS && status == dnnl_success; i++)
                if (operand[i])
                    status = dnnl_memory_create(&p->memory[t][i], operand[i], products->engine, DNNL_MEMORY_NONE);
        if (status == dnnl_success) status = dnnl_primitive_create(&p->primitive, description);
    }
    if (description) dnnl_primitive_desc_destroy(description);
    if (status != dnnl_success) {
        tw_cpu_product_free(p);
        return failed(err, status, "making a product");
    }
    *product = p;
    return TW_OK;
}

void tw_cpu_product_free(struct tw_cpu_product *product) {
    if (!product) return;
    if (product->primitive) dnnl_primitive_destroy(product->primitive);
    for (size_t t = 0; t < product->products->n_threads; t++)
        for (int i = 0; i < N_OPERANDS; i++)
            if (product->memory[t][i]) dnnl_memory_destroy(product->memory[t][i]);
    free(product->memory);
    free(product);
}

bool tw_cpu_product_packed(const struct tw_cpu_product *product) { return product->packed; }

tw_status tw_cpu_product_run(const struct tw_cpu_product *product, size_t thread, void *y, const void *x,
                             const void *weights, const float *bias, void *scratch, struct tw_error *err) {
    /* oneDNN's functions take pointers to what they only read without const. */
    void *const data[N_OPERANDS] = {(void *)(size_t)x, (void *)(size_t)weights, (void *)(size_t)bias, y, scratch};
    dnnl_exec_arg_t arguments[N_OPERANDS];
    int n = 0;
    for (int i = 0; i < N_OPERANDS; i++) {
        dnnl_memory_t memory = product->memory[thread][i];
        if (!memory) continue;
        dnnl_memory_set_data_handle(memory, data[i]);
        arguments[n++] = (dnnl_exec_arg_t){argument_of[i], memory};
    }
    const dnnl_status_t status =
        dnnl_primitive_execute(product->primitive, product->products->stream[thread], n, arguments);
    return status == dnnl_success ? TW_OK : failed(err, status, "a product");
}
