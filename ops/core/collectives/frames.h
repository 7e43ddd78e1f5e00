// The frames of collectives (net/frame.h has the format that all connections share).
//
//   - OPEN: "I have started collective (key, sequence)", with its signature; it also permits large
//     DATA to be sent
//   - DATA: one chunk of a collective, which is its payload
//   - QUERY: "where are you in (key, sequence)?", asked only when a deadline has passed
//   - REPLY: the answer to a QUERY
//   - ABORT: the sender gives up this communicator; code and reason inside
//   - GOODBYE: the sender has finished and starts no further collective
#ifndef TFDIST_OPS_CORE_COLLECTIVES_FRAMES_H_
#define TFDIST_OPS_CORE_COLLECTIVES_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/base/status.h"
#include "core/net/frame.h"

namespace tfdist {

enum class CollectiveFrame : uint8_t {
  kOpen = kFirstCollectiveType,
  kData,
  kQuery,
  kReply,
  kAbort,
  kGoodbye,
};

inline constexpr size_t kChunkBytes = 256 * 1024;  // the payload of a DATA frame is at most this
inline constexpr size_t kMaxCollectiveMeta = 8 * 1024;
inline constexpr uint16_t kMaxTextBytes = 512;  // of a name; it is cut
inline constexpr size_t kMaxBlocks = 800;       // an OPEN lists at most these
inline constexpr uint64_t kNotStriped = ~uint64_t{0};

bool LimitsOfCollectives(uint8_t type, FrameLimits* limits);

// The attributes of a collective, besides the key, on which all ranks must agree.
struct Signature {
  uint8_t kind = 0;         // CollectiveKind
  uint8_t dtype = 0;        // DType
  uint8_t reduce_op = 0;    // ReduceOp
  uint8_t algorithm = 0;    // Algorithm
  uint32_t root = 0;        // where there is one
  uint64_t elements = 0;    // 0 where ranks may differ
  uint64_t shape_hash = 0;  // of the list of shapes
  // An all-reduce of a bucket of a list: the bucket's first element in the list; see stripes.h.
  uint64_t stripes_from = kNotStriped;
  uint32_t joins = 0;  // how many joins the rank has seen the end of; not compared
  std::string name;    // for messages only; may differ between ranks
  std::string shapes;  // for messages only, such as "float32[128,10], float32[10]"
  // Bytes of each rank's block, where there are blocks; see BlocksAgree. Too many do not travel.
  std::vector<uint64_t> blocks;

  // Must be equal on all ranks, except `blocks`.
  template <typename Message>
  static auto AgreedFields(Message& m) {
    return std::tie(m.kind, m.dtype, m.reduce_op, m.algorithm, m.root, m.elements, m.shape_hash,
                    m.stripes_from);
  }
  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    std::apply(visit, AgreedFields(m));
    visit(m.joins);
    visit.Text(m.name, kMaxTextBytes);
    visit.Text(m.shapes, kMaxTextBytes);
    visit(m.blocks);
    visit.Check(m.blocks.size() <= kMaxBlocks);
  }

  bool Matches(const Signature& other) const;  // except the blocks
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

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.started);
    visit.Text(m.doing, kMaxTextBytes);
    visit(m.key, m.sequence, m.waited_seconds);
  }
};

struct Abort {
  StatusCode code = StatusCode::kUnavailable;
  std::string message;

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit.Code(m.code);
    visit.Text(m.message, kMaxTextBytes);
  }
};

std::string Encode(const Signature& signature);
std::string Encode(const Reply& reply);
std::string Encode(const Abort& abort);
Status Decode(std::string_view bytes, Signature* signature);
Status Decode(std::string_view bytes, Reply* reply);
Status Decode(std::string_view bytes, Abort* abort);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_FRAMES_H_
