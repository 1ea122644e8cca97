/* SPDX-License-Identifier: Apache-2.0
 *
 * Random numbers and CRCs.
 */
#ifndef SS_HASH_H
#define SS_HASH_H
#include "codec.h"
#include "internal.h"

void ss_prng_seed(ss_prng *, uint64_t);
uint32_t ss_crc32c(const uint8_t *bytes, uint32_t n); /* CRC-32C, SCTP's checksum */

typedef struct ss_custom_crc { /* of a custom CRC: as BMv2 has them */
    uint32_t bits, polynomial, initial, final_xor;
    bool data_reflected, remainder_reflected;
    uint32_t table[256]; /* what a byte does to the highest bits */
} ss_custom_crc;

/* Requests; each returns a status and has written the reply's body. */
int ss_do_crc_write(ss_switch *, ss_reader *, ss_writer *);
#endif
