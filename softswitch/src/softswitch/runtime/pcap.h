/* SPDX-License-Identifier: Apache-2.0
 *
 * Packet capture files (the classic pcap format, nanosecond times), one each way a port, named as BMv2 names them.
 */
#ifndef SS_PCAP_H
#define SS_PCAP_H
#include <stdint.h>

typedef struct ss_pcap ss_pcap;
/* Creates DIR/INTERFACE_WAY.pcap; NULL with errno set where that fails. */
ss_pcap *ss_pcap_open(const char *dir, const char *interface, const char *way);
void ss_pcap_write(ss_pcap *, const uint8_t *frame, uint32_t len);
void ss_pcap_flush(ss_pcap *);
void ss_pcap_close(ss_pcap *); /* NULL is fine here and in the two above */
#endif
