#include "core/collectives/join.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "core/algorithms/direct.h"
#include "core/collectives/selector.h"
#include "core/math/combine.h"

namespace tfdist {
namespace {

// A limit for the sizes that a peer claims: more than the memory of any rank.
constexpr uint64_t kMaxClaimedBytes = uint64_t{1} << 42;

bool IsValid(const Signature& signature, int size) {
  const CollectiveKind kind = static_cast<CollectiveKind>(signature.kind);
  if (signature.dtype < static_cast<uint8_t>(DType::kFloat16) ||
      signature.dtype > static_cast<uint8_t>(DType::kBool)) {
    return false;
  }
  const DType dtype = static_cast<DType>(signature.dtype);
  if (!HasAlgorithm(kind, static_cast<Algorithm>(signature.algorithm))) return false;
  if (signature.root >= static_cast<uint32_t>(size)) return false;
  if (Reduces(kind) && (signature.reduce_op < static_cast<uint8_t>(ReduceOp::kSum) ||
                        signature.reduce_op > static_cast<uint8_t>(ReduceOp::kProduct) ||
                        !CanReduce(dtype, static_cast<ReduceOp>(signature.reduce_op)))) {
    return false;
  }
  if (signature.elements > kMaxClaimedBytes / ByteSize(dtype)) return false;
  if (signature.stripes_from != kNotStriped && signature.stripes_from > kMaxClaimedBytes) {
    return false;
  }
  if (signature.blocks.size() != static_cast<size_t>(HasBlocks(kind) ? size : 0)) return false;
  uint64_t all = 0;
  for (const uint64_t bytes : signature.blocks) {
    if (bytes > kMaxClaimedBytes || (all += bytes) > kMaxClaimedBytes ||
        bytes % ByteSize(dtype) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

Join::Join(CollectiveOptions options, Plan plan, Data data, std::shared_ptr<Counts> counts,
           int rank, Begin begin, CaughtUp caught_up)
    : PlanExecutor(std::move(options), std::move(plan), std::move(data)),
      rank_(rank),
      begin_(std::move(begin)),
      counts_(std::move(counts)),
      caught_up_(std::move(caught_up)) {}

std::unique_ptr<Join> Join::Make(CollectiveOptions options, int rank, int size, Begin begin,
                                 CaughtUp caught_up, int* last_rank) {
  options.signature.kind = static_cast<uint8_t>(CollectiveKind::kJoin);
  const auto counts = std::make_shared<Counts>(size);
  options.done = [counts, last_rank, done = std::move(options.done)](const Status& status) {
    // The highest rank with the largest number.
    const auto last = std::max_element(counts->rbegin(), counts->rend());
    if (status.ok()) *last_rank = static_cast<int>(counts->rend() - last) - 1;
    done(status);
  };
  const size_t width = sizeof(Counts::value_type);
  Plan plan;
  plan.steps = 1;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    plan.Send(0, peer, {Memory::kOutput, rank * width}, width);
    plan.Receive(0, peer, {Memory::kOutput, peer * width}, width);
  }
  Data data;
  data.output = FlatView({{counts->data(), size * width}});
  return std::unique_ptr<Join>(new Join(std::move(options), std::move(plan), std::move(data),
                                        counts, rank, std::move(begin), std::move(caught_up)));
}

void Join::Start(ChunkSender& sender) {
  (*counts_)[rank_] = begin_();
  PlanExecutor::Start(sender);
}

bool Join::Settled() const {
  return PlanExecutor::Settled() && caught_up_(*std::max_element(counts_->begin(), counts_->end()));
}

std::string StandInRefused(const Signature& signature, int rank, int size) {
  const CollectiveKind kind = static_cast<CollectiveKind>(signature.kind);
  if (kind == CollectiveKind::kAllToAll) return "takes part in no all_to_all";
  const bool source = kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kScatter;
  if (source && signature.root == static_cast<uint32_t>(rank)) return "cannot be its root";
  if (!IsValid(signature, size)) return "does not understand it";
  return "";
}

StandInMemory::StandInMemory(uint64_t limit)
    : limit_(limit), taken_(std::make_shared<std::atomic<uint64_t>>(0)) {}

uint64_t StandInMemory::Limit() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) / 2 *
         static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
}

std::shared_ptr<char> StandInMemory::Take(uint64_t bytes) {
  const uint64_t taken = taken_->load(std::memory_order_relaxed);
  if (bytes > limit_ - std::min(limit_, taken)) return nullptr;
  char* const memory = static_cast<char*>(std::calloc(bytes + 1, 1));
  if (memory == nullptr) return nullptr;
  taken_->fetch_add(bytes, std::memory_order_relaxed);
  return {memory, [bytes, taken = taken_](char* of) {
            std::free(of);
            taken->fetch_sub(bytes, std::memory_order_relaxed);
          }};
}

std::unique_ptr<Collective> MakeStandIn(const CollectiveId& id, const Signature& signature,
                                        int rank, const std::vector<int>& hosts,
                                        StandInMemory* stand_ins) {
  const CollectiveKind kind = static_cast<CollectiveKind>(signature.kind);
  const DType dtype = static_cast<DType>(signature.dtype);
  const DataBytes bytes = ExpectedBytes(signature, rank, static_cast<int>(hosts.size()));
  // An all-reduce works in place.
  const bool in_place = kind == CollectiveKind::kAllReduce;
  const std::shared_ptr<char> memory = stand_ins->Take(bytes.input + (in_place ? 0 : bytes.output));
  if (memory == nullptr) return nullptr;
  if (Reduces(kind)) {
    FillIdentity(dtype, static_cast<ReduceOp>(signature.reduce_op), memory.get(),
                 bytes.input / ByteSize(dtype));
  }
  char* const output = memory.get() + (in_place ? 0 : bytes.input);
  CollectiveOptions options;
  options.id = id;
  options.signature = signature;
  options.done = [](const Status&) {};
  try {
    return MakePlanExecutor(std::move(options), rank, hosts,
                            FlatView({{memory.get(), bytes.input}}),
                            FlatView({{output, bytes.output}}), memory);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace tfdist
