// HMAC with SHA-256 (FIPS 180-4 and RFC 2104), for the authentication of data connections. The core
// links no cryptographic library; the tests use the test vectors of the two standards.
#ifndef TFDIST_OPS_CORE_BASE_HMAC_H_
#define TFDIST_OPS_CORE_BASE_HMAC_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace tfdist {

using Digest = std::array<uint8_t, 32>;

Digest Sha256(std::string_view message);
Digest HmacSha256(std::string_view key, std::string_view message);

// In constant time.
bool SameDigest(const Digest& a, const Digest& b);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_HMAC_H_
