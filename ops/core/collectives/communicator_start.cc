// How each collective starts: what is asked for is checked, its signature filled in, the algorithm
// chosen, and what stays on this rank copied, all on the caller's thread.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "core/collectives/communicator.h"
#include "core/collectives/selector.h"
#include "core/math/combine.h"

namespace tfdist {
namespace {

Signature& Fill(CollectiveOptions* options, CollectiveKind kind, DType dtype) {
  options->signature.kind = static_cast<uint8_t>(kind);
  options->signature.dtype = static_cast<uint8_t>(dtype);
  return options->signature;
}

void CopyBytes(const FlatView& from, size_t from_begin, const FlatView& to, size_t to_begin,
               size_t bytes) {
  std::vector<iovec> in, out;
  from.Slice(from_begin, from_begin + bytes, &in);
  to.Slice(to_begin, to_begin + bytes, &out);
  for (size_t i = 0, j = 0, skip_i = 0, skip_j = 0; i < in.size() && j < out.size();) {
    const size_t part = std::min(in[i].iov_len - skip_i, out[j].iov_len - skip_j);
    char* const target = static_cast<char*>(out[j].iov_base) + skip_j;
    const char* const source = static_cast<const char*>(in[i].iov_base) + skip_i;
    if (target != source) std::memcpy(target, source, part);
    skip_i += part;
    skip_j += part;
    if (skip_i == in[i].iov_len) ++i, skip_i = 0;
    if (skip_j == out[j].iov_len) ++j, skip_j = 0;
  }
}

// What a rank gives itself.
void CopyOwn(const Signature& signature, int rank, int size, const FlatView& input,
             const FlatView& output) {
  const std::vector<uint64_t>& blocks = signature.blocks;
  const auto before = [&blocks](int block) {
    return std::accumulate(blocks.begin(), blocks.begin() + block, size_t{0});
  };
  const bool root = rank == static_cast<int>(signature.root);
  switch (static_cast<CollectiveKind>(signature.kind)) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kReduceScatter:
      if (size == 1) CopyBytes(input, 0, output, 0, output.bytes());
      return;
    case CollectiveKind::kGather:
      if (root) CopyBytes(input, 0, output, before(rank), blocks[rank]);
      return;
    case CollectiveKind::kScatter:
      if (root) CopyBytes(input, before(rank), output, 0, blocks[rank]);
      return;
    case CollectiveKind::kAllToAll:
      CopyBytes(input, before(rank), output, before(size + rank) - before(size), blocks[rank]);
      return;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
      return;
  }
}

}  // namespace

void Communicator::AllReduce(CollectiveOptions options, FlatView input, FlatView output,
                             DType dtype, ReduceOp reduce_op) {
  Signature& signature = Fill(&options, CollectiveKind::kAllReduce, dtype);
  signature.reduce_op = static_cast<uint8_t>(reduce_op);
  signature.elements = output.bytes() / ByteSize(dtype);
  Start(std::move(options), 0, std::move(input), std::move(output));
}

void Communicator::Reduce(CollectiveOptions options, FlatView input, FlatView output, DType dtype,
                          ReduceOp reduce_op, int root) {
  Signature& signature = Fill(&options, CollectiveKind::kReduce, dtype);
  signature.reduce_op = static_cast<uint8_t>(reduce_op);
  signature.elements = input.bytes() / ByteSize(dtype);
  Start(std::move(options), root, std::move(input), std::move(output));
}

void Communicator::ReduceScatter(CollectiveOptions options, FlatView input, FlatView output,
                                 DType dtype, ReduceOp reduce_op,
                                 const std::vector<size_t>& block_bytes) {
  Signature& signature = Fill(&options, CollectiveKind::kReduceScatter, dtype);
  signature.reduce_op = static_cast<uint8_t>(reduce_op);
  signature.blocks.assign(block_bytes.begin(), block_bytes.end());
  Start(std::move(options), 0, std::move(input), std::move(output));
}

void Communicator::AllGather(CollectiveOptions options, DType dtype,
                             const std::vector<size_t>& block_bytes, FlatView output) {
  Signature& signature = Fill(&options, CollectiveKind::kAllGather, dtype);
  signature.blocks.assign(block_bytes.begin(), block_bytes.end());
  Start(std::move(options), 0, FlatView(), std::move(output));
}

void Communicator::Gather(CollectiveOptions options, DType dtype,
                          const std::vector<size_t>& block_bytes, int root, FlatView input,
                          FlatView output) {
  Signature& signature = Fill(&options, CollectiveKind::kGather, dtype);
  signature.blocks.assign(block_bytes.begin(), block_bytes.end());
  Start(std::move(options), root, std::move(input), std::move(output));
}

void Communicator::Scatter(CollectiveOptions options, DType dtype,
                           const std::vector<size_t>& block_bytes, int root, FlatView input,
                           FlatView output) {
  Signature& signature = Fill(&options, CollectiveKind::kScatter, dtype);
  signature.blocks.assign(block_bytes.begin(), block_bytes.end());
  Start(std::move(options), root, std::move(input), std::move(output));
}

void Communicator::AllToAll(CollectiveOptions options, DType dtype,
                            const std::vector<size_t>& send_bytes,
                            const std::vector<size_t>& receive_bytes, FlatView input,
                            FlatView output) {
  Signature& signature = Fill(&options, CollectiveKind::kAllToAll, dtype);
  signature.blocks.assign(send_bytes.begin(), send_bytes.end());
  signature.blocks.insert(signature.blocks.end(), receive_bytes.begin(), receive_bytes.end());
  Start(std::move(options), 0, std::move(input), std::move(output));
}

void Communicator::Barrier(CollectiveOptions options) {
  Fill(&options, CollectiveKind::kBarrier, DType::kBytes);
  // Every barrier sends and receives the same byte, whose value nobody looks at.
  auto token = std::make_shared<char>('!');
  const FlatView output({{token.get(), 1}});
  Start(std::move(options), 0, FlatView(), output, std::move(token));
}

void Communicator::Broadcast(CollectiveOptions options, DType dtype, int root, FlatView buffer) {
  Signature& signature = Fill(&options, CollectiveKind::kBroadcast, dtype);
  signature.elements = buffer.bytes() / ByteSize(dtype);
  Start(std::move(options), root, FlatView(), std::move(buffer));
}

// Why a collective cannot start, or OK.
Status Communicator::CheckStart(const Signature& signature, int root, Algorithm algorithm,
                                size_t input_bytes, size_t output_bytes) const {
  const CollectiveKind kind = static_cast<CollectiveKind>(signature.kind);
  const DType dtype = static_cast<DType>(signature.dtype);
  const auto bad = [&](const std::string& what) {
    return Status(StatusCode::kInvalidArgument, StrCat(Who(), ": ", Title(signature), " ", what));
  };
  if (root < 0 || root >= size_) {
    return bad(StrCat("expected a root from 0 to ", size_ - 1, ", received ", root));
  }
  const ReduceOp reduce_op = static_cast<ReduceOp>(signature.reduce_op);
  if (Reduces(kind) && !CanReduce(dtype, reduce_op)) {
    return bad(
        StrCat("cannot reduce ", Describe(dtype, signature.elements), " by ", Name(reduce_op)));
  }
  const size_t all = kind == CollectiveKind::kAllToAll ? 2 * size_ : size_;
  if (HasBlocks(kind) && signature.blocks.size() != all) {
    return bad(StrCat("expected ", all, " sizes of blocks, received ", signature.blocks.size()));
  }
  if (kind == CollectiveKind::kAllToAll &&
      signature.blocks[rank_] != signature.blocks[size_ + rank_]) {
    return bad(StrCat("sends itself ", signature.blocks[rank_], " bytes and expects ",
                      signature.blocks[size_ + rank_]));
  }
  const DataBytes expected = ExpectedBytes(signature, rank_, size_);
  if (expected.input != input_bytes || expected.output != output_bytes) {
    return bad(StrCat("expected input and output of ", expected.input, " and ", expected.output,
                      " bytes, received ", input_bytes, " and ", output_bytes));
  }
  if (algorithm != Algorithm::kAuto && !HasAlgorithm(kind, algorithm)) {
    return bad(StrCat("has no algorithm '", Name(algorithm), "'"));
  }
  return Status();
}

void Communicator::Start(CollectiveOptions options, int root, FlatView input, FlatView output,
                         std::shared_ptr<void> kept) {
  Signature& signature = options.signature;
  if (HasRoot(static_cast<CollectiveKind>(signature.kind))) {
    signature.root = static_cast<uint32_t>(root);
  }
  const Status bad = CheckStart(signature, root, options.algorithm, input.bytes(), output.bytes());
  if (!bad.ok()) return options.done(bad);
  const Algorithm algorithm = options.algorithm == Algorithm::kAuto
                                  ? SelectAlgorithm(signature, hosts_)
                                  : options.algorithm;
  signature.algorithm = static_cast<uint8_t>(algorithm);
  signature.joins = joins_;
  CopyOwn(signature, rank_, size_, input, output);
  Submit(MakePlanExecutor(std::move(options), rank_, hosts_, std::move(input), std::move(output),
                          std::move(kept)));
}

}  // namespace tfdist
