/* The one entry point that every fuzz target has: libFuzzer's, and that of the driver which replays files. */
#ifndef TW_TESTS_FUZZ_FUZZ_H
#define TW_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* `data` is a block of exactly `size` bytes. Always 0. */
__attribute__((visibility("default"))) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
