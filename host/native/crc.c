/* SPDX-License-Identifier: Apache-2.0
 * CRC-32 and RoCEv2's invariant CRC.  Carry-less multiplication where the CPU has it (about 15 times faster than the
 * tables), slice-by-8 tables elsewhere. */
#include <pthread.h>

#include "roce.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#ifndef bit_PCLMUL
#define bit_PCLMUL bit_PCLMULQDQ       /* clang's name */
#endif
#ifndef bit_SSE4_1
#define bit_SSE4_1 bit_SSE41
#endif
#endif

#define POLYNOMIAL 0xedb88320u         /* 0x04c11db7 with its bits reflected */

static uint32_t slices[8][256];
static bool have_clmul;

static void make_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        slices[0][i] = crc;
    }
    for (int s = 1; s < 8; s++)
        for (int i = 0; i < 256; i++)
            slices[s][i] = slices[s - 1][i] >> 8 ^ slices[0][slices[s - 1][i] & 255];
#if defined(__x86_64__)
    /* not __builtin_cpu_supports: its table does not link into a shared library with ziglang */
    uint32_t a, b, c, d;
    have_clmul = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_PCLMUL) && (c & bit_SSE4_1);
#endif
}

static uint32_t by_tables(uint32_t crc, const uint8_t *p, size_t n)
{
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t low, high;
        memcpy(&low, p, 4);
        memcpy(&high, p + 4, 4);
        low ^= crc;
        crc = slices[7][low & 255] ^ slices[6][low >> 8 & 255] ^ slices[5][low >> 16 & 255] ^ slices[4][low >> 24] ^
              slices[3][high & 255] ^ slices[2][high >> 8 & 255] ^ slices[1][high >> 16 & 255] ^ slices[0][high >> 24];
    }
    while (n--)
        crc = crc >> 8 ^ slices[0][(crc ^ *p++) & 255];
    return crc;
}

#if defined(__x86_64__)
/* "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", V. Gopal et al., Intel 2009.  128-bit
 * accumulators are multiplied by x^(distance) mod P and added to the data that far ahead; constants are those of the
 * paper's table for the reflected polynomial.  n >= 64 and a multiple of 16. */
__attribute__((target("pclmul,sse4.1"))) static inline __m128i ahead(__m128i x, __m128i k, __m128i data)
{
    __m128i low = _mm_clmulepi64_si128(x, k, 0x00), high = _mm_clmulepi64_si128(x, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

__attribute__((target("pclmul,sse4.1"))) static uint32_t by_clmul(uint32_t crc, const uint8_t *p, size_t n)
{
    const __m128i by64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);     /* 512 bits ahead */
    const __m128i by16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);     /* 128 bits ahead */
    const __m128i by8 = _mm_set_epi64x(0, 0x163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);  /* quotient, polynomial */
    const __m128i low32 = _mm_setr_epi32(-1, 0, -1, 0);
    const __m128i *in = (const __m128i *)p;
    __m128i a = _mm_xor_si128(_mm_loadu_si128(in), _mm_cvtsi32_si128((int)crc));
    __m128i b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    for (in += 4, n -= 64; n >= 64; in += 4, n -= 64) {
        a = ahead(a, by64, _mm_loadu_si128(in));
        b = ahead(b, by64, _mm_loadu_si128(in + 1));
        c = ahead(c, by64, _mm_loadu_si128(in + 2));
        d = ahead(d, by64, _mm_loadu_si128(in + 3));
    }
    a = ahead(a, by16, b);
    a = ahead(a, by16, c);
    a = ahead(a, by16, d);
    for (; n >= 16; in++, n -= 16)
        a = ahead(a, by16, _mm_loadu_si128(in));
    /* 128 -> 96 -> 64 bits, then Barrett reduction to 32 */
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by16, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low32), by8, 0x00));
    __m128i t = _mm_clmulepi64_si128(_mm_and_si128(a, low32), barrett, 0x10);
    t = _mm_clmulepi64_si128(_mm_and_si128(t, low32), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, t), 1);
}
#endif

uint32_t nf_crc32(uint32_t crc, const uint8_t *bytes, size_t n)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_tables);
    crc = ~crc;
#if defined(__x86_64__)
    if (have_clmul && n >= 64) {
        size_t whole = n & ~(size_t)15;
        crc = by_clmul(crc, bytes, whole);
        bytes += whole;
        n -= whole;
    }
#endif
    return ~by_tables(crc, bytes, n);
}

/* InfiniBand annex A17.3.3: CRC-32 over 8 bytes of ones, the IPv4 header (TOS, TTL, checksum as ones), UDP (checksum as
 * ones), BTH (FECN/BECN byte as ones) and all that follows; little endian on the wire. */
void nf_write_icrc(uint8_t *packet, size_t n, const nf_route *route, uint16_t id)
{
    uint8_t masked[8 + NF_IPV4_BYTES + NF_UDP_BYTES + NF_BTH_BYTES];
    uint8_t *ip = masked + 8, *udp = ip + NF_IPV4_BYTES, *bth = udp + NF_UDP_BYTES;
    memset(masked, 0xff, sizeof masked);
    ip[0] = 0x45;
    nf_put16(ip + 2, (uint16_t)(NF_IPV4_BYTES + NF_UDP_BYTES + n));
    nf_put16(ip + 4, id);
    nf_put16(ip + 6, 0x4000);                                   /* don't fragment */
    ip[9] = 17;
    nf_put32(ip + 12, route->source);
    nf_put32(ip + 16, route->destination);
    nf_put16(udp, route->source_port);
    nf_put16(udp + 2, NF_UDP_PORT);
    nf_put16(udp + 4, (uint16_t)(NF_UDP_BYTES + n));
    memcpy(bth, packet, NF_BTH_BYTES);
    bth[4] = 0xff;
    uint32_t crc = nf_crc32(0, masked, sizeof masked);
    crc = nf_crc32(crc, packet + NF_BTH_BYTES, n - NF_BTH_BYTES - NF_ICRC_BYTES);
    memcpy(packet + n - NF_ICRC_BYTES, &crc, 4);                /* this machine is little endian, see quantise.h */
}
