#include "core/math/local_reduce.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/base/streaming_store.h"
#include "core/math/combine.h"

namespace tfdist {
namespace {

// Larger blocks hinder the prefetcher, smaller ones cost more calls.
constexpr size_t kBlockBytes = 2 * 1024;

// From this size on, streaming stores save more time than is lost when the output is read from
// memory afterwards.
constexpr size_t kStreamingBytes = 16 * 1024 * 1024;

// `at` holds an address for each replica; `out` may be the first of them.
void ReduceBlock(const std::vector<const char*>& at, char* out, size_t bytes, DType dtype,
                 ReduceOp reduce_op) {
  const size_t count = bytes / ByteSize(dtype);
  if (at.size() == 1) {
    if (out != at[0]) std::memcpy(out, at[0], bytes);
    return;
  }
  Combine(dtype, reduce_op, out, at[0], at[1], count);
  for (size_t r = 2; r < at.size(); ++r) Combine(dtype, reduce_op, out, out, at[r], count);
  if (reduce_op == ReduceOp::kMean) Divide(dtype, out, count, static_cast<int64_t>(at.size()));
}

}  // namespace

Stores ChooseStores(size_t bytes) {
  return bytes >= kStreamingBytes ? Stores::kStreaming : Stores::kCached;
}

void LocalReduce(const std::vector<FlatView>& inputs, const FlatView& output, size_t begin,
                 size_t end, DType dtype, ReduceOp reduce_op, Stores stores) {
  std::vector<iovec> out;
  output.Slice(begin, end, &out);
  std::vector<std::vector<iovec>> in(inputs.size());
  for (size_t r = 0; r < inputs.size(); ++r) inputs[r].Slice(begin, end, &in[r]);
  std::vector<const char*> at(inputs.size());
  alignas(kCacheLine) char block[kBlockBytes];
  for (size_t i = 0; i < out.size(); ++i) {
    const bool streaming = stores == Stores::kStreaming && out[i].iov_base != in[0][i].iov_base;
    for (size_t done = 0, bytes; done < out[i].iov_len; done += bytes) {
      char* const to = static_cast<char*>(out[i].iov_base) + done;
      for (size_t r = 0; r < at.size(); ++r) {
        at[r] = static_cast<const char*>(in[r][i].iov_base) + done;
      }
      // The first block ends at a cache line, so that all others begin at one.
      const size_t into_line = reinterpret_cast<uintptr_t>(to) % kCacheLine;
      bytes =
          std::min(into_line == 0 ? kBlockBytes : kCacheLine - into_line, out[i].iov_len - done);
      if (streaming && bytes % kCacheLine == 0) {
        ReduceBlock(at, block, bytes, dtype, reduce_op);
        StreamingCopy(to, block, bytes);
      } else {
        ReduceBlock(at, to, bytes, dtype, reduce_op);
      }
    }
  }
  if (stores == Stores::kStreaming) FenceStreamingStores();
}

}  // namespace tfdist
