/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests to the process itself.
 */
#ifndef SS_REQUESTS_H
#define SS_REQUESTS_H
#include <stddef.h>
#include <stdint.h>

/* Executes a batch of requests to an ss_io, or to its switch; as ss_request_fn (channel.h) has it. */
size_t ss_io_execute(void *io, const uint8_t *batch, size_t n, uint8_t *reply, size_t cap);
#endif
