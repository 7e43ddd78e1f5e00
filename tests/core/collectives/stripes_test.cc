// Stripes: a value's segment, and the bits of its sum, depend on its place in the list alone.
#include "core/algorithms/stripes.h"

#include <cmath>

#include "collectives/calls.h"

namespace tfdist::testing::stripes_test {
namespace {

// The segment of each element of a bucket, by its stripes and bounds.
std::vector<int> Segments(uint64_t begin, size_t count, int segments) {
  constexpr size_t kWidth = 4;
  const std::vector<size_t> bounds = StripedBounds(begin, count, kWidth, segments);
  CHECK(bounds.size() == static_cast<size_t>(segments) + 1);
  CHECK(bounds.back() == count * kWidth);
  std::vector<int> found(count, -1);
  size_t at = 0;
  for (const Stripe& stripe : Stripes(begin, count, kWidth, segments)) {
    CHECK((stripe.begin < stripe.end && stripe.end <= count * kWidth));
    for (size_t byte = stripe.begin; byte < stripe.end; byte += kWidth, at += kWidth) {
      int segment = 0;
      while (bounds[segment + 1] <= at) ++segment;
      CHECK(found[byte / kWidth] == -1);
      found[byte / kWidth] = segment;
    }
  }
  CHECK(at == count * kWidth);
  return found;
}

TEST_CASE("a value has one segment in any bucket") {
  constexpr size_t kElements = 11 * kStripeElements + 100;
  for (const int segments : {2, 3, 5, 16}) {
    for (const size_t bucket : {kElements, size_t{1000}, size_t{3 * kStripeElements + 7}}) {
      for (size_t begin = 0; begin < kElements; begin += bucket) {
        const size_t count = std::min(bucket, kElements - begin);
        const std::vector<int> found = Segments(begin, count, segments);
        for (size_t i = 0; i < count; ++i) {
          CHECK(found[i] == static_cast<int>((begin + i) / kStripeElements % segments));
        }
      }
    }
  }
}

TEST_CASE("segments of a large bucket are even") {
  const std::vector<size_t> bounds = StripedBounds(123, 1 << 20, 4, 7);
  for (int i = 0; i < 7; ++i) {
    const size_t bytes = bounds[i + 1] - bounds[i];
    CHECK(bytes + 4 * kStripeElements > (size_t{4} << 20) / 7);
    CHECK(bytes < (size_t{4} << 20) / 7 + 4 * kStripeElements);
  }
}

TEST_CASE("nothing") {
  CHECK(Stripes(5, 0, 4, 3).empty());
  CHECK(StripedBounds(5, 0, 4, 3) == std::vector<size_t>(4, 0));
}

// Values whose sums depend on the order of the additions.
std::vector<float> Values(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = std::sin(static_cast<float>(i * 7 + rank * 1000 + 1)) * std::pow(10.0F, rank % 4);
  }
  return values;
}

// The sums of a list that travels in buckets of `bucket` elements, the same on all ranks. A plain
// all-reduce cuts each bucket into even segments.
std::vector<float> Sums(const std::vector<std::unique_ptr<Communicator>>& comms, size_t count,
                        size_t bucket, bool striped) {
  const int size = static_cast<int>(comms.size());
  std::vector<std::vector<float>> lists;
  std::vector<Ending> endings;
  for (int rank = 0; rank < size; ++rank) {
    lists.push_back(Values(rank, count));
  }
  for (size_t begin = 0; begin < count; begin += bucket) {
    const size_t elements = std::min(bucket, count - begin);
    for (int rank = 0; rank < size; ++rank) {
      auto [options, ending] = Prepare(*comms[rank], {begin + 1});
      if (striped) options.signature.stripes_from = begin;
      // In two pieces, as two tensors have it.
      float* const data = lists[rank].data() + begin;
      const size_t half = elements / 2 * sizeof(float);
      const FlatView view({{data, half}, {data + elements / 2, elements * sizeof(float) - half}});
      comms[rank]->AllReduce(std::move(options), view, view, DType::kFloat32, ReduceOp::kSum);
      endings.push_back(std::move(ending));
    }
  }
  for (Ending& ending : endings) CHECK_OK(Wait(ending));
  for (int rank = 1; rank < size; ++rank) CHECK(lists[rank] == lists[0]);
  return lists[0];
}

// By a ring, and by two levels of three and of two hosts.
TEST_CASE("sums do not depend on the buckets") {
  constexpr size_t kCount = 9 * kStripeElements + 77;
  for (const auto& [size, hosts] : {std::pair(3, 3), std::pair(5, 1), std::pair(6, 3)}) {
    const std::vector<std::unique_ptr<Communicator>> comms = ConnectedOn(size, hosts);
    const std::vector<float> whole = Sums(comms, kCount, kCount, true);
    std::vector<std::vector<float>> values;
    for (int rank = 0; rank < size; ++rank) values.push_back(Values(rank, kCount));
    for (size_t i = 0; i < kCount; ++i) {
      double sum = 0, largest = 0;
      for (const std::vector<float>& of_rank : values) {
        sum += of_rank[i];
        largest += std::abs(of_rank[i]);
      }
      CHECK(std::abs(whole[i] - sum) <= 1e-6 * largest);
    }
    // Some buckets are small enough for recursive doubling, which would add in another order.
    for (const size_t bucket :
         {size_t{1000}, 2 * kStripeElements, size_t{3 * kStripeElements + 5}}) {
      CHECK(Sums(comms, kCount, bucket, true) == whole);
    }
    CHECK(Sums(comms, kCount, 3 * kStripeElements + 5, false) != whole);
  }
}

}  // namespace
}  // namespace tfdist::testing::stripes_test
