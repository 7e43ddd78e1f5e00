// All-reduce, all-gather and broadcast over many sizes, on values that differ on each rank, against
// a closed form.
#include <cstdint>
#include <cstring>
#include <future>
#include <numeric>

#include "collectives/calls.h"
#include "core/math/dtype.h"

namespace tfdist::testing::collectives_test {
namespace {

constexpr double kTimeout = 30;

CollectiveOptions Options(Communicator& comm, uint64_t key, std::promise<Status>* promise,
                          const std::string& name = "t") {
  CollectiveOptions options;
  options.id = {key, comm.NextSequence(key)};
  options.signature.name = name;
  options.timeout_seconds = kTimeout;
  options.done = [promise](const Status& status) { promise->set_value(status); };
  return options;
}

template <typename T>
iovec Piece(std::vector<T>& values, size_t begin = 0, size_t end = SIZE_MAX) {
  end = std::min(end, values.size());
  return {values.data() + begin, (end - begin) * sizeof(T)};
}

template <typename T>
std::vector<T> Values(int rank, size_t count) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>((i * 7 + 13 * rank) % 101);
  return values;
}

template <typename T>
T Sum(int size, size_t i) {
  T sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += static_cast<T>((i * 7 + 13 * rank) % 101);
  return sum;
}

template <typename T>
void TestAllReduce(const Ranks& comms, size_t count, DType dtype, bool in_place, ReduceOp op) {
  const int size = static_cast<int>(comms.size());
  OnRanks(size, [&](int rank) {
    std::vector<T> input = Values<T>(rank, count), result(count, T(-1));
    std::vector<T>& output = in_place ? input : result;
    // Uneven tensors, one of them empty, so that transfers cross the borders of pieces.
    const size_t a = count / 3, b = a + count / 2;
    const std::vector<size_t> cuts = {0, a, a, std::min(b, count), count};
    std::vector<iovec> in, out;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      in.push_back(Piece(input, cuts[i], cuts[i + 1]));
      out.push_back(Piece(output, cuts[i], cuts[i + 1]));
    }
    std::promise<Status> done;
    comms[rank]->AllReduce(Options(*comms[rank], 5, &done), FlatView(in), FlatView(out), dtype, op);
    CHECK_OK(done.get_future().get());
    const T divisor = op == ReduceOp::kMean ? static_cast<T>(size) : T(1);
    CHECK_EACH(i, count, output[i] == Sum<T>(size, i) / divisor);
  });
}

void TestAllGather(const Ranks& comms, size_t base) {
  const int size = static_cast<int>(comms.size());
  OnRanks(size, [&](int rank) {
    std::vector<size_t> blocks;
    for (int r = 0; r < size; ++r) blocks.push_back(base * r * sizeof(int64_t));  // rank 0: none
    const size_t total = std::accumulate(blocks.begin(), blocks.end(), size_t{0}) / 8;
    std::vector<int64_t> output(total, -1);
    size_t begin = 0;
    for (int r = 0; r < rank; ++r) begin += blocks[r] / 8;
    const std::vector<int64_t> own = Values<int64_t>(rank, base * rank);
    std::copy(own.begin(), own.end(), output.begin() + begin);
    std::promise<Status> done;
    comms[rank]->AllGather(Options(*comms[rank], 6, &done), DType::kInt64, blocks,
                           FlatView({Piece(output)}));
    CHECK_OK(done.get_future().get());
    size_t at = 0;
    for (int r = 0; r < size; ++r) {
      const std::vector<int64_t> block = Values<int64_t>(r, base * r);
      CHECK_EACH(i, block.size(), output[at + i] == block[i]);
      at += block.size();
    }
  });
}

// A rank that needs no data must still wait for a late neighbour that has not opened the
// collective.
TEST_CASE_IN_BOTH_WAYS("gather to late rank") {
  auto comms = Connected(2);
  const std::vector<size_t> blocks = {0, 1 << 20};
  std::vector<int32_t> source = Values<int32_t>(1, 1 << 18), result(1 << 18);
  std::promise<Status> sent, received;
  comms[1]->AllGather(Options(*comms[1], 6, &sent), DType::kInt32, blocks,
                      FlatView({Piece(source)}));
  auto sent_status = sent.get_future();
  CHECK(sent_status.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  comms[0]->AllGather(Options(*comms[0], 6, &received), DType::kInt32, blocks,
                      FlatView({Piece(result)}));
  CHECK_OK(received.get_future().get());
  CHECK_OK(sent_status.get());
  CHECK(result == source);
}

void TestBroadcast(const Ranks& comms, int root, size_t count) {
  const int size = static_cast<int>(comms.size());
  OnRanks(size, [&](int rank) {
    std::vector<float> values = Values<float>(rank, count);
    std::promise<Status> done;
    comms[rank]->Broadcast(Options(*comms[rank], 7, &done), DType::kFloat32, root,
                           FlatView({Piece(values)}));
    CHECK_OK(done.get_future().get());
    CHECK(values == Values<float>(root, count));
  });
}

// A hundred concurrent collectives, started in a different order on every rank.
void TestKeysNotOrder(int size) {
  auto comms = Connected(size);
  OnRanks(size, [&](int rank) {
    constexpr int kCount = 100;
    std::vector<std::vector<float>> values(kCount);
    std::vector<std::promise<Status>> done(kCount);
    for (int i = 0; i < kCount; ++i) {
      const int which =
          (i * (2 * rank + 1) + 31 * rank) % kCount;  // 2r+1 may share a factor with 100
      const int key = std::gcd(2 * rank + 1, kCount) == 1 ? which : (i + 31 * rank) % kCount;
      values[key] = Values<float>(rank, key * key * 3);
      const iovec piece = Piece(values[key]);
      comms[rank]->AllReduce(Options(*comms[rank], key, &done[key]), FlatView({piece}),
                             FlatView({piece}), DType::kFloat32, ReduceOp::kSum);
    }
    for (int key = 0; key < kCount; ++key) {
      CHECK_OK(done[key].get_future().get());
      CHECK_EACH(i, values[key].size(), values[key][i] == Sum<float>(size, i));
    }
  });
}

// Executions of one key match by sequence, also if the ranks progress at different rates.
void TestSequences(int size) {
  auto comms = Connected(size);
  const int steps = Rounds(500);
  OnRanks(size, [&](int rank) {
    for (int step = 0; step < steps; ++step) {
      std::vector<int32_t> value = {rank + step, step * step};
      std::promise<Status> done;
      comms[rank]->AllReduce(Options(*comms[rank], 1, &done), FlatView({Piece(value)}),
                             FlatView({Piece(value)}), DType::kInt32, ReduceOp::kSum);
      CHECK_OK(done.get_future().get());
      CHECK(value[0] == size * step + size * (size - 1) / 2);
      CHECK(value[1] == size * step * step);
    }
    const CommunicatorStats stats = comms[rank]->stats();
    CHECK(stats.collectives == static_cast<uint64_t>(steps));
    // Each of two elements visits every rank but one, twice.
    const auto bytes = static_cast<uint64_t>(steps) * 8;
    if (size == 2) CHECK((stats.bytes_sent == bytes && stats.bytes_received == bytes));
  });
}

TEST_CASE_IN_BOTH_WAYS("half precision") {
  // 1/3 in each format and its double, and a tie, which rounds to even.
  uint16_t half[2] = {0x3555, 0x3c01}, brain[3] = {0x3eab, 0x3f81, 0x7fc0};
  Add(DType::kFloat16, half, half, half, 2);
  CHECK((half[0] == 0x3955 && half[1] == 0x4001));
  Add(DType::kBFloat16, brain, brain, brain, 3);
  CHECK((brain[0] == 0x3f2b && brain[1] == 0x4001 && (brain[2] & 0x7fc0) == 0x7fc0));
  uint16_t one = 0x3f80, tiny = 0x3b80;  // 1 + 2^-8: exactly between two bfloat16 values
  Add(DType::kBFloat16, &one, &one, &tiny, 1);
  CHECK(one == 0x3f80);
  int32_t integers[2] = {-7, 7};
  Divide(DType::kInt32, integers, 2, 2);
  CHECK((integers[0] == -3 && integers[1] == 3));
  int32_t largest = INT32_MAX, step = 1;
  Add(DType::kInt32, &largest, &largest, &step, 1);
  CHECK(largest == INT32_MIN);
}

TEST_CASE_IN_BOTH_WAYS("all reduce") {
  for (const int size : {1, 2, 3, 4, 7}) {
    const Ranks comms = Connected(size);
    for (const size_t count : {0, 1, 2, 5, 100, 1000, 10000, 300000}) {
      if (size > 2 && count > 10000 && share > 1) continue;
      TestAllReduce<float>(comms, count, DType::kFloat32, count % 2 == 0, ReduceOp::kSum);
    }
    const size_t many = share > 1 ? 7001 : 70001;
    TestAllReduce<double>(comms, 1000, DType::kFloat64, false, ReduceOp::kMean);
    TestAllReduce<int32_t>(comms, many, DType::kInt32, false, ReduceOp::kSum);
    TestAllReduce<int64_t>(comms, many, DType::kInt64, true, ReduceOp::kMean);
    for (const size_t base : {0, 1, 1000, 40000}) TestAllGather(comms, base);
    for (int root = 0; root < size; ++root) TestBroadcast(comms, root, 1 + 33333 * root);
    TestBroadcast(comms, size - 1, 0);
    TestKeysNotOrder(size);
    TestSequences(size);
  }
}

}  // namespace
}  // namespace tfdist::testing::collectives_test
