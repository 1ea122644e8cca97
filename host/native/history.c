/* SPDX-License-Identifier: Apache-2.0 */
#include "history.h"

#include <stdlib.h>

bool nf_history_open(nf_history *h, uint32_t size, size_t bytes) {
    *h = (nf_history){
        .size = size, .bytes = bytes, .sent = calloc(size, sizeof *h->sent), .payloads = calloc(size, bytes)};
    return h->sent && h->payloads;
}

void nf_history_close(nf_history *h) {
    free(h->sent);
    free(h->payloads);
    *h = (nf_history){0};
}

uint8_t *nf_history_add(nf_history *h, const nf_header *header) {
    uint64_t seq = h->next++;
    *nf_history_at(h, seq) = (nf_contribution){.header = *header};
    return nf_history_payload(h, seq);
}

void nf_history_result(nf_history *h, uint64_t seq) {
    nf_history_at(h, seq)->answered = true;
    while (h->una < h->next && nf_history_at(h, h->una)->answered) h->una++;
}
