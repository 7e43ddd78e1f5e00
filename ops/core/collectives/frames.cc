#include "core/collectives/frames.h"

#include "core/base/fields.h"

namespace tfdist {
bool LimitsOfCollectives(uint8_t type, FrameLimits* limits) {
  if (type < static_cast<uint8_t>(CollectiveFrame::kOpen) ||
      type > static_cast<uint8_t>(CollectiveFrame::kGoodbye)) {
    return false;
  }
  const bool data = type == static_cast<uint8_t>(CollectiveFrame::kData);
  *limits = {kMaxCollectiveMeta, data ? kChunkBytes : 0};
  return true;
}

bool Signature::Matches(const Signature& other) const {
  return AgreedFields(*this) == AgreedFields(other);
}

std::string Encode(const Signature& signature) {
  if (signature.blocks.size() <= kMaxBlocks) return EncodeFields(signature);
  Signature shorter = signature;
  shorter.blocks.clear();
  return EncodeFields(shorter);
}

Status Decode(std::string_view bytes, Signature* signature) {
  return DecodeFields(bytes, "OPEN frame", signature);
}

std::string Encode(const Reply& reply) { return EncodeFields(reply); }

Status Decode(std::string_view bytes, Reply* reply) {
  return DecodeFields(bytes, "REPLY frame", reply);
}

std::string Encode(const Abort& abort) { return EncodeFields(abort); }

Status Decode(std::string_view bytes, Abort* abort) {
  const Status status = DecodeFields(bytes, "ABORT frame", abort);
  switch (abort->code) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kInternal:
      break;
    default:  // for any other reason of the peer, the peer is unavailable to us
      abort->code = StatusCode::kUnavailable;
  }
  return status;
}

}  // namespace tfdist
