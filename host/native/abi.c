/* SPDX-License-Identifier: Apache-2.0
 * Sizes of what crosses the border to Python (native.py checks them), and array-wide entries for tests and benchmarks. */
#include "io.h"
#include "quantise.h"

uint32_t nf_abi_size(uint32_t which)
{
    static const uint32_t sizes[] = { sizeof(nf_tree_plan), sizeof(nf_failure), sizeof(nf_standing), sizeof(nf_run),
                                      sizeof(nf_sender), sizeof(nf_span) };
    return which < sizeof sizes / sizeof *sizes ? sizes[which] : 0;
}

static size_t block_at(uint64_t count, uint64_t i) { return count - i < NF_BLOCK ? (size_t)(count - i) : NF_BLOCK; }

void nf_exponents_of(const float *x, uint64_t count, uint16_t *exponents)
{
    for (uint64_t i = 0; i < count; i += NF_BLOCK)
        exponents[i / NF_BLOCK] = (uint16_t)nf_block_exponent(x + i, block_at(count, i));
}

/* wire: 1024 bytes a block */
void nf_quantise_all(const float *x, uint64_t count, const uint16_t *exponents, uint32_t world, uint8_t *wire)
{
    for (uint64_t i = 0; i < count; i += NF_BLOCK)
        nf_quantise(x + i, block_at(count, i), exponents[i / NF_BLOCK], nf_headroom(world), wire + 4 * i);
}

void nf_dequantise_all(const uint8_t *wire, uint64_t count, const uint16_t *exponents, uint32_t world, float divisor,
                       float *x)
{
    for (uint64_t i = 0; i < count; i += NF_BLOCK)
        nf_dequantise(wire + 4 * i, block_at(count, i), exponents[i / NF_BLOCK], nf_headroom(world), divisor, x + i);
}
