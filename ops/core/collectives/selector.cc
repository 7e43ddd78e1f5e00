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
#include "core/algorithms/recursive_doubling.h"
#include "core/algorithms/ring.h"
#include "core/algorithms/tree.h"
#include "core/algorithms/two_level.h"
#include "core/collectives/plan_executor.h"

namespace tfdist {
namespace {

// The largest buffers, in bytes, for which few steps matter more than few bytes. Measured over
// loopback on two cores, all in one run each. An all-reduce of 4 KB among 4 ranks takes 0.2 ms by
// recursive doubling and 0.32 ms by the ring, one of 64 KB takes 0.43 ms either way, and one of 1
// MB 3.9 and 1.5 ms; among 2 ranks they meet at 64 KB too.
constexpr size_t kRecursiveDoublingBytes = 32 * 1024;
// Between 4 and 8 ranks the two algorithms of each of these differ by less than the noise from 16
// KB to 256 KB, so the border is where nobody needs to wait for the receiver's OPEN any more. At 16
// KB a tree reduces among 8 ranks in 0.92 ms and a chain in 1.6 ms; at 1 MB a ring scatters among 4
// in 1.1 ms, where everybody sends to everybody in 1.4 ms.
constexpr size_t kTreeBytes = kEagerBytes;
constexpr size_t kBruckBytes = kEagerBytes;
constexpr size_t kDirectReduceScatterBytes = kEagerBytes;

size_t Sum(std::vector<uint64_t>::const_iterator begin, std::vector<uint64_t>::const_iterator end) {
  return std::accumulate(begin, end, size_t{0});
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

Algorithm Choose(const Signature& signature, const std::vector<int>& hosts) {
  const int size = static_cast<int>(hosts.size());
  const std::vector<uint64_t>& blocks = signature.blocks;
  switch (static_cast<CollectiveKind>(signature.kind)) {
    case CollectiveKind::kAllReduce: {
      if (Bytes(signature) <= kRecursiveDoublingBytes) return Algorithm::kRecursiveDoubling;
      const int host_count = *std::max_element(hosts.begin(), hosts.end()) + 1;
      const bool two_level = 1 < host_count && host_count < size;
      return two_level ? Algorithm::kTwoLevel : Algorithm::kRing;
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
    case CollectiveKind::kJoin:  // has a plan of its own, see join.h
      break;
  }
  return Algorithm::kAuto;
}

bool Suits(CollectiveKind kind, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAuto:
      return false;
    case Algorithm::kRing:
      return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
             kind == CollectiveKind::kAllGather;
    case Algorithm::kRecursiveDoubling:
    case Algorithm::kTwoLevel:
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

Plan MakePlan(const Signature& signature, int rank, const std::vector<int>& hosts) {
  const int size = static_cast<int>(hosts.size());
  const int root = static_cast<int>(signature.root);
  const size_t width = ByteSize(static_cast<DType>(signature.dtype));
  const size_t bytes = signature.elements * width;
  const std::vector<uint64_t>& blocks = signature.blocks;
  const Algorithm algorithm = static_cast<Algorithm>(signature.algorithm);
  switch (static_cast<CollectiveKind>(signature.kind)) {
    case CollectiveKind::kAllReduce:
      if (algorithm == Algorithm::kRecursiveDoubling) return RecursiveDoubling(rank, size, bytes);
      if (algorithm == Algorithm::kTwoLevel) {
        return TwoLevelAllReduce(rank, hosts, signature.elements, width);
      }
      return RingAllReduce(rank, size, EvenBounds(signature.elements, width, size));
    case CollectiveKind::kBroadcast: {
      Plan plan = algorithm == Algorithm::kTree ? TreeBroadcast(rank, size, root, bytes)
                                                : ChainBroadcast(rank, size, root, bytes);
      // The root hears from every rank, also those that it sends nothing to: see AwaitsOpens.
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

std::unique_ptr<Collective> MakeExchange(CollectiveOptions options, int rank,
                                         const std::vector<int>& hosts, FlatView input,
                                         FlatView output, std::shared_ptr<void> kept) {
  const Signature& signature = options.signature;
  Plan plan = MakePlan(signature, rank, hosts);
  Exchange::Data data;
  data.dtype = static_cast<DType>(signature.dtype);
  data.reduce_op = static_cast<ReduceOp>(signature.reduce_op);
  data.divisor = static_cast<int>(hosts.size());
  data.kept.push_back(std::move(kept));
  std::vector<iovec> pieces;
  switch (static_cast<Algorithm>(signature.algorithm)) {
    case Algorithm::kRecursiveDoubling: {
      // It must not change under way, as it would if it were the output's memory too.
      const std::shared_ptr<char[]> copy(new char[input.bytes()]);
      input.Slice(0, input.bytes(), &pieces);
      char* to = copy.get();
      for (const iovec& piece : pieces) {
        std::memcpy(to, piece.iov_base, piece.iov_len);
        to += piece.iov_len;
      }
      input = FlatView({{copy.get(), input.bytes()}});
      data.kept.push_back(std::shared_ptr<void>(copy, copy.get()));
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
  return std::make_unique<Exchange>(std::move(options), std::move(plan), std::move(data));
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
