/* SPDX-License-Identifier: Apache-2.0 */
#include "history.h"

#include <stdlib.h>

bool nf_history_open(nf_history *h, uint32_t size, size_t bytes)
{
    *h = (nf_history){ .size = size, .bytes = bytes, .kept = calloc(size, sizeof *h->kept),
                       .payloads = calloc(size, bytes) };
    return h->kept && h->payloads;
}

void nf_history_close(nf_history *h)
{
    free(h->kept);
    free(h->payloads);
    *h = (nf_history){ 0 };
}

uint8_t *nf_history_add(nf_history *h, const nf_header *header)
{
    uint64_t seq = h->high++;
    *nf_history_at(h, seq) = (nf_kept){ .header = *header };
    return nf_history_payload(h, seq);
}

void nf_history_result(nf_history *h, uint64_t seq)
{
    nf_history_at(h, seq)->had = true;
    while (h->got < h->high && nf_history_at(h, h->got)->had)
        h->got++;
}
