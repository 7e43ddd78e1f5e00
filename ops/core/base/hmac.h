// HMAC with SHA-256: FIPS 180-4 and RFC 2104. The core has no library to take it from, and proves
// keys with it; it is tested against the documents' vectors.
#ifndef TFDIST_OPS_CORE_BASE_HMAC_H_
#define TFDIST_OPS_CORE_BASE_HMAC_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace tfdist {

using Digest = std::array<uint8_t, 32>;

Digest Sha256(std::string_view message);
Digest HmacSha256(std::string_view key, std::string_view message);

// Takes the same time for any two digests.
bool SameDigest(const Digest& a, const Digest& b);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_HMAC_H_
