#include "core/collectives/selector.h"

#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "core/algorithms/bruck.h"
#include "core/algorithms/chain.h"
#include "core/algorithms/direct.h"
#include "core/algorithms/dissemination.h"
#include "core/algorithms/double_tree.h"
#include "core/algorithms/halving_doubling.h"
#include "core/algorithms/recursive_doubling.h"
#include "core/algorithms/ring.h"
#include "core/algorithms/stripes.h"
#include "core/algorithms/tree.h"
#include "core/algorithms/two_level.h"
#include "core/collectives/plan_executor.h"

namespace tfdist {
namespace {

// The largest buffers, in bytes, for which the number of steps matters more than the number of
// bytes. Measured over loopback on two cores, each comparison in one run. An all-reduce among 4
// ranks by recursive doubling and by the ring takes 0.2 and 0.32 ms for 4 KB, 0.43 ms each for 64
// KB, and 3.9 and 1.5 ms for 1 MB; among 2 ranks both are equal at 64 KB too.
constexpr size_t kRecursiveDoublingBytes = 32 * 1024;
// Halving and doubling sends as much as the ring if the ranks are a power of two, in fewer steps. 4
// ranks take 0.24 and 0.45 ms for 64 KB, and 5.9 and 6.8 ms for 4 MB. 8 ranks take 2.9 and 4.6 ms
// for 1 MB. Above, and with 16 ranks and more, neither is ahead in all runs.
constexpr size_t kHalvingDoublingBytes = 8 * 1024 * 1024;
// 16 ranks take 1.5 and 2.8 ms for 64 KB by a double tree and by the ring, 6.3 to 8.1 and 8.7 to 11
// ms for 1 MB; 64 ranks 14 and 34, 47 and 59 ms. A tree's last messages are longer than a ring's.
// So on slower links than the loopback the ring would be faster at some size above.
constexpr int kDoubleTreeRanks = 16;
constexpr size_t kDoubleTreeBytes = 1024 * 1024;
// With 4 to 8 ranks the two algorithms of each of these kinds differ by less than the noise from 16
// KB to 256 KB, so they change at the limit of eager sends. At 16 KB among 8 ranks a reduce takes
// 0.92 ms by a tree and 1.6 ms by a chain; at 1 MB among 4 ranks a reduce-scatter takes 1.1 ms by
// the ring and 1.4 ms by direct exchange.
constexpr size_t kTreeBytes = kEagerBytes;
constexpr size_t kBruckBytes = kEagerBytes;
constexpr size_t kDirectReduceScatterBytes = kEagerBytes;

size_t Sum(std::vector<uint64_t>::const_iterator begin, std::vector<uint64_t>::const_iterator end) {
  return std::accumulate(begin, end, size_t{0});
}

int HostCount(const std::vector<int>& hosts) {
  return *std::max_element(hosts.begin(), hosts.end()) + 1;
}

size_t Bytes(const Signature& signature) {
  return signature.elements * ByteSize(static_cast<DType>(signature.dtype));
}

}  // namespace

std::vector<int> NumberHosts(const std::vector<std::string>& addresses) {
  std::unordered_map<std::string, int> numbers;
  std::vector<int> hosts;
  for (const std::string& address : addresses) {
    const std::string host = address.substr(0, address.rfind(':'));
    hosts.push_back(numbers.emplace(host, static_cast<int>(numbers.size())).first->second);
  }
  return hosts;
}

Algorithm SelectAlgorithm(const Signature& signature, const std::vector<int>& hosts) {
  const int size = static_cast<int>(hosts.size());
  const std::vector<uint64_t>& blocks = signature.blocks;
  switch (static_cast<CollectiveKind>(signature.kind)) {
    case CollectiveKind::kAllReduce: {
      // The algorithm of a bucket must not depend on its size, because the sums do.
      const bool striped = signature.stripes_from != kNotStriped;
      if (!striped && Bytes(signature) <= kRecursiveDoublingBytes) {
        return Algorithm::kRecursiveDoubling;
      }
      const int host_count = HostCount(hosts);
      if (1 < host_count && host_count < size) return Algorithm::kTwoLevel;
      if (striped) return Algorithm::kRing;
      if ((size == 4 || size == 8) && Bytes(signature) <= kHalvingDoublingBytes) {
        return Algorithm::kHalvingDoubling;
      }
      if (size >= kDoubleTreeRanks && Bytes(signature) <= kDoubleTreeBytes) {
        return Algorithm::kDoubleTree;
      }
      return Algorithm::kRing;
    }
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      return Bytes(signature) <= kTreeBytes ? Algorithm::kTree : Algorithm::kChain;
    case CollectiveKind::kAllGather:
      return Sum(blocks.begin(), blocks.end()) <= kBruckBytes ? Algorithm::kBruck
                                                              : Algorithm::kRing;
    case CollectiveKind::kReduceScatter:
      return Sum(blocks.begin(), blocks.end()) <= kDirectReduceScatterBytes ? Algorithm::kDirect
                                                                            : Algorithm::kRing;
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
    case CollectiveKind::kAllToAll:
      return Algorithm::kDirect;
    case CollectiveKind::kBarrier:
      return Algorithm::kDissemination;
    case CollectiveKind::kJoin:  // makes its own plan, see join.h
      break;
  }
  return Algorithm::kAuto;
}

bool HasAlgorithm(CollectiveKind kind, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAuto:
      return false;
    case Algorithm::kRing:
      return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
             kind == CollectiveKind::kAllGather;
    case Algorithm::kRecursiveDoubling:
    case Algorithm::kTwoLevel:
    case Algorithm::kHalvingDoubling:
    case Algorithm::kDoubleTree:
      return kind == CollectiveKind::kAllReduce;
    case Algorithm::kTree:
    case Algorithm::kChain:
      return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce;
    case Algorithm::kBruck:
      return kind == CollectiveKind::kAllGather;
    case Algorithm::kDirect:
      return kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter ||
             kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kReduceScatter;
    case Algorithm::kDissemination:
      return kind == CollectiveKind::kBarrier;
  }
  return false;
}

int StripedSegments(const Signature& signature, const std::vector<int>& hosts) {
  if (signature.stripes_from == kNotStriped) return 0;
  const bool two_level = static_cast<Algorithm>(signature.algorithm) == Algorithm::kTwoLevel;
  const int segments = two_level ? HostCount(hosts) : static_cast<int>(hosts.size());
  return segments > 2 ? segments : 0;
}

FlatView InOrderOfStripes(const FlatView& view, const Signature& signature, int segments) {
  std::vector<iovec> pieces;
  for (const Stripe& stripe : Stripes(signature.stripes_from, signature.elements,
                                      ByteSize(static_cast<DType>(signature.dtype)), segments)) {
    view.Slice(stripe.begin, stripe.end, &pieces);
  }
  return FlatView(std::move(pieces));
}

Plan MakePlan(const Signature& signature, int rank, const std::vector<int>& hosts) {
  const int size = static_cast<int>(hosts.size());
  const int root = static_cast<int>(signature.root);
  const size_t width = ByteSize(static_cast<DType>(signature.dtype));
  const size_t bytes = signature.elements * width;
  const std::vector<uint64_t>& blocks = signature.blocks;
  const Algorithm algorithm = static_cast<Algorithm>(signature.algorithm);
  switch (static_cast<CollectiveKind>(signature.kind)) {
    case CollectiveKind::kAllReduce: {
      if (algorithm == Algorithm::kRecursiveDoubling) return RecursiveDoubling(rank, size, bytes);
      if (algorithm == Algorithm::kHalvingDoubling) {
        return HalvingDoubling(rank, size,
                               EvenBounds(signature.elements, width, LargestPower(size)));
      }
      if (algorithm == Algorithm::kDoubleTree) {
        return DoubleTree(rank, size, EvenBounds(signature.elements, width, 2));
      }
      const int segments = algorithm == Algorithm::kTwoLevel ? HostCount(hosts) : size;
      const std::vector<size_t> bounds =
          StripedSegments(signature, hosts) > 0
              ? StripedBounds(signature.stripes_from, signature.elements, width, segments)
              : EvenBounds(signature.elements, width, segments);
      return algorithm == Algorithm::kTwoLevel ? TwoLevelAllReduce(rank, hosts, bounds)
                                               : RingAllReduce(rank, size, bounds);
    }
    case CollectiveKind::kBroadcast: {
      Plan plan = algorithm == Algorithm::kTree ? TreeBroadcast(rank, size, root, bytes)
                                                : ChainBroadcast(rank, size, root, bytes);
      // The root gets the OPEN of every rank, also of those to which it sends nothing: see
      // AwaitsOpens.
      if (rank != root) plan.AddPeer(root);
      for (int peer = 0; rank == root && peer < size; ++peer) {
        if (peer != root) plan.AddPeer(peer);
      }
      return plan;
    }
    case CollectiveKind::kReduce:
      return algorithm == Algorithm::kTree ? TreeReduce(rank, size, root, bytes)
                                           : ChainReduce(rank, size, root, bytes);
    case CollectiveKind::kAllGather:
      return algorithm == Algorithm::kBruck ? BruckAllGather(rank, size, Bounds(blocks))
                                            : RingAllGather(rank, size, Bounds(blocks));
    case CollectiveKind::kReduceScatter:
      return algorithm == Algorithm::kDirect ? DirectReduceScatter(rank, size, Bounds(blocks))
                                             : RingReduceScatter(rank, size, Bounds(blocks));
    case CollectiveKind::kGather:
      return DirectGather(rank, size, root, Bounds(blocks));
    case CollectiveKind::kScatter:
      return DirectScatter(rank, size, root, Bounds(blocks));
    case CollectiveKind::kAllToAll:
      return DirectAllToAll(rank, size, Bounds({blocks.begin(), blocks.begin() + size}),
                            Bounds({blocks.begin() + size, blocks.end()}));
    case CollectiveKind::kBarrier:
      return DisseminationBarrier(rank, size);
    case CollectiveKind::kJoin:
      break;
  }
  return Plan();
}

std::unique_ptr<Collective> MakePlanExecutor(CollectiveOptions options, int rank,
                                             const std::vector<int>& hosts, FlatView input,
                                             FlatView output, std::shared_ptr<void> keepalive) {
  const Signature& signature = options.signature;
  Plan plan = MakePlan(signature, rank, hosts);
  PlanExecutor::Data data;
  data.dtype = static_cast<DType>(signature.dtype);
  data.reduce_op = static_cast<ReduceOp>(signature.reduce_op);
  data.divisor = static_cast<int>(hosts.size());
  data.keepalive.push_back(std::move(keepalive));
  std::vector<iovec> pieces;
  switch (static_cast<Algorithm>(signature.algorithm)) {
    case Algorithm::kRecursiveDoubling: {
      // The input must not change during the collective, as it would in place.
      const std::shared_ptr<char[]> copy(new char[input.bytes()]);
      input.Slice(0, input.bytes(), &pieces);
      char* to = copy.get();
      for (const iovec& piece : pieces) {
        std::memcpy(to, piece.iov_base, piece.iov_len);
        to += piece.iov_len;
      }
      input = FlatView({{copy.get(), input.bytes()}});
      data.keepalive.push_back(std::shared_ptr<void>(copy, copy.get()));
      break;
    }
    case Algorithm::kBruck:
      output.Slice(0, output.bytes(), &pieces);
      output.Slice(0, output.bytes(), &pieces);
      output = FlatView(std::move(pieces));
      break;
    default:
      break;
  }
  data.input = std::move(input);
  data.output = std::move(output);
  return std::make_unique<PlanExecutor>(std::move(options), std::move(plan), std::move(data));
}

DataBytes ExpectedBytes(const Signature& signature, int rank, int size) {
  const size_t bytes = Bytes(signature);
  const bool root = rank == static_cast<int>(signature.root);
  const std::vector<uint64_t>& blocks = signature.blocks;
  const size_t all = Sum(blocks.begin(), blocks.end());
  switch (static_cast<CollectiveKind>(signature.kind)) {
    case CollectiveKind::kAllReduce:
      return {bytes, bytes};
    case CollectiveKind::kBroadcast:
      return {0, bytes};
    case CollectiveKind::kReduce:
      return {bytes, root ? bytes : 0};
    case CollectiveKind::kAllGather:
      return {0, all};
    case CollectiveKind::kReduceScatter:
      return {all, blocks[rank]};
    case CollectiveKind::kGather:
      return {blocks[rank], root ? all : 0};
    case CollectiveKind::kScatter:
      return {root ? all : 0, blocks[rank]};
    case CollectiveKind::kAllToAll:
      return {Sum(blocks.begin(), blocks.begin() + size), Sum(blocks.begin() + size, blocks.end())};
    case CollectiveKind::kBarrier:
      return {0, 1};
    case CollectiveKind::kJoin:
      break;
  }
  return {};
}

}  // namespace tfdist
