#include "core/collective.h"

namespace tfdist {
namespace {

const char* KindName(uint8_t kind) {
  switch (static_cast<CollectiveKind>(kind)) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kBroadcast:
      return "broadcast";
  }
  return "an unknown collective";
}

std::string Title(const Signature& signature) {
  return StrCat(KindName(signature.kind), " '", signature.name, "'");
}

}  // namespace

std::string Describe(const Signature& signature) {
  std::string text = Title(signature);
  if (signature.kind == static_cast<uint8_t>(CollectiveKind::kAllReduce)) {
    text += signature.reduce_op == static_cast<uint8_t>(ReduceOp::kMean) ? " (mean)" : " (sum)";
  }
  if (signature.kind == static_cast<uint8_t>(CollectiveKind::kBroadcast)) {
    text += StrCat(" (root ", signature.root, ")");
  }
  return text + " " + signature.shapes;
}

std::string Collective::Title() const { return ::tfdist::Title(options_.signature); }

}  // namespace tfdist
