// LocalReduce against a closed form.
#include "core/math/local_reduce.h"

#include <cstdint>
#include <numeric>

#include "testing.h"

namespace tfdist::testing::local_reduce_test {
namespace {

// Odd sizes, an empty tensor, and one of several blocks.
const std::vector<size_t> kSizes = {1, 7, 0, 5000, 3};

// The memory of the output.
enum class Output { kOwn, kFirstInput, kPartlyFirstInput };

template <typename T>
std::vector<iovec> Pieces(std::vector<T>& flat) {
  std::vector<iovec> pieces;
  size_t at = 0;
  for (const size_t size : kSizes) {
    pieces.push_back({flat.data() + at, size * sizeof(T)});
    at += size;
  }
  return pieces;
}

template <typename T>
void TestReduce(size_t replicas, DType dtype, ReduceOp op, Output memory, Stores stores) {
  const size_t count = std::accumulate(kSizes.begin(), kSizes.end(), size_t{0});
  std::vector<std::vector<T>> values(replicas, std::vector<T>(count));
  std::vector<T> own(count, T(-1));
  for (size_t r = 0; r < replicas; ++r) {
    for (size_t i = 0; i < count; ++i) values[r][i] = static_cast<T>(i % 100 + 10 * r);
  }
  std::vector<FlatView> inputs;
  for (auto& replica : values) inputs.emplace_back(Pieces(replica));
  std::vector<iovec> output = Pieces(own);
  const std::vector<iovec> first = Pieces(values[0]);
  for (size_t i = 0; i < output.size(); ++i) {
    if (memory == Output::kFirstInput || (memory == Output::kPartlyFirstInput && i % 2 == 1)) {
      output[i] = first[i];
    }
  }
  // In two calls whose border is inside a tensor, like two threads.
  const size_t half = count / 2 * sizeof(T);
  LocalReduce(inputs, FlatView(output), 0, half, dtype, op, stores);
  LocalReduce(inputs, FlatView(output), half, count * sizeof(T), dtype, op, stores);
  size_t i = 0;
  for (const iovec& piece : output) {
    const T* sums = static_cast<const T*>(piece.iov_base);
    for (size_t k = 0; k < piece.iov_len / sizeof(T); ++k, ++i) {
      T sum = static_cast<T>(replicas * (i % 100) + 10 * (replicas * (replicas - 1) / 2));
      if (op == ReduceOp::kMean) sum = sum / static_cast<T>(replicas);
      CHECK(sums[k] == sum);
    }
  }
  CHECK(i == count);
}

// Rounding reveals the order: in float32, 1 + 2^24 is 2^24.
TEST_CASE("order of replicas") {
  std::vector<float> a = {1.0f}, b = {16777216.0f}, c = {-16777216.0f}, sum = {0.0f};
  const auto view = [](std::vector<float>& values) {
    return FlatView({{values.data(), sizeof(float)}});
  };
  LocalReduce({view(a), view(b), view(c)}, view(sum), 0, 4, DType::kFloat32, ReduceOp::kSum,
              Stores::kCached);
  CHECK(sum[0] == 0.0f);
  LocalReduce({view(b), view(c), view(a)}, view(sum), 0, 4, DType::kFloat32, ReduceOp::kSum,
              Stores::kCached);
  CHECK(sum[0] == 1.0f);
}

TEST_CASE("reduce") {
  CHECK(ChooseStores(0) == Stores::kCached);
  CHECK(ChooseStores(size_t{1} << 30) == Stores::kStreaming);
  for (const size_t replicas : {1, 2, 3, 4, 8}) {
    for (const Output memory : {Output::kOwn, Output::kFirstInput, Output::kPartlyFirstInput}) {
      for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
        TestReduce<float>(replicas, DType::kFloat32, ReduceOp::kSum, memory, stores);
        TestReduce<double>(replicas, DType::kFloat64, ReduceOp::kMean, memory, stores);
        TestReduce<int32_t>(replicas, DType::kInt32, ReduceOp::kMean, memory, stores);
        TestReduce<int64_t>(replicas, DType::kInt64, ReduceOp::kSum, memory, stores);
        TestReduce<_Float16>(replicas, DType::kFloat16, ReduceOp::kSum, memory, stores);
      }
    }
  }
}

}  // namespace
}  // namespace tfdist::testing::local_reduce_test
