#include "core/collectives/collective.h"

#include <algorithm>

#include "core/math/combine.h"

namespace tfdist {
namespace {

using Blocks = std::vector<uint64_t>::const_iterator;

// " 4, 8, 4 bytes"
std::string FormatBlocks(Blocks begin, Blocks end) {
  constexpr ptrdiff_t kMaxShown = 16;
  const Blocks shown = end - begin > kMaxShown ? begin + kMaxShown : end;
  std::string text;
  for (auto block = begin; block != shown; ++block) {
    text += StrCat(block == begin ? " " : ", ", *block);
  }
  return text + (shown != end ? ", ... bytes" : " bytes");
}

}  // namespace

const char* KindName(uint8_t kind) {
  switch (static_cast<CollectiveKind>(kind)) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kReduce:
      return "reduce";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kGather:
      return "gather";
    case CollectiveKind::kScatter:
      return "scatter";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kJoin:
      return "join";
  }
  return "an unknown collective";
}

const char* Name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAuto:
      return "auto";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kRecursiveDoubling:
      return "recursive doubling";
    case Algorithm::kTwoLevel:
      return "two-level";
    case Algorithm::kTree:
      return "tree";
    case Algorithm::kChain:
      return "chain";
    case Algorithm::kBruck:
      return "Bruck";
    case Algorithm::kDirect:
      return "direct";
    case Algorithm::kDissemination:
      return "dissemination";
    case Algorithm::kHalvingDoubling:
      return "halving and doubling";
    case Algorithm::kDoubleTree:
      return "double tree";
  }
  return "an unknown algorithm";
}

std::string Title(const Signature& signature) {
  return StrCat(KindName(signature.kind), " '", signature.name, "'");
}

bool HasRoot(CollectiveKind kind) {
  return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter;
}

bool HasBlocks(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter ||
         kind == CollectiveKind::kAllToAll;
}

bool Reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kReduceScatter;
}

bool AwaitsOpens(const Signature& signature, int rank) {
  return static_cast<CollectiveKind>(signature.kind) == CollectiveKind::kBroadcast &&
         static_cast<int>(signature.root) == rank;
}

std::string Describe(const Signature& signature) {
  const CollectiveKind kind = static_cast<CollectiveKind>(signature.kind);
  std::string text = Title(signature);
  if (Reduces(kind)) {
    text += StrCat(" (", Name(static_cast<ReduceOp>(signature.reduce_op)), ")");
  }
  if (HasRoot(kind)) text += StrCat(" (root ", signature.root, ")");
  text += " " + signature.shapes;
  const Algorithm algorithm = static_cast<Algorithm>(signature.algorithm);
  if (algorithm != Algorithm::kAuto) text += StrCat(" by ", Name(algorithm));
  const std::vector<uint64_t>& blocks = signature.blocks;
  if (kind == CollectiveKind::kAllToAll) {
    const auto middle = blocks.begin() + blocks.size() / 2;
    return text + " sends" + FormatBlocks(blocks.begin(), middle) + " receives" +
           FormatBlocks(middle, blocks.end());
  }
  return blocks.empty() ? text : text + " blocks of" + FormatBlocks(blocks.begin(), blocks.end());
}

bool BlocksAgree(const Signature& ours, int rank, const Signature& theirs, int peer) {
  if (ours.blocks.size() > kMaxBlocks) return true;  // not sent
  if (ours.blocks.size() != theirs.blocks.size()) return false;
  if (static_cast<CollectiveKind>(ours.kind) != CollectiveKind::kAllToAll) {
    return ours.blocks == theirs.blocks;
  }
  const size_t size = ours.blocks.size() / 2;
  return ours.blocks[peer] == theirs.blocks[size + rank] &&
         ours.blocks[size + peer] == theirs.blocks[rank];
}

std::string Collective::Title() const { return ::tfdist::Title(options_.signature); }

void Collective::RecordStart() {
  if (!std::exchange(moves_, true)) ProcessEvents().Start(event);
}

void Collective::RecordEnd(const Status& status, TimePoint at) {
  ProcessEvents().End(std::exchange(event, 0), status, at);
}

int Collective::Unopened() const {
  for (const int peer : Peers()) {
    if (std::find(opened_by.begin(), opened_by.end(), peer) == opened_by.end()) return peer;
  }
  return -1;
}

}  // namespace tfdist
