/* SPDX-License-Identifier: Apache-2.0 */
#include "history.h"

#include <stdlib.h>

bool nf_history_open(nf_history *h, uint32_t size, size_t bytes) {
    size_t stride = NF_BTH_BYTES + bytes + NF_ICRC_BYTES;
    *h = (nf_history){.size = size,
                      .bytes = bytes,
                      .head = NF_BTH_BYTES,
                      .stride = stride,
                      .sent = calloc(size, sizeof *h->sent),
                      .packets = calloc(size, stride)};
    return h->sent && h->packets;
}

void nf_history_bare(nf_history *h) {
    h->head = 0;
    h->stride = h->bytes;
}

void nf_history_close(nf_history *h) {
    free(h->sent);
    free(h->packets);
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
