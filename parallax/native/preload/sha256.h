/* HMAC-SHA256 (RFC 2104, FIPS 180-4). */
#include <stddef.h>
#include <stdint.h>

#define MAC_BYTES 32

void parallax_hmac(const uint8_t *key, size_t key_size, const uint8_t *text, size_t size, uint8_t mac[MAC_BYTES])
    __attribute__((visibility("hidden")));
