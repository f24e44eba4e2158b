/*
 * The two ways in which vocabularies write bytes as text. GPT-2's alphabet gives each of the 256 bytes a visible
 * character: printable ASCII and Latin-1 stand for themselves, the other 68 are U+0100 upwards in the order of the
 * bytes. SentencePiece writes a space as U+2581.
 */
#ifndef TW_ENGINE_TOKENIZER_ALPHABET_H
#define TW_ENGINE_TOKENIZER_ALPHABET_H

#include "base/view.h"

/*
 * Writes the bytes that `text` stands for; never more than text.size, and `out` may be where the text is. False when a
 * character stands for no byte; out then holds garbage.
 */
bool tw_alphabet_decode(char *out, size_t *size, struct tw_view text);

/* Writes `text` with U+2581 turned into spaces; returns its size, never more than text.size; in place is fine. */
size_t tw_alphabet_unmark(char *out, struct tw_view text);

#endif
