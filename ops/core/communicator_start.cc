// How each collective starts: its signature is filled in, and the algorithm chosen.
#include <memory>
#include <utility>
#include <vector>

#include "core/broadcast.h"
#include "core/communicator.h"
#include "core/ring.h"

namespace tfdist {

void Communicator::AllReduce(CollectiveOptions options, FlatView input, FlatView output,
                             DType dtype, ReduceOp reduce_op) {
  Signature& signature = options.signature;
  signature.kind = static_cast<uint8_t>(CollectiveKind::kAllReduce);
  signature.dtype = static_cast<uint8_t>(dtype);
  signature.reduce_op = static_cast<uint8_t>(reduce_op);
  signature.elements = output.bytes() / ByteSize(dtype);
  if (size_ == 1) input.CopyTo(output);
  Submit(Ring::AllReduce(std::move(options), rank_, size_, std::move(input), std::move(output),
                         dtype, reduce_op));
}

void Communicator::AllGather(CollectiveOptions options, DType dtype,
                             const std::vector<size_t>& block_bytes, FlatView output) {
  options.signature.kind = static_cast<uint8_t>(CollectiveKind::kAllGather);
  options.signature.dtype = static_cast<uint8_t>(dtype);
  Submit(Ring::AllGather(std::move(options), rank_, size_, block_bytes, std::move(output)));
}

void Communicator::Broadcast(CollectiveOptions options, DType dtype, int root, FlatView buffer) {
  if (root < 0 || root >= size_) {
    return options.done(
        Status(StatusCode::kInvalidArgument,
               StrCat(Who(), ": broadcast '", options.signature.name,
                      "' expected a root from 0 to ", size_ - 1, ", received ", root)));
  }
  Signature& signature = options.signature;
  signature.kind = static_cast<uint8_t>(CollectiveKind::kBroadcast);
  signature.dtype = static_cast<uint8_t>(dtype);
  signature.root = static_cast<uint32_t>(root);
  signature.elements = buffer.bytes() / ByteSize(dtype);
  Submit(
      std::make_unique<class Broadcast>(std::move(options), rank_, size_, root, std::move(buffer)));
}

}  // namespace tfdist
