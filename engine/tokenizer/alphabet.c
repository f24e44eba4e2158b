#include "engine/tokenizer/alphabet.h"

#include <stdint.h>

#include "base/text.h"

/* The bytes that GPT-2's encoder does not show as themselves: 0-32, 127-160, 173. */
static int shifted_byte(uint32_t index) {
    if (index <= 32) return (int)index;
    if (index <= 32 + 34) return (int)(index - 33 + 127);
    return index == 67 ? 173 : -1;
}

bool tw_alphabet_decode(char *out, size_t *size, struct tw_view text) {
    char *const start = out;
    const char *in = text.data, *const end = text.data + text.size;
    while (in < end) {
        const uint8_t c = (uint8_t)*in;
        if (c > 32 && c < 127) {
            *out++ = *in++;
            continue;
        }
        /* All others are of two bytes. */
        if (in + 1 == end || c < 0xc2 || c > 0xc5 || ((uint8_t)in[1] & 0xc0) != 0x80) return false;
        const uint32_t code_point = (c & 31u) << 6 | ((uint8_t)in[1] & 63u);
        int byte;
        if (code_point >= 256)
            byte = shifted_byte(code_point - 256);
        else
            byte = code_point > 160 && code_point != 173 ? (int)code_point : -1;
        if (byte < 0) return false;
        *out++ = (char)byte;
        in += 2;
    }
    *size = (size_t)(out - start);
    return true;
}

size_t tw_alphabet_unmark(char *out, struct tw_view text) {
    size_t size = 0;
    for (size_t i = 0; i < text.size;) {
        if (text.size - i >= 3 && memcmp(text.data + i, "\xe2\x96\x81", 3) == 0) {
            out[size++] = ' ';
            i += 3;
        } else {
            out[size++] = text.data[i++];
        }
    }
    return size;
}
