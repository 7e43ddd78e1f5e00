#include "core/ring.h"

#include <algorithm>
#include <utility>

namespace tfdist {

std::unique_ptr<Ring> Ring::AllReduce(CollectiveOptions options, int rank, int size, FlatView input,
                                      FlatView output, DType dtype, ReduceOp reduce_op) {
  const size_t width = ByteSize(dtype);
  const size_t elements = output.bytes() / width;
  std::vector<size_t> bounds;
  for (int i = 0; i <= size; ++i) bounds.push_back(elements * i / size * width);
  return std::unique_ptr<Ring>(new Ring(std::move(options), rank, size, std::move(input),
                                        std::move(output), std::move(bounds), size - 1, dtype,
                                        reduce_op));
}

std::unique_ptr<Ring> Ring::AllGather(CollectiveOptions options, int rank, int size,
                                      const std::vector<size_t>& block_bytes, FlatView output) {
  std::vector<size_t> bounds = {0};
  for (const size_t bytes : block_bytes) bounds.push_back(bounds.back() + bytes);
  return std::unique_ptr<Ring>(new Ring(std::move(options), rank, size, FlatView(),
                                        std::move(output), std::move(bounds), 0, DType::kBytes,
                                        ReduceOp::kSum));
}

Ring::Ring(CollectiveOptions options, int rank, int size, FlatView input, FlatView output,
           std::vector<size_t> bounds, int reduce_steps, DType dtype, ReduceOp reduce_op)
    : Collective(std::move(options)),
      rank_(rank),
      size_(size),
      left_((rank + size - 1) % size),
      right_((rank + 1) % size),
      input_(std::move(input)),
      output_(std::move(output)),
      bounds_(std::move(bounds)),
      reduce_steps_(reduce_steps),
      steps_(reduce_steps + size - 1),
      dtype_(dtype),
      reduce_op_(reduce_op),
      may_send_(output_.bytes() <= kEagerBytes) {
  offset_ = bounds_[ReceivedSegment()];
  Advance();
}

std::vector<int> Ring::Peers() const {
  if (left_ == right_) return {left_};
  return {left_, right_};
}

void Ring::Start(ChunkSender& sender) {
  const int own = Segment(0);
  for (size_t begin = bounds_[own]; begin < bounds_[own + 1]; begin += kChunkBytes) {
    Send(sender, {0, begin, std::min(begin + kChunkBytes, bounds_[own + 1])});
  }
}

void Ring::PeerOpened(ChunkSender& sender, int peer) {
  if (peer != right_ || may_send_) return;
  may_send_ = true;
  for (const Chunk& chunk : std::exchange(held_, {})) Send(sender, chunk);
}

void Ring::Send(ChunkSender& sender, const Chunk& chunk) {
  if (!may_send_) {
    held_.push_back(chunk);
    return;
  }
  const bool own_input = chunk.step == 0 && reduce_steps_ > 0;
  std::vector<iovec> pieces;
  (own_input ? input_ : output_).Slice(chunk.begin, chunk.end, &pieces);
  sender.SendChunk(this, right_, static_cast<uint16_t>(chunk.step), chunk.begin, std::move(pieces));
}

Status Ring::Place(int peer, const FrameHeader& chunk, char* scratch, std::vector<iovec>* target) {
  if (peer != left_ || step_ == steps_) {
    return Status(StatusCode::kInternal,
                  StrCat(Title(), ": a chunk that it does not expect came from rank ", peer));
  }
  const size_t length = std::min(kChunkBytes, bounds_[ReceivedSegment() + 1] - offset_);
  if (chunk.step != step_ || chunk.offset != offset_ || chunk.length != length) {
    return Status(StatusCode::kInternal,
                  StrCat(Title(), ": expected step ", step_, " offset ", offset_, " length ",
                         length, ", received step ", chunk.step, " offset ", chunk.offset,
                         " length ", chunk.length, " from rank ", peer));
  }
  if (step_ < reduce_steps_) {
    target->push_back({scratch, length});
  } else {
    output_.Slice(offset_, offset_ + length, target);
  }
  return Status();
}

void Ring::Received(ChunkSender& sender, int, const FrameHeader& chunk, const char* scratch) {
  const size_t begin = chunk.offset, end = begin + chunk.length;
  if (step_ < reduce_steps_) Reduce(begin, end, scratch);
  if (step_ + 1 < steps_) Send(sender, {step_ + 1, begin, end});
  offset_ = end;
  Advance();
}

void Ring::Reduce(size_t begin, size_t end, const char* received) {
  std::vector<iovec> own, sum;
  input_.Slice(begin, end, &own);
  output_.Slice(begin, end, &sum);
  const bool last = step_ + 1 == reduce_steps_;
  for (size_t i = 0; i < sum.size(); ++i) {
    const size_t count = sum[i].iov_len / ByteSize(dtype_);
    Add(dtype_, sum[i].iov_base, own[i].iov_base, received, count);
    if (last && reduce_op_ == ReduceOp::kMean) Divide(dtype_, sum[i].iov_base, count, size_);
    received += sum[i].iov_len;
  }
}

void Ring::Advance() {
  while (step_ < steps_ && offset_ == bounds_[ReceivedSegment() + 1]) {
    ++step_;
    if (step_ < steps_) offset_ = bounds_[ReceivedSegment()];
  }
}

}  // namespace tfdist
