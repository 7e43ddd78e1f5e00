// The frames of a data connection: a fixed header, `meta` (small, parsed) and a payload (values).
//
//     header (48 bytes) | meta_bytes of meta | payload_bytes of payload
//
// Where both ends are on one machine, a large payload may stay in the sender's memory
// (peer_memory.h): meta then ends with the addresses of its `exposed` pieces, and nothing follows.
//
// The types below belong to the connection itself. Collectives (collectives/frames.h) and parameter
// servers (ps/protocol/message.h) have types of their own, from kFirstCollectiveType and
// kFirstPsType on.
#ifndef TFDIST_OPS_CORE_NET_FRAME_H_
#define TFDIST_OPS_CORE_NET_FRAME_H_

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace tfdist {

enum class FrameType : uint8_t {
  // How the two sides prove to each other that they know the job's key; see authenticate.h.
  kHello = 1,
  kChallenge = 2,
  kProof = 3,
  kWelcome = 4,  // the answer to a PROOF that was accepted
  // Between processes of one machine; see message_stream.h.
  kShared = 5,   // whether the sender uses the shared memory; then its last frame on the socket
  kRelease = 6,  // the receiver has copied the oldest payload that was exposed to it
  kRefuse = 7,   // the receiver cannot read the oldest payload that was exposed to it
};

inline constexpr uint8_t kFirstCollectiveType = 16;
inline constexpr uint8_t kFirstPsType = 32;

inline constexpr size_t kFrameHeaderBytes = 48;

struct FrameHeader {
  uint8_t type = 0;
  uint16_t step = 0;           // of a collective's algorithm
  uint32_t meta_bytes = 0;     // with the addresses of exposed pieces
  uint32_t exposed = 0;        // pieces of the payload that do not follow
  uint64_t payload_bytes = 0;  // also of exposed pieces
  uint64_t key = 0;            // which collective; which request
  uint64_t sequence = 0;       // which execution of the collective
  uint64_t offset = 0;         // the payload's first byte in the collective's flat buffer

  bool Is(FrameType other) const { return type == static_cast<uint8_t>(other); }
};

// The largest meta and payload that a protocol has for a type; false if it does not know the type.
struct FrameLimits {
  uint32_t meta_bytes = 0;
  uint64_t payload_bytes = 0;
};
using LimitsOf = bool (*)(uint8_t type, FrameLimits* limits);

// Of the types above.
bool LimitsOfConnection(uint8_t type, FrameLimits* limits);

// Whether `bytes` begin as frames do, and as no TLS record does.
bool BeginsFrame(std::string_view bytes);

using FrameHeaderBytes = std::array<char, kFrameHeaderBytes>;

FrameHeaderBytes Encode(const FrameHeader& header);
// Fails on a wrong magic or version, a type that neither a connection nor the protocol has, or a
// length above the type's limit.
Status Decode(const char* bytes, LimitsOf limits_of, FrameHeader* header);

// A whole frame without payload.
std::string EncodeFrame(uint8_t type, std::string_view meta);
inline std::string EncodeFrame(FrameType type, std::string_view meta) {
  return EncodeFrame(static_cast<uint8_t>(type), meta);
}

// Appends the addresses of `pieces` to `meta`, and notes them in the header.
void AppendExposed(const std::vector<iovec>& pieces, FrameHeader* header, std::string* meta);
// Takes them off the end of `meta`. Fails unless they make up the payload.
Status TakeExposed(const FrameHeader& header, std::string_view* meta, std::vector<iovec>* pieces);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_FRAME_H_
