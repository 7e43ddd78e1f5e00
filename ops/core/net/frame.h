// What travels on a data connection: a fixed header, then `length` bytes of payload.
//
//   - HELLO, CHALLENGE, PROOF: how the two sides prove to each other that they know the job's key;
//     see net/authenticate.h
//   - WELCOME: the answer to a PROOF that was accepted; empty, or an offer to share memory
//   - OPEN: "I have started collective (key, sequence)", with its signature; it also permits large
//     DATA to be sent
//   - DATA: one chunk of a collective
//   - QUERY: "where are you in (key, sequence)?", asked only when a deadline has passed
//   - REPLY: the answer to a QUERY
//   - ABORT: the sender gives up this communicator; code and reason inside
//   - GOODBYE: the sender has finished and starts no further collective
//
// Between ranks of one machine (see link.h):
//   - SHARED: whether the sender uses the shared memory; if so, its last frame on the socket
//   - LEND: one chunk of a collective that is not inside but lies in the sender's memory: addresses
//   - RETURN: the receiver has copied the oldest chunk that was lent to it
#ifndef TFDIST_OPS_CORE_NET_FRAME_H_
#define TFDIST_OPS_CORE_NET_FRAME_H_

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/hmac.h"
#include "core/base/status.h"
#include "core/net/peer_memory.h"

namespace tfdist {

enum class FrameType : uint8_t {
  kHello = 1,
  kWelcome = 2,
  kOpen = 3,
  kData = 4,
  kQuery = 5,
  kReply = 6,
  kAbort = 7,
  kGoodbye = 8,
  kShared = 9,
  kLend = 10,
  kReturn = 11,
  kChallenge = 12,
  kProof = 13,
};

inline constexpr size_t kHeaderBytes = 40;
inline constexpr size_t kChunkBytes = 256 * 1024;     // the most that one DATA frame carries
inline constexpr size_t kMaxControlBytes = 8 * 1024;  // the most that any other frame carries
inline constexpr size_t kMaxBlocks = 800;             // the most that an OPEN tells of
inline constexpr size_t kMaxLentPieces = 256;         // of one LEND frame

// A secret that only the ranks of a generation know.
using Key = std::array<uint8_t, 32>;
using Nonce = std::array<uint8_t, 16>;

struct FrameHeader {
  FrameType type = FrameType::kData;
  uint16_t step = 0;      // DATA, LEND: step of the algorithm
  uint32_t length = 0;    // payload bytes that follow
  uint64_t key = 0;       // which collective
  uint64_t sequence = 0;  // which execution of it
  uint64_t offset = 0;    // DATA, LEND: first byte in the collective's flat buffer
};

using HeaderBytes = std::array<char, kHeaderBytes>;

HeaderBytes EncodeHeader(const FrameHeader& header);

// Fails on a wrong magic or version, an unknown type, or a length above the type's limit.
Status DecodeHeader(const char* bytes, FrameHeader* header);

struct Hello {
  uint64_t generation = 0;
  uint32_t rank = 0;  // of the dialling side
  uint32_t to = 0;    // of the rank that it means to have dialled; a server is its generation
  Nonce nonce{};
};
inline constexpr size_t kHelloBytes = sizeof(uint64_t) + 2 * sizeof(uint32_t) + sizeof(Nonce);

struct Challenge {
  Nonce nonce{};
  Digest proof{};
};
inline constexpr size_t kChallengeBytes = sizeof(Nonce) + sizeof(Digest);
inline constexpr size_t kProofBytes = sizeof(Digest);

// What every rank must agree on, besides the key, for a collective to be the same one.
struct Signature {
  uint8_t kind = 0;         // CollectiveKind
  uint8_t dtype = 0;        // DType
  uint8_t reduce_op = 0;    // ReduceOp
  uint8_t algorithm = 0;    // Algorithm
  uint32_t root = 0;        // where there is one
  uint64_t elements = 0;    // 0 where ranks may differ
  uint64_t shape_hash = 0;  // of the list of shapes
  uint32_t joins = 0;       // how many joins the rank has seen the end of; not compared
  std::string name;         // for messages only; may differ between ranks
  std::string shapes;       // for messages only, such as "float32[128,10], float32[10]"
  // Bytes of each rank's block, where there are blocks; see BlocksAgree. Too many do not travel.
  std::vector<uint64_t> blocks;

  bool Matches(const Signature& other) const;  // but for the blocks
};

// The answer to a QUERY.
struct Reply {
  bool started = false;
  // The oldest unfinished collective of the answering rank, if it has one: its title, identity and
  // age.
  std::string doing;
  uint64_t key = 0;
  uint64_t sequence = 0;
  double waited_seconds = 0;
};

struct Abort {
  StatusCode code = StatusCode::kUnavailable;
  std::string message;
};

// In a WELCOME over a unix socket, with a descriptor beside it: memory that the sender has made for
// both.
struct Offer {
  CanaryInfo canary;
};
inline constexpr size_t kOfferBytes = sizeof(uint64_t) + sizeof(CanaryInfo::value);

struct Shared {
  bool joined = false;  // uses the shared memory
  bool reads = false;   // and what is lent to it
  CanaryInfo canary;    // of what it lends
};

// Where a chunk lies in the lender's memory.
struct Lent {
  std::vector<iovec> pieces;
};

// A whole frame of a type that needs only a length.
std::string EncodeFrame(FrameType type, const std::string& payload);

std::string Encode(const Hello& hello);
std::string Encode(const Challenge& challenge);
std::string Encode(const Signature& signature);
std::string Encode(const Reply& reply);
std::string Encode(const Abort& abort);
std::string Encode(const Offer& offer);
std::string Encode(const Shared& shared);
std::string Encode(const Lent& lent);
Status Decode(std::string_view bytes, Hello* hello);
Status Decode(std::string_view bytes, Challenge* challenge);
Status Decode(std::string_view bytes, Signature* signature);
Status Decode(std::string_view bytes, Reply* reply);
Status Decode(std::string_view bytes, Abort* abort);
Status Decode(std::string_view bytes, Offer* offer);
Status Decode(std::string_view bytes, Shared* shared);
// Fails unless there are from one byte to kChunkBytes of it.
Status Decode(std::string_view bytes, Lent* lent);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_FRAME_H_
