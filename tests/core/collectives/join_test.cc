// Ranks that join at different times: the others continue, and later collectives match.
#include "collectives/jobs.h"
#include "collectives/joins.h"
#include "core/math/combine.h"

namespace tfdist::testing::join_test {
namespace {

// The result of a reduction over the ranks that have data.
int ReducedBy(const std::vector<int>& ranks, DType dtype, ReduceOp op, int size, size_t i) {
  int result = 0;
  for (size_t k = 0; k < ranks.size(); ++k) {
    const int value = Operand(dtype, op, size, ranks[k], i);
    if (k == 0)
      result = value;
    else if (op == ReduceOp::kMin)
      result = std::min(result, value);
    else if (op == ReduceOp::kMax)
      result = std::max(result, value);
    else if (op == ReduceOp::kProduct)
      result *= value;
    else
      result += value;
  }
  return op == ReduceOp::kMean ? result / size : result;
}

// Rank r takes part in r + 1 rounds, all with the same key, and joins. Two times.
void TestUneven(int size, size_t count) {
  Ranks comms = ConnectedOn(size, 2);
  OnRanks(size, [&](int rank) {
    Communicator& comm = *comms[rank];
    for (int turn = 0; turn < 2; ++turn) {
      for (int round = 0; round <= rank; ++round) {
        std::vector<int64_t> values(count, 100 * round + rank), gathered(size, -1);
        Ending sum = AllReduce(comm, values, {3}, DType::kInt64);
        CHECK_OK(Wait(sum));
        int64_t expected = 0;
        for (int r = round; r < size; ++r) expected += 100 * round + r;
        CHECK_ALL(values, expected);
        gathered[rank] = 1 + rank;
        Ending gather = AllGather(comm, gathered, {3}, DType::kInt64);
        CHECK_OK(Wait(gather));
        for (int r = 0; r < size; ++r) CHECK(gathered[r] == (r < round ? 0 : 1 + r));
      }
      auto joined = Join(comm, 20, 3);  // with the same key
      CHECK_OK(Wait(joined->ending));
      CHECK(joined->last_rank == size - 1);
      // All ranks take part again, with the same sequence numbers.
      std::vector<int64_t> values(count, rank);
      Ending sum = AllReduce(comm, values, {3}, DType::kInt64);
      CHECK_OK(Wait(sum));
      CHECK_ALL(values, size * (size - 1) / 2);
    }
  });
}

// Every operation and type: the result includes only the ranks with data.
TEST_CASE("operations") {
  constexpr int kSize = 4;
  Ranks comms = ConnectedOn(kSize, 2);
  OnRanks(kSize, [&](int rank) {
    if (rank == 1 || rank == 2) {
      auto joined = Join(*comms[rank]);
      CHECK_OK(Wait(joined->ending));
      CHECK(joined->last_rank == 3);
      return;
    }
    uint64_t key = 100;
    for (const Algorithm algorithm :
         {Algorithm::kRing, Algorithm::kRecursiveDoubling, Algorithm::kTwoLevel,
          Algorithm::kHalvingDoubling, Algorithm::kDoubleTree}) {
      for (const DType dtype : kReducible) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax,
                                  ReduceOp::kProduct}) {
          if (!CanReduce(dtype, op)) continue;
          const auto mine = [&](size_t i) { return Operand(dtype, op, kSize, rank, i); };
          std::string values = Encoded(dtype, 50, mine);
          auto [options, ending] = Prepare(*comms[rank], {key++, "op", "", 20, algorithm});
          const FlatView view({{values.data(), values.size()}});
          comms[rank]->AllReduce(std::move(options), view, view, dtype, op);
          CHECK_OK(Wait(ending));
          CHECK(values == Encoded(dtype, 50, [&](size_t i) {
                  return ReducedBy({0, 3}, dtype, op, kSize, i);
                }));
        }
      }
    }
    auto joined = Join(*comms[rank]);
    CHECK_OK(Wait(joined->ending));
    CHECK(joined->last_rank == 3);
  });
}

// A joined rank discards its outputs, contributes no rows, and does not block the others.
TEST_CASE("other collectives") {
  constexpr int kSize = 3;
  Ranks comms = Connected(kSize);
  auto joined = Join(*comms[1]);
  OnRanks(kSize, [&](int rank) {
    if (rank == 1) return;
    Communicator& comm = *comms[rank];
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<float> values(50000, static_cast<float>(rank));
      Ending broadcast = Broadcast(comm, values, 2, {1});
      CHECK_OK(Wait(broadcast));
      CHECK(values == std::vector<float>(50000, 2));

      const std::vector<size_t> bytes = {8, 0, 16};
      std::vector<int64_t> own = {rank + 5, 7}, all(3);
      const FlatView block({{own.data(), bytes[rank]}});
      auto [to_root, gathered] = Prepare(comm, {2, "gather"});
      comm.Gather(std::move(to_root), DType::kInt64, bytes, 0, block,
                  rank == 0 ? View(all) : FlatView());
      CHECK_OK(Wait(gathered));
      if (rank == 0) CHECK((all == std::vector<int64_t>{5, 7, 7}));

      auto [from_root, scattered] = Prepare(comm, {3, "scatter"});
      std::vector<int64_t> parts = {1, 2, 3};
      comm.Scatter(std::move(from_root), DType::kInt64, bytes, 2,
                   rank == 2 ? View(parts) : FlatView(), block);
      CHECK_OK(Wait(scattered));
      CHECK(own[0] == (rank == 0 ? 1 : 2));

      // The joined rank as the root of a reduce.
      auto [reduce, reduced] = Prepare(comm, {4, "reduce"});
      comm.Reduce(std::move(reduce), View(parts), FlatView(), DType::kInt64, ReduceOp::kMax, 1);
      CHECK_OK(Wait(reduced));

      auto [spread, reduce_scattered] = Prepare(comm, {5, "reduce_scatter"});
      std::vector<int64_t> operands = {rank, rank + 1, rank + 2};
      comm.ReduceScatter(std::move(spread), View(operands), block, DType::kInt64, ReduceOp::kSum,
                         bytes);
      CHECK_OK(Wait(reduce_scattered));
      CHECK(own[0] == (rank == 0 ? 2 : 4));

      auto [wait, barrier] = Prepare(comm, {6, "barrier"});
      comm.Barrier(std::move(wait));
      CHECK_OK(Wait(barrier));
    }
    auto end = Join(comm);
    CHECK_OK(Wait(end->ending));
    CHECK(end->last_rank == 2);
  });
  CHECK_OK(Wait(joined->ending));
  CHECK(joined->last_rank == 2);
}

void TestOnlyJoins(int size) {
  Ranks comms = Connected(size);
  OnRanks(size, [&](int rank) {
    for (int turn = 0; turn < 200; ++turn) {
      auto joined = Join(*comms[rank]);
      CHECK_OK(Wait(joined->ending));
      CHECK(joined->last_rank == size - 1);
    }
  });
}

// Ranks that start the next collectives directly after a join.
void TestRepeated(int size) {
  Ranks comms = Connected(size);
  OnRanks(size, [&](int rank) {
    for (int turn = 0; turn < 100; ++turn) {
      // The root finishes a scatter before the others know of it.
      std::vector<float> values(3, static_cast<float>(rank));
      const int root = turn % size;
      if (rank == root) {
        std::vector<float> parts(size, 1);
        Ending scatter = Scatter(*comms[rank], parts, root, {1});
        CHECK_OK(Wait(scatter));
      }
      auto joined = Join(*comms[rank]);
      CHECK_OK(Wait(joined->ending));
      CHECK(joined->last_rank == root);
      Ending sum = AllReduce(*comms[rank], values, {2});
      CHECK_OK(Wait(sum));
      CHECK(values[2] == static_cast<float>(size * (size - 1) / 2));
    }
  });
}

TEST_CASE("uneven") {
  for (const int size : {1, 2, 3, 5}) TestUneven(size, 3);
  TestUneven(4, 40000);
}

TEST_CASE("only joins") {
  for (const int size : {2, 3, 8}) TestOnlyJoins(size);
}

TEST_CASE("repeated") {
  for (const int size : {2, 3, 8}) TestRepeated(size);
}

}  // namespace
}  // namespace tfdist::testing::join_test
