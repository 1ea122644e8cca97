/* SPDX-License-Identifier: Apache-2.0
 *
 * Packet capture files; see pcap.h.  Format: draft-ietf-opsawg-pcap.
 */
#include "pcap.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct ss_pcap {
    FILE *file;
};

ss_pcap *ss_pcap_open(const char *dir, const char *interface, const char *way) {
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/%s_%s.pcap", dir, interface, way) >= sizeof path) return NULL;
    ss_pcap *p = malloc(sizeof *p);
    if (!p) return NULL;
    p->file = fopen(path, "wbe");
    if (!p->file) {
        free(p);
        return NULL;
    }
    struct {
        uint32_t magic;
        uint16_t major, minor;
        uint32_t zone, accuracy, longest, link;
    } head = {0xa1b23c4d, 2, 4, 0, 0, 262144, 1 /* Ethernet */};
    fwrite(&head, sizeof head, 1, p->file);
    fflush(p->file);
    return p;
}

void ss_pcap_write(ss_pcap *p, const uint8_t *frame, uint32_t len) {
    if (!p) return;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint32_t head[4] = {(uint32_t)now.tv_sec, (uint32_t)now.tv_nsec, len, len};
    fwrite(head, sizeof head, 1, p->file);
    fwrite(frame, len, 1, p->file);
}

void ss_pcap_flush(ss_pcap *p) {
    if (p) fflush(p->file);
}

void ss_pcap_close(ss_pcap *p) {
    if (!p) return;
    fclose(p->file);
    free(p);
}
