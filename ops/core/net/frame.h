// The frames of a data connection: a fixed header, then `length` bytes of payload.
//
//   - HELLO, CHALLENGE, PROOF: both sides prove that they know the key; see net/authenticate.h
//   - WELCOME: the answer to an accepted PROOF; empty, or an offer to share memory
//   - OPEN: the sender has started collective (key, sequence); contains its signature, and permits
//     the receiver to send large DATA
//   - DATA: one chunk of a collective
//   - QUERY: asks for the state of (key, sequence) on the receiver; sent by a stall check
//   - REPLY: the answer to a QUERY
//   - ABORT: the sender gives up this communicator; contains code and reason
//   - GOODBYE: the sender has finished and starts no further collective
//
// Between ranks of one machine (see link.h):
//   - SHARED: whether the sender uses the shared memory; if so, its last frame on the socket
//   - LEND: one chunk of a collective as addresses in the sender's memory, without its bytes
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
inline constexpr size_t kChunkBytes = 256 * 1024;     // limit of one DATA frame
inline constexpr size_t kMaxControlBytes = 8 * 1024;  // limit of any other frame
inline constexpr size_t kMaxBlocks = 800;             // limit of one OPEN
inline constexpr size_t kMaxLentPieces = 256;         // limit of one LEND frame

// A secret of the ranks of one generation.
using Key = std::array<uint8_t, 32>;
using Nonce = std::array<uint8_t, 16>;

struct FrameHeader {
  FrameType type = FrameType::kData;
  uint16_t step = 0;      // DATA, LEND: step of the algorithm
  uint32_t length = 0;    // payload bytes that follow
  uint64_t key = 0;       // of the collective
  uint64_t sequence = 0;  // of its execution
  uint64_t offset = 0;    // DATA, LEND: first byte in the collective's flat buffer
};

using HeaderBytes = std::array<char, kHeaderBytes>;

HeaderBytes EncodeHeader(const FrameHeader& header);

// Fails for a wrong magic or version, an unknown type, or a length above the type's limit.
Status DecodeHeader(const char* bytes, FrameHeader* header);

struct Hello {
  uint64_t generation = 0;
  uint32_t rank = 0;  // of the dialling side
  uint32_t to = 0;    // the rank that it means to reach; for a server, its generation
  Nonce nonce{};
};
inline constexpr size_t kHelloBytes = sizeof(uint64_t) + 2 * sizeof(uint32_t) + sizeof(Nonce);

struct Challenge {
  Nonce nonce{};
  Digest proof{};
};
inline constexpr size_t kChallengeBytes = sizeof(Nonce) + sizeof(Digest);
inline constexpr size_t kProofBytes = sizeof(Digest);

// The properties of a collective, besides its key, that must be equal on all ranks.
struct Signature {
  uint8_t kind = 0;         // CollectiveKind
  uint8_t dtype = 0;        // DType
  uint8_t reduce_op = 0;    // ReduceOp
  uint8_t algorithm = 0;    // Algorithm
  uint32_t root = 0;        // if the kind has one
  uint64_t elements = 0;    // 0 if it may differ between ranks
  uint64_t shape_hash = 0;  // of the list of shapes
  uint32_t joins = 0;       // joins that have ended on the rank; not compared
  std::string name;         // for messages only; may differ between ranks
  std::string shapes;       // for messages only, such as "float32[128,10], float32[10]"
  // Bytes of each rank's block, for kinds with blocks; see BlocksAgree. Not sent if more than
  // kMaxBlocks.
  std::vector<uint64_t> blocks;

  bool Matches(const Signature& other) const;  // without the blocks
};

// The answer to a QUERY.
struct Reply {
  bool started = false;
  // The oldest unfinished collective of the answering rank, if any: its title, identity and age.
  std::string doing;
  uint64_t key = 0;
  uint64_t sequence = 0;
  double waited_seconds = 0;
};

struct Abort {
  StatusCode code = StatusCode::kUnavailable;
  std::string message;
};

// The payload of a WELCOME over a unix socket, sent with the descriptor of shared memory that the
// sender has created.
struct Offer {
  CanaryInfo canary;
};
inline constexpr size_t kOfferBytes = sizeof(uint64_t) + sizeof(CanaryInfo::value);

struct Shared {
  bool joined = false;  // the sender uses the shared memory
  bool reads = false;   // the sender can read the receiver's exposed memory
  CanaryInfo canary;    // of the sender's exposed memory
};

// The addresses of a chunk in the sender's memory.
struct Lent {
  std::vector<iovec> pieces;
};

// A whole frame whose header needs only type and length.
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
// Fails unless the pieces have between 1 and kChunkBytes bytes.
Status Decode(std::string_view bytes, Lent* lent);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_FRAME_H_
