/* SPDX-License-Identifier: Apache-2.0
 *
 * Packet capture files; see pcap.h.  Format: draft-ietf-opsawg-pcap.
 */
#include "pcap.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

struct ss_pcap {
    FILE *file;
    off_t size;  /* bytes of all packets so far */
    off_t whole; /* bytes up to the last packet that is on the disk */
    bool lost;   /* the disk was full */
    char path[4096];
};

/* A file of our own in the place of what was there: where others may write, that may be a link of theirs. A pipe of
 * ours, or of root's, stays: somebody reads there. */
static int open_file(const char *path) {
    struct stat found;
    if (lstat(path, &found) || S_ISREG(found.st_mode) || S_ISLNK(found.st_mode)) {
        unlink(path);
        return open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    }
    if (found.st_uid && found.st_uid != geteuid()) {
        errno = EPERM;
        return -1;
    }
    return open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
}

ss_pcap *ss_pcap_open(const char *dir, const char *interface, const char *way) {
    ss_pcap *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    if ((size_t)snprintf(p->path, sizeof p->path, "%s/%s_%s.pcap", dir, interface, way) >= sizeof p->path) {
        free(p);
        errno = ENAMETOOLONG;
        return NULL;
    }
    int fd = open_file(p->path);
    p->file = fd < 0 ? NULL : fdopen(fd, "wb");
    if (!p->file) {
        int why = errno;
        if (fd >= 0) close(fd);
        free(p);
        errno = why;
        return NULL;
    }
    struct {
        uint32_t magic;
        uint16_t major, minor;
        uint32_t zone, accuracy, longest, link;
    } head = {0xa1b23c4d, 2, 4, 0, 0, 262144, 1 /* Ethernet */};
    p->size = p->whole = sizeof head;
    if (fwrite(&head, sizeof head, 1, p->file) != 1 || fflush(p->file)) {
        int why = errno;
        fclose(p->file);
        free(p);
        errno = why;
        return NULL;
    }
    return p;
}

/* The disk is full: the file ends with the last whole packet that is on it, and the switch goes on without it. */
static void give_up(ss_pcap *p) {
    if (p->lost) return;
    p->lost = true;
    fprintf(stderr, "capture %s: %s; it ends here, the switch goes on\n", p->path, strerror(errno));
    __fpurge(p->file); /* what stdio still holds must not follow the last whole packet */
    if (ftruncate(fileno(p->file), p->whole)) fprintf(stderr, "capture %s: its last packet is cut off\n", p->path);
}

void ss_pcap_write(ss_pcap *p, const uint8_t *frame, uint32_t len) {
    if (!p || p->lost) return;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint32_t head[4] = {(uint32_t)now.tv_sec, (uint32_t)now.tv_nsec, len, len};
    if (fwrite(head, sizeof head, 1, p->file) != 1 || (len && fwrite(frame, len, 1, p->file) != 1))
        give_up(p);
    else
        p->size += (off_t)sizeof head + len;
}

void ss_pcap_flush(ss_pcap *p) {
    if (!p || p->lost || p->whole == p->size) return;
    if (fflush(p->file))
        give_up(p);
    else
        p->whole = p->size;
}

void ss_pcap_close(ss_pcap *p) {
    if (!p) return;
    ss_pcap_flush(p);
    fclose(p->file);
    free(p);
}
