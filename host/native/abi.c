/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes of what crosses the border to Python, which library.py checks, and the arithmetic over whole arrays, for
 * tests and benchmarks.
 */
#include "io.h"
#include "narrow.h"
#include "quantise.h"

uint32_t nf_abi_size(uint32_t which) {
    static const uint32_t sizes[] = {sizeof(nf_tree_plan), sizeof(nf_failure), sizeof(nf_stream_state),
                                     sizeof(nf_run),       sizeof(nf_sender),  sizeof(nf_span),
                                     sizeof(nf_operation), sizeof(nf_origin),  sizeof(nf_totals)};
    return which < sizeof sizes / sizeof *sizes ? sizes[which] : 0;
}

static size_t block_at(uint64_t count, uint64_t i) { return count - i < NF_BLOCK ? (size_t)(count - i) : NF_BLOCK; }

/* What the blocks of `count` values ask for: exponents where `bits` is 32, else the largest magnitudes. */
void nf_scales_of(const float *x, const float *residual, uint64_t count, uint32_t bits, uint32_t *scales) {
    for (uint64_t i = 0; i < count; i += NF_BLOCK)
        scales[i / NF_BLOCK] = bits == 32 ? nf_block_exponent(x + i, block_at(count, i))
                                          : nf_block_top(x + i, residual ? residual + i : NULL, block_at(count, i));
}

/* Lanes of `count` values at `wire`, four bytes each, with their blocks' exponents in `scales`; and back. */
void nf_quantise_all(const float *x, uint64_t count, const uint32_t *scales, uint32_t world, uint8_t *wire) {
    for (uint64_t i = 0; i < count; i += NF_BLOCK)
        nf_quantise(x + i, block_at(count, i), scales[i / NF_BLOCK], nf_headroom(world), wire + 4 * i);
}

void nf_dequantise_all(const uint8_t *wire, uint64_t count, const uint32_t *scales, uint32_t world, float divisor,
                       float *x) {
    for (uint64_t i = 0; i < count; i += NF_BLOCK)
        nf_dequantise(wire + 4 * i, block_at(count, i), scales[i / NF_BLOCK], nf_headroom(world), divisor, x + i);
}

/* The same with lanes of how->bits / 8 bytes; the residuals, where there are any, take what the lanes leave out. */
void nf_narrow_all(const nf_narrowing *how, const float *x, float *residual, uint64_t count, const uint32_t *scales,
                   uint8_t *wire) {
    for (uint64_t i = 0; i < count; i += NF_BLOCK) {
        float *own = residual ? residual + i : NULL;
        nf_narrow(how, x + i, own, block_at(count, i), scales[i / NF_BLOCK], i, wire + i * how->bits / 8);
        if (own) nf_narrow_residual(how, x + i, own, block_at(count, i), scales[i / NF_BLOCK], i);
    }
}

void nf_widen_all(const nf_narrowing *how, const uint8_t *wire, uint64_t count, const uint32_t *scales, float divisor,
                  float *x) {
    for (uint64_t i = 0; i < count; i += NF_BLOCK)
        nf_widen(how, wire + i * how->bits / 8, block_at(count, i), scales[i / NF_BLOCK], divisor, x + i);
}
