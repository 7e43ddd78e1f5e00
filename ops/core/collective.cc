#include "core/collective.h"

namespace tfdist {

const char* KindName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kBroadcast:
      return "broadcast";
  }
  return "an unknown collective";
}

std::string Collective::Title() const {
  return StrCat(KindName(static_cast<CollectiveKind>(signature().kind)), " '", signature().name,
                "'");
}

}  // namespace tfdist
