// Mutual authentication of the two ends of a data connection. Each end proves that it knows the key
// without sending it: a challenge from each side, and a keyed hash of both (RFC 2104). A recorded
// handshake cannot be replayed on another connection.
//
//     dialling side                                  accepting side
//     HELLO (generation, rank, to, nonce)    ->
//                                            <-      CHALLENGE (nonce, proof)
//     PROOF                                  ->
//                                            <-      WELCOME
#ifndef TFDIST_OPS_CORE_NET_AUTHENTICATE_H_
#define TFDIST_OPS_CORE_NET_AUTHENTICATE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/hmac.h"
#include "core/base/status.h"
#include "core/net/socket.h"

namespace tfdist {

// A secret that only the ranks of a generation know.
using Key = std::array<uint8_t, 32>;
using Nonce = std::array<uint8_t, 16>;

struct Hello {
  uint64_t generation = 0;
  uint32_t rank = 0;  // of the dialling side
  uint32_t to = 0;    // of the rank that it means to have dialled; a server is its generation
  Nonce nonce{};

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.generation, m.rank, m.to, m.nonce);
  }
};
inline constexpr size_t kHelloBytes = sizeof(uint64_t) + 2 * sizeof(uint32_t) + sizeof(Nonce);

struct Challenge {
  Nonce nonce{};
  Digest proof{};

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.nonce, m.proof);
  }
};
inline constexpr size_t kChallengeBytes = sizeof(Nonce) + sizeof(Digest);
inline constexpr size_t kProofBytes = sizeof(Digest);

std::string Encode(const Hello& hello);
std::string Encode(const Challenge& challenge);
Status Decode(std::string_view bytes, Hello* hello);
Status Decode(std::string_view bytes, Challenge* challenge);

Nonce NewNonce();

// The proofs of the accepting and of the dialling side.
Digest AcceptorProof(const Key& key, const Hello& hello, const Nonce& challenge);
Digest DiallerProof(const Key& key, const Hello& hello, const Nonce& challenge);

// The accepting side's part of one handshake, without its input and output.
class AcceptorHandshake {
 public:
  // Takes a HELLO's payload and returns a CHALLENGE's payload in *challenge. Any well-formed HELLO
  // gets one, so that a peer without the key learns nothing.
  Status Begin(const Key& key, std::string_view hello, std::string* challenge);

  // Whether a PROOF's payload shows that the peer knows the key. Needs Begin.
  bool Verify(std::string_view proof) const;

  // Claimed by the peer, and true once Verify is.
  const Hello& hello() const { return hello_; }

 private:
  Hello hello_;
  Digest expected_{};
};

// Runs the handshake of the dialling side up to its PROOF, and chooses the nonce of `hello`.
// kUnavailable if the other side does not know the key.
Status Authenticate(const PeerSocket& socket, const Key& key, Hello hello, TimePoint deadline);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_AUTHENTICATE_H_
