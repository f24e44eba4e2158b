#include "base/parse.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool tw_parse_u64(uint64_t *value, struct tw_view text) {
    if (text.size == 0) return false;
    uint64_t result = 0;
    for (size_t i = 0; i < text.size; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return false;
        if (__builtin_mul_overflow(result, 10, &result)) return false;
        if (__builtin_add_overflow(result, (uint64_t)(text.data[i] - '0'), &result)) return false;
    }
    *value = result;
    return true;
}

bool tw_parse_i64(int64_t *value, struct tw_view text) {
    const bool negative = text.size > 0 && text.data[0] == '-';
    if (negative) text.data++, text.size--;
    uint64_t magnitude;
    if (!tw_parse_u64(&magnitude, text)) return false;
    if (magnitude > (uint64_t)INT64_MAX + negative) return false;
    *value = negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return true;
}

bool tw_parse_double(double *value, struct tw_view text) {
    char buffer[64];
    if (text.size == 0 || text.size >= sizeof buffer) return false;
    for (size_t i = 0; i < text.size; i++)
        if (!strchr("0123456789.eE+-", text.data[i]) || text.data[i] == 0) return false; /* no hex, inf, nan, spaces */
    memcpy(buffer, text.data, text.size);
    buffer[text.size] = 0;
    static locale_t c_locale;
    locale_t locale = __atomic_load_n(&c_locale, __ATOMIC_ACQUIRE);
    if (!locale) {
        locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
        if (!locale) return false;
        locale_t expected = (locale_t)0;
        if (!__atomic_compare_exchange_n(&c_locale, &expected, locale, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            freelocale(locale);
            locale = expected;
        }
    }
    char *end;
    const double result = strtod_l(buffer, &end, locale);
    if (*end != 0 || end == buffer || !isfinite(result)) return false;
    *value = result;
    return true;
}

struct unit {
    const char *name;
    double factor;
};

/* Splits "1.5GB/s" into number and unit; the number may not be negative. */
static bool parse_with_unit(double *value, struct tw_view text, const struct unit *units, size_t n_units) {
    size_t digits = 0;
    while (digits < text.size && (text.data[digits] == '.' || (text.data[digits] >= '0' && text.data[digits] <= '9')))
        digits++;
    double number;
    if (!tw_parse_double(&number, (struct tw_view){text.data, digits})) return false;
    const struct tw_view unit = {text.data + digits, text.size - digits};
    for (size_t i = 0; i < n_units; i++)
        if (tw_view_equal(unit, tw_view_of(units[i].name))) {
            *value = number * units[i].factor;
            return isfinite(*value);
        }
    return false;
}

bool tw_parse_size(uint64_t *value, struct tw_view text) {
    static const struct unit units[] = {
        {"K", 0x1p10}, {"k", 0x1p10}, {"M", 0x1p20}, {"m", 0x1p20},
        {"G", 0x1p30}, {"g", 0x1p30}, {"T", 0x1p40}, {"t", 0x1p40},
    };
    if (tw_parse_u64(value, text)) return true;
    double bytes;
    if (!parse_with_unit(&bytes, text, units, sizeof units / sizeof *units)) return false;
    if (bytes != floor(bytes) || bytes >= 0x1p63) return false;
    *value = (uint64_t)bytes;
    return true;
}

bool tw_parse_rate(double *bytes_per_second, struct tw_view text) {
    static const struct unit units[] = {{"B/s", 1}, {"KB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"TB/s", 1e12}};
    double rate;
    if (!parse_with_unit(&rate, text, units, sizeof units / sizeof *units) || rate <= 0) return false;
    *bytes_per_second = rate;
    return true;
}

bool tw_parse_time(double *seconds, struct tw_view text) {
    static const struct unit units[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
    return parse_with_unit(seconds, text, units, sizeof units / sizeof *units);
}

bool tw_parse_next(struct tw_view *piece, struct tw_view *rest, char separator) {
    if (!rest->data) return false;
    const char *end = rest->size ? memchr(rest->data, separator, rest->size) : NULL;
    if (!end) {
        *piece = *rest;
        *rest = (struct tw_view){NULL, 0};
        return true;
    }
    *piece = (struct tw_view){rest->data, (size_t)(end - rest->data)};
    *rest = (struct tw_view){end + 1, rest->size - piece->size - 1};
    return true;
}

static int compare_u64(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

bool tw_parse_u64_list(uint64_t **values, size_t *n_values, struct tw_view text) {
    enum { MAX_VALUES = 1 << 20 };
    uint64_t *list = NULL;
    size_t n = 0, capacity = 0;
    struct tw_view piece, rest = text;
    while (tw_parse_next(&piece, &rest, ',')) {
        uint64_t low, high;
        const char *dots = piece.size ? memmem(piece.data, piece.size, "..", 2) : NULL;
        if (dots) {
            const struct tw_view a = {piece.data, (size_t)(dots - piece.data)};
            const struct tw_view b = {dots + 2, piece.size - a.size - 2};
            if (!tw_parse_u64(&low, a) || !tw_parse_u64(&high, b) || low > high) goto refuse;
        } else {
            if (!tw_parse_u64(&low, piece)) goto refuse;
            high = low;
        }
        if (high - low >= MAX_VALUES - n) goto refuse;
        const size_t wanted = n + (size_t)(high - low) + 1;
        if (wanted > capacity) {
            capacity = wanted * 2;
            uint64_t *larger = realloc(list, capacity * sizeof *list);
            if (!larger) goto refuse;
            list = larger;
        }
        for (uint64_t v = low; n < wanted; v++) list[n++] = v;
    }
    if (n == 0) goto refuse;
    qsort(list, n, sizeof *list, compare_u64);
    size_t kept = 1;
    for (size_t i = 1; i < n; i++)
        if (list[i] != list[kept - 1]) list[kept++] = list[i];
    *values = list;
    *n_values = kept;
    return true;
refuse:
    free(list);
    return false;
}

size_t tw_parse_distance(const char *a, const char *b) {
    enum { MAX = 64 };
    const size_t n = strnlen(a, MAX), m = strnlen(b, MAX);
    size_t d[MAX + 1][MAX + 1];
    for (size_t i = 0; i <= n; i++) d[i][0] = i;
    for (size_t j = 0; j <= m; j++) d[0][j] = j;
    for (size_t i = 1; i <= n; i++)
        for (size_t j = 1; j <= m; j++) {
            size_t best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[n][m];
}
